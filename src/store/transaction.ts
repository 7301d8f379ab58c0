import { utf8Bytes } from "../core/json.ts";
import type { ContinuationRecord } from "../core/record.ts";

/** One version of one record on its way to the disk. The object itself is the identity of the version. */
export interface Entry {
  readonly id: string;
  /** Undefined for a delete. */
  readonly record: ContinuationRecord | undefined;
  /** Content of the record file; empty for a delete. */
  readonly body: string;
  /** The same as it stands in a transaction file, without the comma. */
  readonly piece: string;
  /** What it adds to a transaction file, in bytes. */
  readonly bytes: number;
}

const SEPARATOR_BYTES = 2;

/** `body` is the record's own file content (`encodeRecord`). A raw line break in it is always indentation. */
export function putEntry(record: ContinuationRecord, body: string): Entry {
  const piece = `    ${body.slice(0, -1).replaceAll("\n", "\n    ")}`;
  return { id: record.continuationId, record, body, piece, bytes: utf8Bytes(piece) + SEPARATOR_BYTES };
}

export function deleteEntry(id: string): Entry {
  const piece = `    ${JSON.stringify(id)}`;
  return { id, record: undefined, body: "", piece, bytes: utf8Bytes(piece) + SEPARATOR_BYTES };
}

/** The file of store-format.md §6, byte for byte what `fileJson` would give, from pieces already made. */
export function transactionText(generation: string, createdAt: string, entries: Iterable<Entry>): string {
  const writes: string[] = [];
  const deletes: string[] = [];
  for (const entry of entries) (entry.record === undefined ? deletes : writes).push(entry.piece);
  const list = (pieces: string[]) => (pieces.length === 0 ? "[]" : `[\n${pieces.join(",\n")}\n  ]`);
  return `{
  "schemaVersion": 3,
  "generation": ${JSON.stringify(generation)},
  "createdAt": ${JSON.stringify(createdAt)},
  "writes": ${list(writes)},
  "deletes": ${list(deletes)}
}
`;
}
