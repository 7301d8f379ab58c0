import { join } from "node:path";
import { StoreError } from "../core/errors.ts";
import type { FileSystem } from "../core/ports/platform.ts";
import type { StoreCapture } from "../core/ports/store.ts";
import { isSettled, recordFileName } from "../core/record.ts";
import { isTemporary, readSecureFile } from "../core/secure-files.ts";
import { GUARD_FILE, manifestSchema, STORE_ENTRIES } from "../core/store-files.ts";
import { checkValue, encodeRecord, parseJson } from "./codec.ts";
import { BLOB_NAME, inspectState, type Problem } from "./inspect.ts";
import { hasLegacyState, readLegacy } from "./migrate/read.ts";
import { RECORD_NAME } from "./migrate/records-v2.ts";
import { storePaths } from "./paths.ts";

/**
 * Owns: which files make up a copy of a state directory, and their content; which records of one are unfinished.
 * Does not own: where the copy goes, and what of other stores belongs to it (host/backup.ts).
 *
 * I1. Of an open store the records are those of the capture, never what is in the folder now: the transaction file and
 *     the markers are not copied, because everything that they say is in those records.
 * I2. Of a store that nobody has open the files are copied as they are; the caller owns the directory meanwhile.
 * I3. The ownership database is no state, and reading it would drop its lock: it is never touched.
 * I4. Only a snapshot may be missing or damaged: that harms its own continuation, and the copy goes on.
 * I5. A name that opening ignores is not copied: it may be anything, also what no backup can hold.
 */

export interface CopiedFile {
  /** Relative to the state directory, with slashes. */
  readonly path: string;
  readonly data: string | Uint8Array;
}

/** Larger than the largest file of any format (the v1 monolith): the limits of opening judge the copy later. */
const FILE_MAX_BYTES = Number.MAX_SAFE_INTEGER;

const LABEL = "copy";

/** Files that stand alone. The manifest comes before them, and so before the guard that it may require; the secret last. */
const BEFORE_RECORDS = [
  STORE_ENTRIES.legacyManifest,
  STORE_ENTRIES.legacyTransaction,
  STORE_ENTRIES.legacyMonolith,
] as const;

export interface StateCopy {
  readonly fs: FileSystem;
  readonly stateDir: string;
  /** Of the open store; absent when nobody has it open. */
  readonly capture?: StoreCapture | undefined;
  /** Told the path of each snapshot that could not be read. */
  readonly onDamaged: (path: string) => void;
}

/**
 * The files of a copy, each read when it is asked for. Throws a `StoreError` `store_unsafe_file` that names a file
 * which must not be trusted, such as a symlink.
 */
export function* stateFiles({ fs, stateDir, capture, onDamaged }: StateCopy): Generator<CopiedFile> {
  const names = (folder: string, wanted: (name: string) => boolean = () => true) =>
    (fs.list(join(stateDir, folder), LABEL) ?? [])
      .filter((name) => !isTemporary(name) && wanted(name))
      .sort();
  const file = (path: string): CopiedFile | undefined => {
    const data = readSecureFile(fs, join(stateDir, path), FILE_MAX_BYTES, LABEL);
    return data === undefined ? undefined : { path, data };
  };
  function* folder(name: string, wanted?: (name: string) => boolean): Generator<CopiedFile> {
    for (const entry of names(name, wanted)) {
      const copied = file(`${name}/${entry}`);
      if (copied !== undefined) yield copied;
    }
  }

  const manifest = readReplacedFile(fs, join(stateDir, STORE_ENTRIES.manifest), FILE_MAX_BYTES, LABEL);
  const legacy =
    manifest !== undefined && requiresGuard(manifest)
      ? (name: string) => name === GUARD_FILE || RECORD_NAME.test(name)
      : undefined;
  // Whoever is given bytes may keep them.
  if (manifest !== undefined) yield { path: STORE_ENTRIES.manifest, data: manifest };
  for (const path of BEFORE_RECORDS) {
    const copied = file(path);
    if (copied !== undefined) yield copied;
  }
  yield* folder(STORE_ENTRIES.legacyRecords, legacy);
  if (capture === undefined) {
    yield* folder(STORE_ENTRIES.records);
    const transaction = file(STORE_ENTRIES.transaction);
    if (transaction !== undefined) yield transaction;
    yield* folder(STORE_ENTRIES.markers);
  } else {
    for (const record of capture.records) {
      const path = `${STORE_ENTRIES.records}/${recordFileName(record.continuationId)}`;
      yield { path, data: encodeRecord(record) };
    }
  }
  for (const name of names(STORE_ENTRIES.snapshots, (name) => BLOB_NAME.test(name))) {
    const path = `${STORE_ENTRIES.snapshots}/${name}`;
    let copied: CopiedFile | undefined;
    try {
      copied = file(path);
    } catch {
      onDamaged(join(stateDir, path));
    }
    if (copied !== undefined) yield copied;
  }
  const secret = file(STORE_ENTRIES.secret);
  if (secret !== undefined) yield secret;
}

/** Whether the older formats are fenced off; a manifest that can't be read is judged later, and then nothing is left out. */
function requiresGuard(manifest: Uint8Array): boolean {
  try {
    const path = STORE_ENTRIES.manifest;
    return checkValue(path, manifestSchema, parseJson(path, manifest)).rollbackGuardRequired;
  } catch (error) {
    if (!(error instanceof StoreError)) throw error;
    return false;
  }
}

/** Tries, for a file that its owner may replace between the look at it and its opening. */
const READ_TRIES = 3;

/** Reads, as `readSecureFile` does, a file that its owner replaces by renaming, also in another thread or process. */
export function readReplacedFile(
  fs: FileSystem,
  path: string,
  maxBytes: number,
  label: string,
): Uint8Array | undefined {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return readSecureFile(fs, path, maxBytes, label);
    } catch (error) {
      if (!(error instanceof StoreError) || attempt >= READ_TRIES) throw error;
    }
  }
}

/** Ids of every continuation that is not settled, of any format. The caller owns the directory; nothing is changed. */
export function unsettledIds(fs: FileSystem, stateDir: string, nowIso: string): string[] {
  const paths = storePaths(stateDir);
  const report = (problem: Problem): never => {
    throw new StoreError(problem.code, problem.message);
  };
  const inspection = inspectState(fs, paths, report);
  const { records } = hasLegacyState(fs, paths, inspection)
    ? readLegacy({ fs, paths, inspection, nowIso, report, progress: () => {} })
    : inspection;
  return [...records.live()].filter((record) => !isSettled(record)).map((record) => record.continuationId);
}
