import { errorText } from "../core/errors.ts";
import { STOP_TIMEOUT_MS } from "../core/limits.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";
import type { ContinuationStore } from "../core/ports/store.ts";
import type { ContinuationRecord } from "../core/record.ts";
import type { Ledger } from "./ledger.ts";

/**
 * Owns: which due record is worked on when. Does not own: what the work is (`process`).
 *
 * I1. At most `maxConcurrent` records at once, oldest `updatedAt` first, each at most once at a time.
 * I2. It wakes on durable changes and on the next due time or deadline; nothing is polled.
 * I3. A record that is being worked on here is neither expired nor picked again; its job sees to its deadline.
 */
export interface Worker {
  start(): void;
  /** Starts what is due now and waits until it has ended. For hosts and tests that drive time themselves. */
  processDue(limit: number): Promise<number>;
  /** Starts nothing new and waits for running work; after the stop time-out it is signalled to stop. */
  stop(): Promise<void>;
  isWorkingOn(continuationId: string): boolean;
}

interface WorkerDeps {
  readonly store: ContinuationStore;
  readonly ledger: Ledger;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly maxConcurrent: number;
  readonly process: (record: ContinuationRecord, stop: AbortSignal) => Promise<void>;
}

const OVERDUE_BATCH = 100;

export function createWorker(deps: WorkerDeps): Worker {
  const { store, ledger, clock, logger } = deps;
  const running = new Map<string, Promise<void>>();
  const stopSignal = new AbortController();
  let started = false;
  let stopping = false;
  let ticking = false;
  let again = false;
  let cancelTimer: () => void = () => {};
  let unsubscribe: () => void = () => {};

  const launch = (record: ContinuationRecord): Promise<void> => {
    const job = deps
      .process(record, stopSignal.signal)
      .catch((error: unknown) => {
        logger.error("continuation work failed", {
          continuationId: record.continuationId,
          error: errorText(error),
        });
      })
      .finally(() => {
        running.delete(record.continuationId);
        wake();
      });
    running.set(record.continuationId, job);
    return job;
  };

  const pick = (limit: number): ContinuationRecord[] =>
    store.durable
      .due(clock.now(), limit + running.size)
      .filter((record) => !running.has(record.continuationId))
      .slice(0, limit);

  const expireOverdue = async () => {
    for (const record of store.durable.overdue(clock.now(), OVERDUE_BATCH + running.size)) {
      if (!running.has(record.continuationId)) await ledger.apply(record.continuationId, { kind: "expire" });
    }
  };

  const schedule = () => {
    cancelTimer();
    const now = clock.now();
    const times = [store.durable.nextDueAt(), store.durable.nextDeadlineAt()];
    // What is already past is running or waits for a slot: the end of a job wakes us.
    const future = times.filter((time): time is number => time !== undefined && time > now);
    if (future.length > 0) {
      cancelTimer = clock.timer(Math.min(...future) - now, wake);
    }
  };

  const tick = async () => {
    if (ticking) {
      again = true;
      return;
    }
    ticking = true;
    try {
      do {
        again = false;
        await expireOverdue();
        if (stopping) return;
        for (const record of pick(deps.maxConcurrent - running.size)) void launch(record);
      } while (again);
      schedule();
    } catch (error) {
      logger.error("the continuation worker can't go on", { error: errorText(error) });
    } finally {
      ticking = false;
    }
  };

  const wake = () => {
    if (started && !stopping) void tick();
  };

  return {
    start() {
      started = true;
      unsubscribe = store.onDurable(wake);
      wake();
    },

    async processDue(limit) {
      await expireOverdue();
      const records = pick(Math.min(limit, deps.maxConcurrent - running.size));
      await Promise.all(records.map(launch));
      return records.length;
    },

    async stop() {
      stopping = true;
      unsubscribe();
      cancelTimer();
      const drained = Promise.all(running.values());
      const cancel = clock.timer(STOP_TIMEOUT_MS, () => stopSignal.abort());
      await drained;
      cancel();
    },

    isWorkingOn: (continuationId) => running.has(continuationId),
  };
}
