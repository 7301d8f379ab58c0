import { basename, dirname, join, sep } from "node:path";
import { type BackupFile, HOST_PART, type Restored, STATE_PART } from "../core/backup.ts";
import { sha256Hex, sha256Stream } from "../core/digest.ts";
import { AppError, BackupError, StoreError } from "../core/errors.ts";
import {
  type Clock,
  FileFault,
  type FileStep,
  type FileSystem,
  type OwnershipLock,
} from "../core/ports/platform.ts";
import { STORE_ENTRIES } from "../core/store-files.ts";
import { createClock } from "../platform/clock.ts";
import { createFileSystem } from "../platform/filesystem.ts";
import { createSequentialFile } from "../platform/sequential-file.ts";
import { unsettledIds } from "../store/copy.ts";
import { syncNameOf } from "../store/durable-name.ts";
import { ownershipLock } from "../store/ownership.ts";
import { FILE_MODE, FOLDER_MODE, type Pause, pauser } from "./backup-format.ts";
import type { StatePlaces } from "./backup-offline.ts";
import { type BackupReader, openBackup, requireSame, verifyBackup } from "./backup-reader.ts";
import { requireSound } from "./backup-verify.ts";
import { removeTree } from "./remove-tree.ts";
import { restoredSteps } from "./restored.ts";
import { HOST_LOCK, RESTORED_FILE } from "./state-entries.ts";

/**
 * Owns: putting a backup in place as the state of a host, held (restored.ts).
 * Does not own: what the hold means when that host starts (continuation/hold.ts).
 *
 * I1. Every digest is checked before anything is written, and again with what is written.
 * I2. Only empty or missing folders are filled, which is so decided under their locks; what fails half way is taken
 *     away again, but only out of folders whose lock we took. What a crash leaves at any moment does not start: the
 *     mark says `complete: false`, and the secret, without which no store opens, is the last to come and first to go.
 */

export interface RestoreReport {
  readonly hostDir: string;
  readonly stateDir: string;
  readonly backupCreatedAt: string;
  readonly files: number;
  readonly records: number;
  /** Continuations that wait for a proof or a release. */
  readonly held: number;
}

const LABEL = "restore";

/**
 * Restores the backup at the absolute path `source`. Rejects with a `BackupError`: `backup_invalid` for the backup,
 * `restore_refused` for the target, naming the way out.
 */
export async function restoreBackup(
  source: string,
  places: Required<StatePlaces>,
  fs: FileSystem = createFileSystem(),
): Promise<RestoreReport> {
  const clock = createClock();
  const { hostDir, stateDir } = places;
  if (stateDir === undefined)
    throw new BackupError("restore_refused", "the continuation state needs a folder");
  try {
    const reader = openBackup(fs, source);
    const pause = pauser(clock);
    await verifyBackup(reader, pause);
    requireEmpty(fs, clock, hostDir, join(hostDir, HOST_LOCK));
    requireEmpty(fs, clock, stateDir, join(stateDir, STORE_ENTRIES.owner));
    return await fill(fs, clock, reader, { hostDir, stateDir }, pause);
  } catch (error) {
    if (error instanceof BackupError || !(error instanceof AppError || error instanceof FileFault))
      throw error;
    throw new BackupError("restore_refused", `nothing was restored: ${error.message}`, { cause: error });
  } finally {
    await fs.close?.();
  }
}

function requireEmpty(fs: FileSystem, clock: Clock, folder: string, lockPath: string): void {
  const stat = fs.lstat(folder, LABEL);
  if (stat === undefined) return;
  if (stat.kind !== "directory") {
    throw new BackupError("restore_refused", `${folder} is a ${stat.kind}, not a folder`);
  }
  if ((fs.list(folder, LABEL) ?? []).length === 0) return;
  if (fs.lstat(lockPath, LABEL) !== undefined && isOwned(fs, clock, lockPath)) {
    throw new BackupError(
      "restore_refused",
      `a host runs on ${folder}: stop it, and restore into another folder`,
    );
  }
  throw notEmpty(folder);
}

function notEmpty(folder: string): BackupError {
  return new BackupError(
    "restore_refused",
    `${folder} is not empty; a restore replaces nothing. Move it away, or restore into another folder with --into`,
  );
}

function isOwned(fs: FileSystem, clock: Clock, path: string): boolean {
  try {
    ownershipLock(fs, clock, process.pid)(path).release();
    return false;
  } catch (error) {
    return error instanceof StoreError && error.code === "store_owned";
  }
}

async function fill(
  fs: FileSystem,
  clock: Clock,
  reader: BackupReader,
  { hostDir, stateDir }: { hostDir: string; stateDir: string },
  pause: Pause,
): Promise<RestoreReport> {
  const { manifest } = reader;
  const made: string[] = [];
  const seen = new Set<string>();
  const folder = (path: string): void => {
    if (seen.has(path)) return;
    seen.add(path);
    if (fs.lstat(path, LABEL) !== undefined) {
      syncNameOf(path, { fs, label: LABEL });
      return;
    }
    folder(dirname(path));
    fs.runSync([
      { op: "mkdir", path, mode: FOLDER_MODE, existsOk: false, label: LABEL },
      { op: "syncDir", path: dirname(path), label: LABEL },
    ]);
    made.push(path);
  };
  const owned: Owned[] = [];
  /** Takes the folder, made if missing, and only then looks whether it still is empty. */
  const own = (path: string, lockName: string): void => {
    folder(path);
    const lockPath = join(path, lockName);
    const lock = ownershipLock(fs, clock, process.pid)(lockPath);
    try {
      const foreign = (fs.list(path, LABEL) ?? []).filter((name) => !isOurs(join(path, name), made));
      if (foreign.length > 0) throw notEmpty(path);
    } catch (error) {
      lock.release();
      throw error;
    }
    owned.push({ folder: path, lockPath, lock });
    fs.runSync([{ op: "chmod", path, mode: FOLDER_MODE, label: LABEL }]);
  };
  const mark: Restored = {
    schemaVersion: 1,
    complete: false,
    restoredAt: new Date(clock.now()).toISOString(),
    backupCreatedAt: manifest.createdAt,
    turnsEnded: false,
    held: [],
  };
  try {
    own(hostDir, HOST_LOCK);
    fs.runSync(restoredSteps(hostDir, mark));
    own(stateDir, STORE_ENTRIES.owner);

    const written = new Map<string, string[]>();
    let finish: (() => void) | undefined;
    for (const { file, chunks } of reader.files()) {
      const path = placeOf(file, hostDir, stateDir);
      folder(dirname(path));
      const siblings = written.get(dirname(path)) ?? [];
      siblings.push(path);
      written.set(dirname(path), siblings);
      if (file.path === `${STATE_PART}/${STORE_ENTRIES.secret}`) {
        const secret = Buffer.concat([...chunks()]);
        requireSame(reader.source, file, secret.length, sha256Hex(secret));
        finish = () => copy(reader.source, file, [secret], path);
      } else copy(reader.source, file, chunks(), path);
      await pause();
    }
    await fs.run(syncSteps(written, finish === undefined ? undefined : stateSecret(stateDir)));
    finish?.();
    await fs.run([
      ...(finish === undefined ? [] : [{ op: "sync", path: stateSecret(stateDir), label: LABEL } as const]),
      { op: "syncDir", path: stateDir, label: LABEL },
    ]);
    await requireSound(fs, { hostDir, stateDir }, manifest, pause);
    const held = unsettledIds(fs, stateDir, mark.restoredAt);
    fs.runSync(restoredSteps(hostDir, { ...mark, complete: true, held }));
    const { files, records, createdAt } = manifest;
    return { hostDir, stateDir, backupCreatedAt: createdAt, files: files.length, records, held: held.length };
  } catch (error) {
    await takeAway(fs, { hostDir, stateDir }, owned, made);
    throw error;
  } finally {
    for (const { lock } of owned.reverse()) lock.release();
  }
}

/** A folder whose lock we hold, and that was empty when we took it. */
interface Owned {
  readonly folder: string;
  readonly lockPath: string;
  readonly lock: OwnershipLock;
}

const LOCKS: readonly string[] = [HOST_LOCK, STORE_ENTRIES.owner].flatMap((name) => [
  name,
  `${name}-journal`,
]);

function isOurs(path: string, made: readonly string[]): boolean {
  const name = basename(path);
  return LOCKS.includes(name) || name === RESTORED_FILE || made.includes(path);
}

const stateSecret = (stateDir: string) => join(stateDir, STORE_ENTRIES.secret);

function placeOf(file: BackupFile, hostDir: string, stateDir: string): string {
  const [part, ...names] = file.path.split("/");
  return join(part === HOST_PART ? hostDir : stateDir, ...names);
}

function copy(source: string, file: BackupFile, pieces: Iterable<Uint8Array>, path: string): void {
  const digest = sha256Stream();
  let bytes = 0;
  const out = createSequentialFile(path, FILE_MODE, LABEL);
  try {
    for (const piece of pieces) {
      out.write(piece);
      digest.update(piece);
      bytes += piece.length;
    }
  } finally {
    out.close();
  }
  requireSame(source, file, bytes, digest.hex());
}

/** Data of all files but `later`, then the names. */
function syncSteps(written: ReadonlyMap<string, readonly string[]>, later: string | undefined): FileStep[] {
  return [...written].flatMap(([folder, paths]): FileStep[] => [
    { op: "syncFiles", folder, paths: paths.filter((path) => path !== later), label: LABEL },
    { op: "syncDir", path: folder, label: LABEL },
  ]);
}

/**
 * Empties the folders that we own, and removes those that we made unless somebody put something there meanwhile.
 * The mark goes when nothing is left that could start, and the locks are let go of after that.
 */
async function takeAway(
  fs: FileSystem,
  { hostDir, stateDir }: { hostDir: string; stateDir: string },
  owned: readonly Owned[],
  made: readonly string[],
): Promise<void> {
  const ownsState = owned.some(({ folder }) => folder === stateDir);
  if (ownsState) {
    await fs.run([
      { op: "unlink", path: stateSecret(stateDir), missingOk: true, label: LABEL },
      { op: "syncDir", path: stateDir, label: LABEL },
    ]);
  }
  for (const { folder } of [...owned].reverse()) {
    for (const name of fs.list(folder, LABEL) ?? []) {
      const path = join(folder, name);
      // The other folder, when it is inside of this one, is emptied by itself, and only if it is ours.
      const holdsOther = [hostDir, stateDir].some((other) => other === path || other.startsWith(path + sep));
      if (LOCKS.includes(name) || name === RESTORED_FILE || holdsOther) continue;
      await removeTree(fs, path, LABEL);
    }
    await fs.run([{ op: "syncDir", path: folder, label: LABEL }]);
  }
  if (owned.some(({ folder }) => folder === hostDir)) await fs.run(restoredSteps(hostDir, undefined));
  for (const { lockPath, lock } of [...owned].reverse()) {
    const unlink: FileStep = { op: "unlink", path: lockPath, missingOk: true, label: LABEL };
    try {
      // While it is held, or the file of the next owner could be the one that goes.
      fs.runSync([unlink]);
      lock.release();
    } catch (error) {
      if (!(error instanceof FileFault)) throw error;
      // Windows removes no open file.
      lock.release();
      fs.runSync([unlink]);
    }
  }
  for (const path of [...made].reverse()) {
    if (fs.lstat(path, LABEL) === undefined) continue;
    if ((fs.list(path, LABEL) ?? []).length === 0) fs.runSync([{ op: "rmdir", path, label: LABEL }]);
  }
}
