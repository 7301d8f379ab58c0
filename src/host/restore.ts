import { dirname, join } from "node:path";
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
import { ownershipLock } from "../store/ownership.ts";
import { requireSound } from "./backup.ts";
import { breathe, FILE_MODE, FOLDER_MODE } from "./backup-format.ts";
import type { StatePlaces } from "./backup-offline.ts";
import { type BackupReader, openBackup, requireSame, verifyBackup } from "./backup-reader.ts";
import { removeTree } from "./remove-tree.ts";
import { restoredSteps } from "./restored.ts";
import { HOST_LOCK } from "./state-entries.ts";

/**
 * Owns: putting a backup in place as the state of a host, held (restored.ts).
 * Does not own: what the hold means when that host starts (continuation/hold.ts).
 *
 * I1. Every digest is checked before anything is written, and again with what is written.
 * I2. Only empty or missing folders are filled; what fails half way is taken away again, and what a crash leaves does
 *     not start: the mark says `complete: false`, and the secret, without which no store opens, comes last.
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
export async function restoreBackup(source: string, places: Required<StatePlaces>): Promise<RestoreReport> {
  const fs = createFileSystem();
  const clock = createClock();
  const { hostDir, stateDir } = places;
  if (stateDir === undefined)
    throw new BackupError("restore_refused", "the continuation state needs a folder");
  try {
    const reader = openBackup(fs, source);
    await verifyBackup(reader);
    requireEmpty(fs, clock, hostDir, join(hostDir, HOST_LOCK));
    requireEmpty(fs, clock, stateDir, join(stateDir, STORE_ENTRIES.owner));
    return await fill(fs, clock, reader, { hostDir, stateDir });
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
  throw new BackupError(
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
): Promise<RestoreReport> {
  const { manifest } = reader;
  const made: string[] = [];
  const folder = (path: string): void => {
    if (fs.lstat(path, LABEL) !== undefined) return;
    folder(dirname(path));
    fs.runSync([
      { op: "mkdir", path, mode: FOLDER_MODE, existsOk: false, label: LABEL },
      { op: "syncDir", path: dirname(path), label: LABEL },
    ]);
    made.push(path);
  };
  const locks: OwnershipLock[] = [];
  const lock = ownershipLock(fs, clock, process.pid);
  const mark: Restored = {
    schemaVersion: 1,
    complete: false,
    restoredAt: new Date(clock.now()).toISOString(),
    backupCreatedAt: manifest.createdAt,
    turnsEnded: false,
    held: [],
  };
  try {
    folder(hostDir);
    fs.runSync([{ op: "chmod", path: hostDir, mode: FOLDER_MODE, label: LABEL }]);
    locks.push(lock(join(hostDir, HOST_LOCK)));
    fs.runSync(restoredSteps(hostDir, mark));
    folder(stateDir);
    fs.runSync([{ op: "chmod", path: stateDir, mode: FOLDER_MODE, label: LABEL }]);
    locks.push(lock(join(stateDir, STORE_ENTRIES.owner)));

    const written = new Map<string, string[]>();
    let finish: (() => void) | undefined;
    let pending = 0;
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
      pending += 1;
      if (pending % 256 === 0) await breathe();
    }
    await fs.run(syncSteps(written, finish === undefined ? undefined : stateSecret(stateDir)));
    finish?.();
    await fs.run([
      ...(finish === undefined ? [] : [{ op: "sync", path: stateSecret(stateDir), label: LABEL } as const]),
      { op: "syncDir", path: stateDir, label: LABEL },
    ]);
    requireSound(fs, { hostDir, stateDir });
    const held = unsettledIds(fs, stateDir, mark.restoredAt);
    fs.runSync(restoredSteps(hostDir, { ...mark, complete: true, held }));
    const { files, records, createdAt } = manifest;
    return { hostDir, stateDir, backupCreatedAt: createdAt, files: files.length, records, held: held.length };
  } catch (error) {
    // Both were empty or missing before.
    for (const held of locks.splice(0)) held.release();
    await empty(fs, [stateDir, hostDir], made);
    throw error;
  } finally {
    for (const held of locks.reverse()) held.release();
  }
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

async function empty(fs: FileSystem, folders: readonly string[], made: readonly string[]): Promise<void> {
  for (const folder of folders) {
    for (const name of fs.list(folder, LABEL) ?? []) await removeTree(fs, join(folder, name), LABEL);
  }
  for (const folder of [...made].reverse()) await removeTree(fs, folder, LABEL);
}
