import { SECOND_MS } from "../../core/limits.ts";
import type { Clock, Logger } from "../../core/ports/platform.ts";

/** Where a migration stands. Phases come in this order; those with nothing to do are left out. */
export type MigrationPhase = "reading v2" | "reading v1" | "backing up" | "finishing" | "fencing" | "writing";

export interface MigrationProgress {
  readonly phase: MigrationPhase;
  readonly done: number;
  readonly total: number;
  readonly unit: "records" | "bytes";
}

export type OnMigrationProgress = (progress: MigrationProgress) => void;

const LOG_INTERVAL_MS = 5 * SECOND_MS;

/** Progress as log lines: the beginning of a phase, and at most one line in five seconds for a long one. */
export function logProgress(logger: Logger, clock: Clock): OnMigrationProgress {
  let phase: MigrationPhase | undefined;
  let loggedMs = 0;
  return (progress) => {
    const nowMs = clock.now();
    if (progress.phase === phase && nowMs - loggedMs < LOG_INTERVAL_MS) return;
    phase = progress.phase;
    loggedMs = nowMs;
    const { done, total, unit } = progress;
    logger.info("older state is being converted", { phase, ...(total === 0 ? {} : { done, total, unit }) });
  };
}
