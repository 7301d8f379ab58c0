import { errorText, StoreError } from "../core/errors.ts";
import { RETENTION_SWEEP_MS } from "../core/limits.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";
import type { ContinuationStore } from "../core/ports/store.ts";

/**
 * Owns: when the store drops what has passed an age limit of retention. Opening and each commit do so too; a host may be
 * without any commit for months.
 * Does not own: what is dropped (store).
 *
 * I1. The store sweeps again an interval after the sweep before has ended. With nothing beyond a limit it writes nothing.
 * I2. None begins after `stop`, or on a store that is poisoned or closed: the next opening sweeps.
 */
export interface Sweeper {
  start(): void;
  /** A sweep under way goes on in the store until it is done or the store closes. */
  stop(): void;
}

export function createSweeper(deps: {
  readonly store: Pick<ContinuationStore, "sweep" | "fault">;
  readonly clock: Clock;
  readonly logger: Logger;
}): Sweeper {
  const { store, clock, logger } = deps;
  let cancelTimer: () => void = () => {};
  let stopped = false;

  const wait = () => {
    if (!stopped) cancelTimer = clock.timer(RETENTION_SWEEP_MS, () => void sweep());
  };

  const sweep = async () => {
    if (store.fault() !== undefined) return;
    try {
      await store.sweep(clock.now());
    } catch (error) {
      // The store has told of its own end.
      if (store.fault() !== undefined || isClosed(error)) return;
      logger.error("retention by age failed; it is tried again", { error: errorText(error) });
    }
    wait();
  };

  return {
    start: wait,
    stop() {
      stopped = true;
      cancelTimer();
    },
  };
}

function isClosed(error: unknown): boolean {
  return error instanceof StoreError && error.code === "service_stopping";
}
