import { join } from "node:path";
import type { RestoreHold } from "../continuation/hold.ts";
import { type Restored, restoredSchema } from "../core/backup.ts";
import { BackupError } from "../core/errors.ts";
import { fileJson } from "../core/json.ts";
import { MIB } from "../core/limits.ts";
import type { Clock, FileStep, FileSystem, Logger } from "../core/ports/platform.ts";
import type { TurnStore } from "../core/ports/turns.ts";
import { readSecureFile, replaceSteps } from "../core/secure-files.ts";
import { RESTORED_FILE } from "./state-entries.ts";

/**
 * The mark of a restored state, owner-only in the host's folder, until nothing is held any more.
 *
 * I1. It is the first file that a restore writes, with `complete: false`, and its last change says `complete: true`:
 *     no crash leaves half a state that would start.
 */

const MAX_BYTES = 128 * MIB;
const LABEL = "restored";

export function restoredPath(hostDir: string): string {
  return join(hostDir, RESTORED_FILE);
}

/**
 * The mark, or undefined when this state was never restored. Throws `restore_incomplete` for what an interrupted restore left,
 * `backup_invalid` for a damaged file: without it nobody knows what must not happen twice.
 */
export function readRestored(fs: FileSystem, hostDir: string): Restored | undefined {
  const path = restoredPath(hostDir);
  const data = readSecureFile(fs, path, MAX_BYTES, LABEL);
  if (data === undefined) return undefined;
  let value: unknown;
  try {
    value = JSON.parse(Buffer.from(data).toString("utf8"));
  } catch {
    value = undefined;
  }
  const parsed = restoredSchema.safeParse(value);
  if (!parsed.success) {
    throw new BackupError(
      "backup_invalid",
      `${path} is damaged: it says what waits for a release after the restore; restore the backup again into another folder`,
    );
  }
  if (!parsed.data.complete) {
    throw new BackupError(
      "restore_incomplete",
      `a restore into ${hostDir} was interrupted: move away what is there, and restore again`,
    );
  }
  return parsed.data;
}

/** Puts the mark in place, durably; `undefined` takes it away. */
export function restoredSteps(hostDir: string, next: Restored | undefined): FileStep[] {
  const path = restoredPath(hostDir);
  const change: FileStep[] =
    next === undefined
      ? [{ op: "unlink", path, missingOk: true, label: LABEL }]
      : [
          { op: "unlink", path: join(hostDir, `.${RESTORED_FILE}.tmp`), missingOk: true, label: LABEL },
          ...replaceSteps(path, join(hostDir, `.${RESTORED_FILE}.tmp`), fileJson(next), LABEL),
        ];
  return [...change, { op: "syncDir", path: hostDir, label: LABEL }];
}

/**
 * What a start does with a restored state before anything else: it ends the turns that were unfinished in the backup,
 * because they may have been carried out after it, and gives the hold of continuations. Repeated after a crash.
 */
export async function holdRestored(deps: {
  readonly fs: FileSystem;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly turns: TurnStore;
  readonly hostDir: string;
  readonly restored: Restored;
}): Promise<RestoreHold> {
  const { fs, clock, logger, turns, hostDir } = deps;
  let mark = deps.restored;
  if (!mark.turnsEnded) {
    const unfinished = await turns.unfinishedTurns();
    const message =
      "The state of this host was restored from a backup. This request was not finished then and may have been " +
      "carried out afterwards, so it is not repeated; ask again if it is still wanted.";
    for (const { turnId } of unfinished) {
      const now = new Date(clock.now()).toISOString();
      await turns.endTurn(turnId, { status: "failed", code: "restored_from_backup", message, now });
    }
    mark = { ...mark, turnsEnded: true };
    fs.runSync(restoredSteps(hostDir, mark));
    logger.warn("the state was restored from a backup; what was unfinished in it waits for a release", {
      backupCreatedAt: mark.backupCreatedAt,
      turnsEnded: unfinished.length,
      held: mark.held.length,
    });
  }
  return {
    held: mark.held,
    async keep(held) {
      mark = { ...mark, held: [...held] };
      await fs.run(restoredSteps(hostDir, held.length === 0 ? undefined : mark));
      if (held.length === 0) logger.info("nothing is held any more after the restore");
    },
  };
}
