import { BackupError } from "../core/errors.ts";
import type { Clock, FileSystem, Ids, Logger } from "../core/ports/platform.ts";
import type { ContinuationStore } from "../core/ports/store.ts";
import type { BackupReport } from "../core/wire.ts";
import { writeBackup } from "./backup.ts";

export interface Backups {
  /** To an absolute path that must not be there. Rejects with a `BackupError`; `backup_refused` while one is under way. */
  make(target: string): Promise<BackupReport>;
  /** Ends one under way, cleaned up, and takes no new one. */
  stop(): Promise<void>;
}

/** Backups of a running host, one at a time. */
export function createBackups(deps: {
  readonly fs: FileSystem;
  readonly clock: Clock;
  readonly ids: Ids;
  readonly logger: Logger;
  readonly hostDir: string;
  readonly stateDir: string | undefined;
  readonly store: ContinuationStore | undefined;
}): Backups {
  const { clock, ids, logger, ...source } = deps;
  let running: Promise<unknown> | undefined;
  const stopping = new AbortController();
  return {
    async make(target) {
      if (stopping.signal.aborted) throw new BackupError("backup_refused", "the host is stopping");
      if (running !== undefined) throw new BackupError("backup_refused", "another backup is under way");
      const made = writeBackup(source, target, { clock, ids, signal: stopping.signal });
      running = made.catch(() => {});
      try {
        const report = await made;
        const { path, files, bytes } = report;
        logger.info("a backup is made", { path, files, bytes });
        for (const warning of report.warnings)
          logger.warn("a backup lacks what was damaged before", { warning });
        return report;
      } finally {
        running = undefined;
      }
    },
    async stop() {
      stopping.abort();
      await running;
    },
  };
}
