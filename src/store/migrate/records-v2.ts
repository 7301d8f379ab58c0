import { sep } from "node:path";
import { fileJson, isJsonObject } from "../../core/json.ts";
import { MANIFEST_MAX_BYTES, RECORD_MAX_BYTES, TRANSACTION_MAX_BYTES } from "../../core/limits.ts";
import type { FileSystem } from "../../core/ports/platform.ts";
import { type ContinuationRecord, recordFileName } from "../../core/record.ts";
import { isTemporary, readSecureFile, unsafe } from "../../core/secure-files.ts";
import { GUARD_FILE } from "../../core/store-files.ts";
import { checkValue, corrupt, parseJson } from "../codec.ts";
import { v2ManifestSchema, v2TransactionSchema } from "./legacy-schema.ts";
import { normaliseLegacy } from "./normalise.ts";
import type { LegacyPaths } from "./paths.ts";

/** Reading the v2 format, one file at a time. Nothing is changed here. */

export const RECORD_NAME = /^[0-9a-f]{64}\.json$/;

export interface V2Transaction {
  readonly writes: { readonly record: ContinuationRecord; readonly body: string }[];
  readonly deletes: string[];
  readonly bytes: number;
}

/** Names of the record files, sorted. The guard and temporaries are left out; any other name is given as it is. */
export function v2RecordNames(fs: FileSystem, paths: LegacyPaths): string[] {
  const names = fs.list(paths.records, "legacy") ?? [];
  return names.filter((name) => name !== GUARD_FILE && !isTemporary(name)).sort();
}

/** Reads one v2 record file, whose name must be the digest of the id inside. */
export function readV2Record(
  fs: FileSystem,
  paths: LegacyPaths,
  name: string,
): { record: ContinuationRecord; bytes: number } {
  const path = `${paths.records}${sep}${name}`;
  if (!RECORD_NAME.test(name)) throw corrupt(path, "is not the name of a record file");
  const data = readSecureFile(fs, path, RECORD_MAX_BYTES, "legacy.record.read");
  if (data === undefined) throw unsafe(path, "disappeared while it was read");
  const record = normaliseLegacy(path, parseJson(path, data), data.length);
  if (recordFileName(record.continuationId) !== name) {
    throw corrupt(path, "does not have the name that belongs to the continuation id in it");
  }
  return { record, bytes: data.length };
}

/** Reads the transaction that an older runtime left unfinished. No id may stand in it twice. */
export function readV2Transaction(fs: FileSystem, paths: LegacyPaths): V2Transaction | undefined {
  const path = paths.transaction;
  const data = readSecureFile(fs, path, TRANSACTION_MAX_BYTES, "legacy.transaction.read");
  if (data === undefined) return undefined;
  const frame = checkValue(path, v2TransactionSchema, parseJson(path, data));
  const seen = new Set<string>();
  const once = (id: string) => {
    if (seen.has(id)) throw corrupt(path, `names continuation ${id} twice`);
    seen.add(id);
  };
  const writes = frame.writes.map((value) => {
    // The v2 record file gets what the transaction says, not what today's format adds.
    const body = isJsonObject(value) ? fileJson(value) : "";
    const record = normaliseLegacy(path, value, data.length);
    once(record.continuationId);
    return { record, body };
  });
  for (const id of frame.deletes) once(id);
  return { writes, deletes: frame.deletes, bytes: data.length };
}

/** Checks that the v2 manifest is one; what it reports is not needed. Returns its size. */
export function checkV2Manifest(fs: FileSystem, paths: LegacyPaths): number {
  const path = paths.manifest;
  const data = readSecureFile(fs, path, MANIFEST_MAX_BYTES, "legacy.manifest.read");
  if (data === undefined) return 0;
  checkValue(path, v2ManifestSchema, parseJson(path, data));
  return data.length;
}
