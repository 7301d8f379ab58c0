import { errorText } from "../core/errors.ts";
import { DEFERRAL_BASE_MS, DEFERRAL_CAP_MS, STOP_TIMEOUT_MS, WAKE_MAX_MS } from "../core/limits.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";
import type { ContinuationStore } from "../core/ports/store.ts";
import { type ContinuationRecord, isTerminal } from "../core/record.ts";
import type { Hold } from "./hold.ts";
import type { Ledger } from "./ledger.ts";
import { DEFERRED_STATES, isDeferred } from "./readiness.ts";
import type { Decider } from "./settle-delivered.ts";

/**
 * Owns: which due record is worked on when. Does not own: what the work is (`process`).
 *
 * I1. At most `maxConcurrent` records at once, oldest `updatedAt` first, each at most once at a time.
 * I2. It wakes on durable changes, on the next due time or deadline, and a minute after it looked last, because the
 *     wall time may jump; no wake-up looks at more than what is due.
 * I3. A record that is being worked on here is neither expired nor picked again; its job sees to its deadline. So is
 *     one of which a decision is under way (settle-delivered.ts), until that has ended.
 * I4. A job that changed nothing is parked: whatever went wrong, it is not picked again at once, unless its record
 *     changes. With a poisoned store nothing is picked at all.
 * I5. What is held after a restore is not picked; it expires all the same, because an expiry posts nothing.
 * I6. What was put off for a channel or the model is begun before its back-off has passed only when it was announced
 *     that something became ready, and only where it is: a look in vain writes nothing.
 */
export interface Worker {
  start(): void;
  /** Looks at once at everything that was put off. */
  announceReady(): void;
  /** Works on at most `limit` due records and waits for them; resolves with how many. 0 once it stops. */
  processDue(limit: number): Promise<number>;
  /** Starts nothing new and waits for running work; `interrupt` is called when the stop time-out has passed. */
  stop(interrupt: () => void): Promise<void>;
}

interface WorkerDeps {
  readonly store: ContinuationStore;
  readonly ledger: Ledger;
  readonly hold: Hold;
  readonly decider: Pick<Decider, "has" | "size" | "onEnd">;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly maxConcurrent: number;
  /** Whether what a record was put off for is ready now. Changes nothing. */
  readonly isReady: (record: ContinuationRecord) => boolean;
  readonly process: (record: ContinuationRecord) => Promise<void>;
}

interface Parked {
  readonly untilMs: number;
  readonly times: number;
}

const OVERDUE_BATCH = 256;

/** The order of work, as `due` of the store has it. */
function oldestFirst(a: ContinuationRecord, b: ContinuationRecord): number {
  if (a.updatedAt !== b.updatedAt) return a.updatedAt < b.updatedAt ? -1 : 1;
  return a.continuationId < b.continuationId ? -1 : 1;
}

export function createWorker(deps: WorkerDeps): Worker {
  const { store, ledger, hold, decider, clock, logger } = deps;
  const running = new Map<string, Promise<void>>();
  const parked = new Map<string, Parked>();
  /** What was put off and may go on before its time, oldest first. A version that is no longer the durable one is void. */
  let early: ContinuationRecord[] = [];
  let announcements = 0;
  let started = false;
  let stopping = false;
  let ticking = false;
  let again = false;
  let cancelTimer: () => void = () => {};
  const unsubscribe = store.onDurable((changed) => {
    for (const id of changed) parked.delete(id);
    wake();
  });

  hold.onRelease(() => wake());
  decider.onEnd(() => wake());

  const launch = (record: ContinuationRecord): Promise<void> => {
    const id = record.continuationId;
    const heard = announcements;
    const job = deps
      .process(record)
      .catch((error: unknown) => {
        logger.error("continuation work failed", { continuationId: id, error: errorText(error) });
      })
      .finally(() => {
        running.delete(id);
        // Durable is read only now: a commit under way at the start may have changed it.
        const left = store.durable.get(id);
        if (left === record) park(id);
        // Announced between the job's look and what it wrote: nobody else would notice.
        if (left !== undefined && heard !== announcements) hurry([left]);
        wake();
      });
    running.set(id, job);
    return job;
  };

  const park = (id: string) => {
    const times = (parked.get(id)?.times ?? 0) + 1;
    const delayMs = Math.min(DEFERRAL_CAP_MS, DEFERRAL_BASE_MS * 2 ** Math.min(times - 1, 20));
    parked.set(id, { untilMs: clock.now() + delayMs, times });
  };

  /** Nothing is begun with it now: a job, a decision or its back-off comes first. */
  const isTaken = (id: string, now: number) =>
    running.has(id) || decider.has(id) || (parked.get(id)?.untilMs ?? 0) > now;

  const takenAtMost = () => running.size + decider.size + parked.size;

  const hurry = (records: readonly ContinuationRecord[]) => {
    const now = clock.now();
    early = [...early, ...records.filter((record) => isDeferred(record, now))].sort(oldestFirst);
  };

  const mayBegin = ({ continuationId, deadline }: ContinuationRecord, now: number) =>
    !hold.has(continuationId) && !isTaken(continuationId, now) && now < Date.parse(deadline);

  const goesOnEarly = (record: ContinuationRecord, now: number) =>
    store.durable.get(record.continuationId) === record &&
    isDeferred(record, now) &&
    mayBegin(record, now) &&
    deps.isReady(record);

  const pick = (limit: number, now: number): ContinuationRecord[] => {
    if (limit <= 0) return [];
    const due = store.durable
      .due(now, limit + takenAtMost() + hold.size)
      .filter((record) => mayBegin(record, now));
    const picked: ContinuationRecord[] = [];
    while (picked.length < limit) {
      const [nextDue] = due;
      const [nextEarly] = early;
      if (nextEarly !== undefined && (nextDue === undefined || oldestFirst(nextEarly, nextDue) < 0)) {
        early.shift();
        if (goesOnEarly(nextEarly, now)) picked.push(nextEarly);
      } else if (nextDue !== undefined) {
        due.shift();
        picked.push(nextDue);
      } else break;
    }
    return picked;
  };

  const expireOverdue = async (now: number) => {
    for (;;) {
      // Set back meanwhile: what is parked by the new time counts as free by the old one, round and round.
      if (clock.now() < now) return;
      const overdue = store.durable.overdue(now, OVERDUE_BATCH + takenAtMost());
      const ids = overdue.map((record) => record.continuationId).filter((id) => !isTaken(id, now));
      if (ids.length === 0) return;
      await ledger.applyAll(ids, () => ({ kind: "expire" }));
      // One that can't be expired must not hold the others up for ever.
      for (const id of ids) {
        const record = store.durable.get(id);
        if (record !== undefined && !isTerminal(record)) park(id);
      }
    }
  };

  /** The first time after `now` at which there is something to do. */
  const nextAfter = (now: number): number => {
    // What is already past is running, parked or waits for a slot; the end of a job wakes us.
    const times = [store.durable.nextDueAt(now), store.durable.nextDeadlineAt(now)];
    for (const { untilMs } of parked.values()) if (untilMs > now) times.push(untilMs);
    return Math.min(...times.map((time) => time ?? Number.POSITIVE_INFINITY));
  };

  const tick = async () => {
    if (ticking) {
      again = true;
      return;
    }
    ticking = true;
    try {
      let next: number;
      do {
        again = false;
        if (store.fault() !== undefined) return;
        // One time for all of a round: what passes while it runs is left for the next one, and not for nobody.
        const now = clock.now();
        await expireOverdue(now);
        if (stopping) return;
        for (const record of pick(deps.maxConcurrent - running.size, now)) void launch(record);
        next = nextAfter(now);
      } while (again || next <= clock.now());
      cancelTimer();
      if (next !== Number.POSITIVE_INFINITY) {
        cancelTimer = clock.timer(Math.min(WAKE_MAX_MS, next - clock.now()), wake);
      }
    } catch (error) {
      logger.error("the continuation worker can't go on", { error: errorText(error) });
    } finally {
      ticking = false;
    }
  };

  const wake = () => {
    if (started && !stopping) void tick();
  };

  const announceReady = () => {
    announcements += 1;
    early = [];
    hurry(store.durable.inStates(DEFERRED_STATES));
    wake();
  };

  return {
    start() {
      started = true;
      wake();
    },

    announceReady,

    async processDue(limit) {
      if (stopping || store.fault() !== undefined) return 0;
      const now = clock.now();
      await expireOverdue(now);
      if (stopping) return 0;
      const records = pick(Math.min(limit, deps.maxConcurrent - running.size), now);
      await Promise.all(records.map(launch));
      return records.length;
    },

    async stop(interrupt) {
      stopping = true;
      unsubscribe();
      cancelTimer();
      const drained = Promise.all(running.values());
      const cancel = clock.timer(STOP_TIMEOUT_MS, interrupt);
      await drained;
      cancel();
    },
  };
}
