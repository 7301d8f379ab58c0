import { join } from "node:path";
import { BackupError, StoreError } from "../core/errors.ts";
import type { Clock, FileSystem, Ids, Logger, OwnershipLock } from "../core/ports/platform.ts";
import { STORE_ENTRIES } from "../core/store-files.ts";
import type { BackupReport } from "../core/wire.ts";
import { createClock } from "../platform/clock.ts";
import { createFileSystem } from "../platform/filesystem.ts";
import { createIds } from "../platform/ids.ts";
import { ownershipLock } from "../store/ownership.ts";
import { writeBackup } from "./backup.ts";
import { FOLDER_MODE } from "./backup-format.ts";
import { readRestored } from "./restored.ts";
import { BACKUPS_FOLDER, HOST_LOCK } from "./state-entries.ts";
import { makeStateFolder } from "./state-folder.ts";

export interface StatePlaces {
  readonly hostDir: string;
  /** Absent when continuations are off. */
  readonly stateDir?: string | undefined;
}

/**
 * Backs up the state of a host that does not run, under the locks of both stores. "running" when a host owns it: then
 * only that host can make one. Rejects with a `BackupError`, or `store_owned` when another program has the
 * continuation state. What an interrupted restore left is refused: its copy would not say so any more.
 */
export async function backupStoppedHost(
  places: StatePlaces,
  target: string,
): Promise<BackupReport | "running"> {
  const fs = createFileSystem();
  const clock = createClock();
  const { hostDir, stateDir } = places;
  const locks: OwnershipLock[] = [];
  try {
    const exists = (path: string | undefined) => path !== undefined && fs.lstat(path, "backup") !== undefined;
    if (!exists(hostDir) && !exists(stateDir)) {
      throw new BackupError(
        "backup_refused",
        `there is no state at ${hostDir} yet, so there is nothing to back up`,
      );
    }
    // State of an older runtime alone, before the first start: the lock needs a place.
    if (!exists(hostDir)) makeStateFolder(fs, hostDir);
    const lock = ownershipLock(fs, clock, process.pid);
    try {
      locks.push(lock(join(hostDir, HOST_LOCK)));
    } catch (error) {
      if (error instanceof StoreError && error.code === "store_owned") return "running";
      throw error;
    }
    readRestored(fs, hostDir);
    const owned = exists(stateDir) ? stateDir : undefined;
    if (owned !== undefined) locks.push(lock(join(owned, STORE_ENTRIES.owner)));
    return await writeBackup({ fs, hostDir, stateDir: owned }, target, { clock, ids: createIds() });
  } finally {
    for (const lock of locks.reverse()) lock.release();
    await fs.close?.();
  }
}

const BEFORE_MIGRATION = "before-migration-";

export interface AutomaticBackupDeps {
  readonly fs: FileSystem;
  readonly clock: Clock;
  readonly ids: Ids;
  readonly logger: Logger;
  readonly places: StatePlaces;
}

/**
 * What the host hands to the opening of the store as `beforeMigration`: a tar in `backups/` of the host's folder, made
 * before the first record is converted. Call it while both locks are held and the ledger is not open. An attempt that
 * goes on after a crash finds the backup of the first one and makes no other.
 */
export function backupBeforeMigration(deps: AutomaticBackupDeps) {
  const { fs, clock, ids, logger, places } = deps;
  return async ({ resumed }: { readonly resumed: boolean }): Promise<void> => {
    const folder = join(places.hostDir, BACKUPS_FOLDER);
    const label = "backup.automatic";
    fs.runSync([
      { op: "mkdir", path: folder, mode: FOLDER_MODE, existsOk: true, label },
      { op: "syncDir", path: places.hostDir, label },
    ]);
    const earlier = fs.list(folder, label)?.find((name) => name.startsWith(BEFORE_MIGRATION));
    if (resumed && earlier !== undefined) return;
    const stamp = new Date(clock.now()).toISOString().replace(/[:.]/g, "-");
    const target = join(folder, `${BEFORE_MIGRATION}${stamp}.tar`);
    const { bytes, files } = await writeBackup({ fs, ...places }, target, { clock, ids });
    logger.info("the state is backed up before it is converted from an older format", {
      path: target,
      bytes,
      files,
    });
  };
}
