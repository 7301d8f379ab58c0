import type { ContinuationRecord } from "../core/record.ts";

/** One version of one record on its way to the disk. The object itself is the identity of the version. */
export interface Entry {
  readonly id: string;
  /** Undefined for a delete. */
  readonly record: ContinuationRecord | undefined;
  /** Content of the record file; empty for a delete. */
  readonly body: string;
  /** The same as it stands in a transaction file, without the comma; encoded once, as many commits may carry it. */
  readonly piece: Uint8Array;
  /** What it adds to a transaction file, in bytes. */
  readonly bytes: number;
}

/** A comma and a line break. */
const SEPARATOR = Uint8Array.of(0x2c, 0x0a);

/** `body` is the record's own file content (`encodeRecord`). A raw line break in it is always indentation. */
export function putEntry(record: ContinuationRecord, body: string): Entry {
  return entry(record.continuationId, record, body, body.slice(0, -1).replaceAll("\n", "\n    "));
}

export function deleteEntry(id: string): Entry {
  return entry(id, undefined, "", JSON.stringify(id));
}

function entry(id: string, record: ContinuationRecord | undefined, body: string, text: string): Entry {
  const piece = Buffer.from(`    ${text}`, "utf8");
  return { id, record, body, piece, bytes: piece.length + SEPARATOR.length };
}

/** The file of store-format.md §6, byte for byte what `fileJson` would give, from pieces already made. */
export function transactionData(generation: string, createdAt: string, entries: Iterable<Entry>): Uint8Array {
  const writes: Uint8Array[] = [];
  const deletes: Uint8Array[] = [];
  for (const entry of entries) {
    const list = entry.record === undefined ? deletes : writes;
    if (list.length > 0) list.push(SEPARATOR);
    list.push(entry.piece);
  }
  const head = `{
  "schemaVersion": 3,
  "generation": ${JSON.stringify(generation)},
  "createdAt": ${JSON.stringify(createdAt)},
`;
  return Buffer.concat([
    Buffer.from(`${head}  "writes": [${writes.length === 0 ? "" : "\n"}`),
    ...writes,
    Buffer.from(`${writes.length === 0 ? "" : "\n  "}],\n  "deletes": [${deletes.length === 0 ? "" : "\n"}`),
    ...deletes,
    Buffer.from(`${deletes.length === 0 ? "" : "\n  "}]\n}\n`),
  ]);
}
