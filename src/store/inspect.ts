import { join, sep } from "node:path";
import { type ErrorCode, StoreError } from "../core/errors.ts";
import { KIB, RECORD_MAX_BYTES, SNAPSHOT_MAX_BYTES, TRANSACTION_MAX_BYTES } from "../core/limits.ts";
import { type FileAhead, FileFault, type FileStep, type FileSystem } from "../core/ports/platform.ts";
import { type ContinuationRecord, recordFileName } from "../core/record.ts";
import { inspectFolder, isTemporary, readSecureFile, unsafe } from "../core/secure-files.ts";
import {
  type ActivationMarker,
  GUARD_FILE,
  STORE_ENTRIES,
  type StoreManifest,
  transactionFrameSchema,
} from "../core/store-files.ts";
import { readMarker } from "./activation.ts";
import { checkRecord, checkValue, corrupt, parseJson } from "./codec.ts";
import { readGuard } from "./guard.ts";
import { readManifest } from "./manifest.ts";
import type { StorePaths } from "./paths.ts";
import { createRecordTable, type RecordTable } from "./record-table.ts";
import { readSecret, type SecretFile } from "./secret.ts";
import { atOnce, SLICE_FILES, type Slices } from "./slices.ts";

/**
 * Owns: reading a whole state directory without changing anything in it.
 * Does not own: what follows from it. Opening (open.ts) stops at the first problem; the check (check.ts) collects all.
 *
 * I1. Nothing is written, created, repaired or locked here.
 * I2. The transaction lies over the record files: a file that it replaces or deletes is not read.
 */

export interface Problem {
  readonly path: string;
  readonly code: ErrorCode;
  readonly message: string;
  /** What the system said, when it did not show the file. */
  readonly errno?: string;
}

export interface Inspection {
  readonly exists: boolean;
  /** Folders that have to be made, and modes that have to be set right. */
  readonly missingFolders: string[];
  readonly repairs: FileStep[];
  readonly temporaries: string[];
  readonly manifest: StoreManifest | undefined;
  readonly guard: boolean;
  readonly secret: SecretFile;
  readonly transaction: InspectedTransaction | undefined;
  /** Record files overlaid with the transaction. */
  readonly records: RecordTable;
  readonly markers: { path: string; marker: ActivationMarker }[];
  /** Snapshot files, digest to size. */
  readonly blobs: Map<string, number>;
  /** Paths of older formats. */
  readonly legacy: string[];
}

export interface InspectedTransaction {
  readonly writes: ContinuationRecord[];
  readonly deletes: string[];
  readonly data: Uint8Array;
}

/** Snapshots; whatever else is in their folder is not looked at. */
export const BLOB_NAME = /^[0-9a-f]{64}\.json$/;

/** Reads everything; `report` may throw to stop at the first problem. */
export function inspectState(
  fs: FileSystem,
  paths: StorePaths,
  report: (problem: Problem) => void,
): Inspection {
  return atOnce(inspecting(fs, paths, report));
}

/** The same in pieces. */
export function* inspecting(
  fs: FileSystem,
  paths: StorePaths,
  report: (problem: Problem) => void,
): Slices<Inspection> {
  const missingFolders: string[] = [];
  const repairs: FileStep[] = [];
  const temporaries: string[] = [];

  function attempt<T>(path: string, read: () => T): T | undefined {
    try {
      return read();
    } catch (error) {
      report(problemOf(path, error));
      return undefined;
    }
  }

  /** Names in a folder without temporaries; undefined when it is not there or not to be trusted. */
  function names(folder: string, label: string): string[] | undefined {
    return attempt(folder, () => {
      const { exists, repair } = inspectFolder(fs, folder, label);
      if (!exists) {
        missingFolders.push(folder);
        return undefined;
      }
      repairs.push(...repair);
      const all = fs.list(folder, label) ?? [];
      for (const name of all) if (isTemporary(name)) temporaries.push(join(folder, name));
      return all.filter((name) => !isTemporary(name)).sort();
    });
  }

  const top = names(paths.stateDir, "state");
  const recordNames = names(paths.records, "records") ?? [];
  yield;
  const blobNames = names(paths.snapshots, "snapshots") ?? [];
  const markerNames = names(paths.markers, "markers") ?? [];
  const legacyNames = top?.includes(STORE_ENTRIES.legacyRecords)
    ? (names(paths.legacyRecords, "legacy") ?? [])
    : [];
  yield;

  const manifest = attempt(paths.manifest, () => readManifest(fs, paths));
  const guard = attempt(paths.guard, () => readGuard(fs, paths)) ?? false;
  const secret = attempt(paths.secret, () => readSecret(fs, paths)) ?? { kind: "invalid" as const };
  const transaction = attempt(paths.transaction, () => readTransaction(fs, paths));

  const records = createRecordTable();
  const replaced = new Set(
    [
      ...(transaction?.writes.map((record) => record.continuationId) ?? []),
      ...(transaction?.deletes ?? []),
    ].map(recordFileName),
  );
  for (const name of recordNames) {
    if (!replaced.has(name)) continue;
    const path = join(paths.records, name);
    attempt(path, () => requireReplaceable(fs, path));
  }
  let count = 0;
  for (const { name, data } of recordFiles(
    fs,
    paths,
    recordNames.filter((it) => !replaced.has(it)),
  )) {
    if (count % SLICE_FILES === 0) yield;
    count += 1;
    const path = `${paths.records}${sep}${name}`;
    const record = attempt(path, () => readRecordFile(fs, path, name, data));
    if (record !== undefined) records.read(record);
  }
  for (const record of transaction?.writes ?? []) records.put(record);

  const markers: Inspection["markers"] = [];
  for (const name of markerNames) {
    const path = join(paths.markers, name);
    const found = attempt(path, () => readMarker(fs, paths, path));
    if (found !== undefined) markers.push({ path, marker: found.marker });
  }

  const blobs = new Map<string, number>();
  for (const [index, name] of blobNames.entries()) {
    if (index % SLICE_FILES === 0) yield;
    if (!BLOB_NAME.test(name)) continue;
    const path = join(paths.snapshots, name);
    const bytes = blobBytes(fs, path);
    if (bytes !== undefined) blobs.set(name.slice(0, -".json".length), bytes);
  }

  const legacy = legacyNames
    .filter((name) => name !== GUARD_FILE)
    .map((name) => join(paths.legacyRecords, name));
  for (const name of [
    STORE_ENTRIES.legacyManifest,
    STORE_ENTRIES.legacyTransaction,
    STORE_ENTRIES.legacyMonolith,
  ]) {
    if (top?.includes(name)) legacy.push(join(paths.stateDir, name));
  }

  return {
    exists: top !== undefined,
    missingFolders,
    repairs,
    temporaries,
    manifest,
    guard,
    secret,
    transaction,
    records,
    markers,
    blobs,
    legacy,
  };
}

/**
 * What a blob counts for in the quota; undefined when it is gone. Damage, even one that the system reports for the name
 * alone, is found when the blob is read, and harms only who refers to it (store-format.md §9).
 */
function blobBytes(fs: FileSystem, path: string): number | undefined {
  try {
    const stat = fs.lstat(path, "snapshots");
    return stat === undefined ? undefined : Math.min(stat.size, SNAPSHOT_MAX_BYTES);
  } catch (error) {
    if (!(error instanceof FileFault)) throw error;
    return SNAPSHOT_MAX_BYTES;
  }
}

/** Whatever the transaction replaces or deletes need not be readable, but no rename or unlink replaces a folder. */
function requireReplaceable(fs: FileSystem, path: string): void {
  if (fs.lstat(path, "record.replaced")?.kind === "directory") {
    throw unsafe(path, "must be a regular file, but it is a directory");
  }
}

/** Where record files are read to: each is a text before the next is read. */
const SCRATCH = Buffer.alloc(64 * KIB);

const RECORD_READ = "record.read";

/** The files of these names, some of them read already. */
function recordFiles(fs: FileSystem, { records }: StorePaths, names: readonly string[]): Iterable<FileAhead> {
  return (
    fs.readAhead?.({ folder: records, names, maxBytes: RECORD_MAX_BYTES, label: RECORD_READ }) ??
    names.map((name) => ({ name }))
  );
}

/** Reads one record file, unless its bytes are given. Its name must be the digest of the id inside. */
export function readRecordFile(
  fs: FileSystem,
  path: string,
  name: string,
  given?: Uint8Array,
): ContinuationRecord {
  if (!BLOB_NAME.test(name)) throw corrupt(path, "is not the name of a record file");
  const data = given ?? readSecureFile(fs, path, RECORD_MAX_BYTES, RECORD_READ, SCRATCH);
  if (data === undefined) throw unsafe(path, "disappeared while it was read");
  const record = checkRecord(path, parseJson(path, data), data.length);
  if (recordFileName(record.continuationId) !== name) {
    throw corrupt(path, "does not have the name that belongs to the continuation id in it");
  }
  return record;
}

export function readTransaction(fs: FileSystem, paths: StorePaths): InspectedTransaction | undefined {
  const path = paths.transaction;
  const data = readSecureFile(fs, path, TRANSACTION_MAX_BYTES, "transaction.read");
  if (data === undefined) return undefined;
  const frame = checkValue(path, transactionFrameSchema, parseJson(path, data));
  // The size of one record inside is at most that of the whole file.
  const writes = frame.writes.map((value) => checkRecord(path, value, data.length));
  const seen = new Set<string>();
  for (const id of [...writes.map((record) => record.continuationId), ...frame.deletes]) {
    if (seen.has(id)) throw corrupt(path, `names continuation ${id} twice`);
    seen.add(id);
  }
  return { writes, deletes: frame.deletes, data };
}

/** What a reader threw, as a problem of the file. Throws on what is no fault of a file. */
export function problemOf(path: string, error: unknown): Problem {
  if (error instanceof StoreError) return { path, code: error.code, message: error.message };
  if (error instanceof FileFault) {
    const { errno } = error;
    return { path, code: "store_unsafe_file", message: `${error.path} can't be read: ${errno}`, errno };
  }
  throw error;
}
