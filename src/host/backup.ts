import { dirname, isAbsolute, join, relative } from "node:path";
import {
  BACKUP_MANIFEST,
  type BackupFile,
  type BackupManifest,
  HOST_PART,
  STATE_PART,
} from "../core/backup.ts";
import { sha256Hex, sha256Stream } from "../core/digest.ts";
import { AppError, BackupError } from "../core/errors.ts";
import { fileJson } from "../core/json.ts";
import { MIB } from "../core/limits.ts";
import { type Clock, FileFault, type FileStep, type FileSystem, type Ids } from "../core/ports/platform.ts";
import type { ContinuationStore } from "../core/ports/store.ts";
import { STORE_ENTRIES } from "../core/store-files.ts";
import type { BackupReport } from "../core/wire.ts";
import { checkingContinuationStore, type StoreCheck } from "../store/check.ts";
import { stateFiles, unsettledIds } from "../store/copy.ts";
import { isTemporary, readSecureFile } from "../store/secure.ts";
import { inSlices } from "../store/slices.ts";
import { checkTurns } from "../turns/check.ts";
import { copyTurns } from "../turns/copy.ts";
import {
  CHUNK_BYTES,
  FILE_MODE,
  FOLDER_MODE,
  HOST_FILES,
  HOST_FOLDERS,
  type Pause,
  pauser,
} from "./backup-format.ts";
import { packTar, publish } from "./backup-publish.ts";
import { openBackup, verifyBackup } from "./backup-reader.ts";
import { removeTree } from "./remove-tree.ts";
import { HOST_DATABASE } from "./state-entries.ts";

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
      const { manifest, warnings } = await stage(source, staging, deps, pause);
      await verifyStaged(fs, staging, pause);
      if (asTar) await packTar(fs, staging, manifest, target, deps.ids, pause);
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

function requireFree({ fs, stateDir }: BackupSource, target: string): void {
  const refuse = (problem: string) => new BackupError("backup_refused", problem);
  if (!isAbsolute(target)) throw refuse("the target of a backup must be an absolute path");
  if (fs.lstat(target, LABEL) !== undefined)
    throw refuse(`${target} exists already; a backup replaces nothing`);
  const parent = dirname(target);
  if (fs.lstat(parent, LABEL)?.kind !== "directory") throw refuse(`${parent} is not a folder; make it first`);
  const inside = stateDir === undefined ? ".." : relative(stateDir, target);
  if (!inside.startsWith("..") && !isAbsolute(inside)) {
    throw refuse(`${target} is inside the continuation state, which may hold nothing else`);
  }
}

/** Copies both stores and the files of the host into `staging`, durably, its manifest last. */
async function stage(
  source: BackupSource,
  staging: string,
  { clock, signal }: BackupDeps,
  pause: Pause,
): Promise<{ manifest: BackupManifest; warnings: string[] }> {
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
    }
    if (stateDir !== undefined && !made.has(join(staging, STATE_PART)))
      steps.push(folder(join(staging, STATE_PART)));
    await flush();
  } finally {
    capture?.release();
  }
  const manifest: BackupManifest = {
    format: "mono-agent-backup",
    schemaVersion: 1,
    createdAt,
    records,
    files,
  };
  const content = join(staging, BACKUP_MANIFEST);
  await fs.run([
    { op: "write", path: content, data: fileJson(manifest), mode: FILE_MODE, sync: true, label: LABEL },
    ...syncSteps(staging, files, made),
  ]);
  return { manifest, warnings };
}

/** Files of the host, then of the continuation state, named as in the backup. */
function* copiedFiles(
  { fs, hostDir, stateDir }: BackupSource,
  capture: ReturnType<ContinuationStore["capture"]> | undefined,
  onDamaged: (path: string) => void,
) {
  const names = [...HOST_FILES];
  for (const folder of HOST_FOLDERS) {
    const inside = (fs.list(join(hostDir, folder), LABEL) ?? []).filter((name) => !isTemporary(name)).sort();
    names.push(...inside.map((name) => `${folder}/${name}`));
  }
  for (const name of names) {
    const data = readSecureFile(fs, join(hostDir, name), HOST_FILE_MAX_BYTES, LABEL);
    if (data !== undefined) yield { path: `${HOST_PART}/${name}`, data };
  }
  if (stateDir === undefined) return;
  for (const { path, data } of stateFiles({ fs, stateDir, capture, onDamaged })) {
    yield { path: `${STATE_PART}/${path}`, data };
  }
}

/** Data of all files, one sync for each folder where the system can, then the names. */
function syncSteps(staging: string, files: readonly BackupFile[], folders: ReadonlySet<string>): FileStep[] {
  const byFolder = new Map<string, string[]>();
  for (const { path } of files) {
    const written = join(staging, ...path.split("/"));
    const siblings = byFolder.get(dirname(written)) ?? [];
    siblings.push(written);
    byFolder.set(dirname(written), siblings);
  }
  return [
    ...[...byFolder].map(([folder, paths]): FileStep => ({ op: "syncFiles", folder, paths, label: LABEL })),
    ...[...folders].reverse().map((path): FileStep => ({ op: "syncDir", path, label: LABEL })),
  ];
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

/** Digests, the store's own check, and SQLite's. Damage of one snapshot was there before and is no reason to fail. */
async function verifyStaged(fs: FileSystem, staging: string, pause: Pause): Promise<void> {
  const reader = openBackup(fs, staging);
  await verifyBackup(reader, pause);
  const places = { hostDir: join(staging, HOST_PART), stateDir: join(staging, STATE_PART) };
  const { migrationDue } = await requireSound(fs, places, reader.manifest, pause);
  // A restore needs what is unfinished in it, and state that can't be converted does not say.
  if (migrationDue) unsettledIds(fs, places.stateDir, reader.manifest.createdAt);
}

/** Rejects with `backup_invalid` when the state in these folders would not open, or is not that of the manifest. */
export async function requireSound(
  fs: FileSystem,
  { hostDir, stateDir }: { hostDir: string; stateDir: string },
  manifest: BackupManifest,
  pause: Pause,
): Promise<StoreCheck> {
  const check = await inSlices(checkingContinuationStore({ fs, stateDir }), pause);
  const finding = check.findings.find((found) => found.affects === undefined);
  if (finding !== undefined) {
    throw new BackupError(
      "backup_invalid",
      `the copy of the continuation state is not sound: ${finding.problem}`,
    );
  }
  // What a pending transaction adds and takes away is not counted in the manifest.
  const pending = manifest.files.some(({ path }) => path === `${STATE_PART}/${STORE_ENTRIES.transaction}`);
  if (!pending && check.records !== manifest.records) {
    throw new BackupError(
      "backup_invalid",
      `the copy of the continuation state has ${check.records} records, and ${manifest.records} were backed up`,
    );
  }
  const turns = checkTurns({ path: join(hostDir, HOST_DATABASE), fs });
  if (turns.kind === "corrupt" || turns.kind === "unsafe" || turns.kind === "unreadable") {
    throw new BackupError("backup_invalid", `the copy of the ledger is not sound: ${turns.detail}`);
  }
  return check;
}
