import { dirname, isAbsolute, join } from "node:path";
import { isWithin } from "../config/places.ts";
import { BACKUP_MANIFEST, type BackupFile, HOST_PART, STATE_PART } from "../core/backup.ts";
import { sha256Hex, sha256Stream } from "../core/digest.ts";
import { AppError, BackupError } from "../core/errors.ts";
import { MIB } from "../core/limits.ts";
import { type Clock, FileFault, type FileStep, type FileSystem, type Ids } from "../core/ports/platform.ts";
import type { ContinuationStore } from "../core/ports/store.ts";
import { isTemporary } from "../core/secure-files.ts";
import type { BackupReport } from "../core/wire.ts";
import { readReplacedFile, stateFiles } from "../store/copy.ts";
import { copyTurns } from "../turns/copy.ts";
import {
  CHUNK_BYTES,
  FILE_MODE,
  FOLDER_MODE,
  HOST_FILE,
  HOST_FILES,
  HOST_FOLDERS,
  type Pause,
  pauser,
  SLICE_ENTRIES,
  type WrittenManifest,
  writtenManifest,
} from "./backup-format.ts";
import { packTar, publish } from "./backup-publish.ts";
import { verifyStaged } from "./backup-verify.ts";
import { removeTree } from "./remove-tree.ts";
import { HOST_DATABASE, RUN_FOLDERS } from "./state-entries.ts";

/**
 * Owns: making one backup of the whole state: both stores as of one instant, secret and tokens.
 * Does not own: who may ask for one, locks (backup-offline.ts), reading one back (restore.ts).
 *
 * I1. The barrier is one turn of the event loop: the ledger is copied and the committed records are noted without
 *     letting go of it, so neither store can commit between the two. Everything after that only reads what can't
 *     change any more, while the host goes on.
 * I2. A backup has its name only when it was verified: until then it is a folder or file `.….partial` without the
 *     right to be one, removed again when something fails. Nothing that exists is ever replaced.
 * I3. No symlink is followed; a file that others could have changed is refused.
 */

export interface BackupSource {
  readonly fs: FileSystem;
  readonly hostDir: string;
  /** The continuation state directory; absent when continuations are off. */
  readonly stateDir?: string | undefined;
  /** The open store of a running host; without it the caller owns both folders. */
  readonly store?: Pick<ContinuationStore, "capture"> | undefined;
}

export interface BackupDeps {
  readonly clock: Clock;
  readonly ids: Ids;
  /** Ends it early, cleaned up: the host stops. */
  readonly signal?: AbortSignal;
}

const LABEL = "backup";
const STAGING = /^\.backup-[A-Za-z0-9_-]+\.partial$/;
const STAGING_ID_BYTES = 9;
/** What is handed to the file threads at once. */
const BATCH_BYTES = 4 * MIB;
const BATCH_FILES = 256;
const HOST_FILE_MAX_BYTES = 1 * MIB;

/**
 * Writes a backup to the absolute path `target`: a tar when its name ends in `.tar`, else a folder. Rejects with a
 * `BackupError`: `backup_refused` before anything is written, `backup_failed` after it was cleaned up.
 */
export async function writeBackup(
  source: BackupSource,
  target: string,
  deps: BackupDeps,
): Promise<BackupReport> {
  const { fs, hostDir } = source;
  try {
    requireFree(source, target);
    const asTar = target.endsWith(".tar");
    // A tar may go to a disk that knows no modes, so what is checked stands beside the state itself.
    const staging = join(
      asTar ? hostDir : dirname(target),
      `.backup-${deps.ids.token(STAGING_ID_BYTES)}.partial`,
    );
    for (const name of fs.list(hostDir, LABEL) ?? []) {
      if (STAGING.test(name)) await removeTree(fs, join(hostDir, name), LABEL);
    }
    try {
      const pause = pauser(deps.clock, () => requireTime(deps.signal));
      const { written, warnings } = await stage(source, staging, deps, pause);
      const { manifest } = written;
      await verifyStaged(fs, staging, written, pause);
      if (asTar) await packTar(fs, staging, written, target, deps.ids, pause);
      else publish(fs, staging, target);
      const bytes = manifest.files.reduce((sum, file) => sum + file.bytes, 0);
      const { createdAt, records, files } = manifest;
      return { path: target, createdAt, records, files: files.length, bytes, warnings };
    } finally {
      await removeTree(fs, staging, LABEL);
    }
  } catch (error) {
    throw backupFault(error);
  }
}

function backupFault(error: unknown): unknown {
  if (error instanceof BackupError || !(error instanceof AppError || error instanceof FileFault))
    return error;
  return new BackupError("backup_failed", `the backup was not made: ${error.message}`, { cause: error });
}

function requireTime(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw new BackupError("backup_failed", "the backup was not made: the host stops");
}

function requireFree({ fs, hostDir, stateDir }: BackupSource, target: string): void {
  const refuse = (problem: string) => new BackupError("backup_refused", problem);
  if (!isAbsolute(target)) throw refuse("the target of a backup must be an absolute path");
  if (fs.lstat(target, LABEL) !== undefined)
    throw refuse(`${target} exists already; a backup replaces nothing`);
  const parent = dirname(target);
  if (fs.lstat(parent, LABEL)?.kind !== "directory") throw refuse(`${parent} is not a folder; make it first`);
  if (stateDir !== undefined && isWithin(target, stateDir)) {
    throw refuse(`${target} is inside the continuation state, which may hold nothing else`);
  }
  const runs = join(hostDir, RUN_FOLDERS);
  if (isWithin(target, runs)) throw refuse(`${target} is inside ${runs}, which every start empties`);
}

/** Copies both stores and the files of the host into `staging`, durably, its manifest last. */
async function stage(
  source: BackupSource,
  staging: string,
  { clock, signal }: BackupDeps,
  pause: Pause,
): Promise<{ written: WrittenManifest; warnings: string[] }> {
  const { fs, hostDir, stateDir } = source;
  const made = new Set<string>();
  const folder = (path: string): FileStep => {
    made.add(path);
    return { op: "mkdir", path, mode: FOLDER_MODE, existsOk: false, label: LABEL };
  };
  const host = join(staging, HOST_PART);
  fs.runSync([folder(staging), folder(host)]);
  const files: BackupFile[] = [];
  const warnings: string[] = [];
  const ledger = join(host, HOST_DATABASE);

  // The barrier: no await between these lines.
  const createdAt = new Date(clock.now()).toISOString();
  const capture = source.store?.capture();
  let records = 0;
  try {
    const hasLedger = copyTurns({ path: join(hostDir, HOST_DATABASE), target: ledger, fs });
    // End of the barrier.
    if (hasLedger)
      files.push({ path: `${HOST_PART}/${HOST_DATABASE}`, ...(await measure(fs, ledger, pause)) });

    let steps: FileStep[] = [];
    let bytes = 0;
    const flush = async () => {
      const batch = steps;
      steps = [];
      bytes = 0;
      await fs.run(batch);
      requireTime(signal);
    };
    const copies = copiedFiles(source, capture, (path) =>
      warnings.push(`${path} is damaged and not in the backup`),
    );
    for (const { path, data } of copies) {
      const content = typeof data === "string" ? Buffer.from(data, "utf8") : data;
      const written = join(staging, ...path.split("/"));
      for (const parent of [join(staging, STATE_PART), dirname(written)]) {
        if (!made.has(parent) && written.startsWith(parent)) steps.push(folder(parent));
      }
      files.push({ path, bytes: content.length, sha256: sha256Hex(content) });
      if (path.startsWith(`${STATE_PART}/records-v3/`)) records += 1;
      bytes += content.length;
      // `run` takes the bytes over, so the digest comes first.
      steps.push({ op: "write", path: written, data: content, mode: FILE_MODE, sync: false, label: LABEL });
      if (bytes >= BATCH_BYTES || steps.length >= BATCH_FILES) await flush();
      await pause();
    }
    if (stateDir !== undefined && !made.has(join(staging, STATE_PART)))
      steps.push(folder(join(staging, STATE_PART)));
    await flush();
  } finally {
    capture?.release();
  }
  const written = await writtenManifest(
    { format: "mono-agent-backup", schemaVersion: 1, createdAt, records, files },
    pause,
  );
  const content = join(staging, BACKUP_MANIFEST);
  // `run` takes the bytes over.
  const data = Buffer.from(written.data);
  await fs.run([{ op: "write", path: content, data, mode: FILE_MODE, sync: true, label: LABEL }]);
  await syncAll(fs, staging, files, made);
  return { written, warnings };
}

/** Files of the host, then of the continuation state, named as in the backup. */
function* copiedFiles(
  { fs, hostDir, stateDir }: BackupSource,
  capture: ReturnType<ContinuationStore["capture"]> | undefined,
  onDamaged: (path: string) => void,
) {
  const names = [...HOST_FILES];
  for (const folder of HOST_FOLDERS) {
    const inside = (fs.list(join(hostDir, folder), LABEL) ?? [])
      .filter((name) => HOST_FILE.test(name) && !isTemporary(name))
      .sort();
    names.push(...inside.map((name) => `${folder}/${name}`));
  }
  for (const name of names) {
    const data = readReplacedFile(fs, join(hostDir, name), HOST_FILE_MAX_BYTES, LABEL);
    if (data !== undefined) yield { path: `${HOST_PART}/${name}`, data };
  }
  if (stateDir === undefined) return;
  for (const { path, data } of stateFiles({ fs, stateDir, capture, onDamaged })) {
    yield { path: `${STATE_PART}/${path}`, data };
  }
}

/** Data of all files, few syncs for each folder where the system can, then the names. */
async function syncAll(
  fs: FileSystem,
  staging: string,
  files: readonly BackupFile[],
  folders: ReadonlySet<string>,
): Promise<void> {
  for (let from = 0; from < files.length; from += SLICE_ENTRIES) {
    const paths = files.slice(from, from + SLICE_ENTRIES).map(({ path }) => join(staging, path));
    const byFolder = Map.groupBy(paths, (path) => dirname(path));
    await fs.run(
      [...byFolder].map(([folder, paths]): FileStep => ({ op: "syncFiles", folder, paths, label: LABEL })),
    );
  }
  await fs.run([...folders].reverse().map((path): FileStep => ({ op: "syncDir", path, label: LABEL })));
}

async function measure(
  fs: FileSystem,
  path: string,
  pause: Pause,
): Promise<{ bytes: number; sha256: string }> {
  const handle = fs.open(path, LABEL);
  if (handle === undefined) throw new BackupError("backup_failed", `${path} disappeared`);
  try {
    const digest = sha256Stream();
    let bytes = 0;
    for (let piece = handle.read(CHUNK_BYTES); piece.length > 0; piece = handle.read(CHUNK_BYTES)) {
      digest.update(piece);
      bytes += piece.length;
      await pause();
    }
    return { bytes, sha256: digest.hex() };
  } finally {
    handle.close();
  }
}
