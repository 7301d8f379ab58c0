import { errorText } from "../core/errors.ts";
import type { Logger } from "../core/ports/platform.ts";
import type { ContinuationStore } from "../core/ports/store.ts";
import { type ContinuationRecord, type ContinuationState, isSettled } from "../core/record.ts";

/**
 * Owns: which continuations wait for a release after a restore. What was not settled in the backup may have been
 * synthesized and posted after it was made, and nobody here knows.
 * Does not own: where that is kept (host), how it is proved (proof.ts).
 *
 * I1. A held continuation is neither synthesized nor posted. Its claim, result, status, cancel and deadline go on: an
 *     expiry posts nothing.
 * I2. A release counts only after it is durable. What is settled, by a proof or otherwise, is held no more.
 * I3. A synthesis that was under way in the backup stays `synthesizing` while it is held; its release ends it as any
 *     restart does, because the model was asked already.
 */
export interface Hold {
  has(continuationId: string): boolean;
  ids(): string[];
  readonly size: number;
  /** Resolves when it is durable that these are held no more; then `onRelease` is told. */
  release(continuationIds: readonly string[]): Promise<void>;
  onRelease(listener: () => void): void;
  /** Makes durable what was settled meanwhile. */
  stop(): Promise<void>;
}

/** What a host that was restored hands in. */
export interface RestoreHold {
  readonly held: readonly string[];
  /** Makes it durable that only these are still held; none ends the hold. */
  keep(held: readonly string[]): Promise<void>;
}

/** States in which a held continuation waits for a proof or a release. */
const HELD_STATES: readonly ContinuationState[] = [
  "result_received",
  "synthesizing",
  "ready_to_deliver",
  "delivery_retry",
];

/** Whether it waits for a proof or a release after a restore, rather than for what its state alone says. */
export function isHeld(record: ContinuationRecord | undefined, hold: Pick<Hold, "has">): boolean {
  return record !== undefined && HELD_STATES.includes(record.state) && hold.has(record.continuationId);
}

export function createHold(store: ContinuationStore, logger: Logger, from?: RestoreHold): Hold {
  const isOpen = (id: string) => {
    const record = store.durable.get(id);
    return record !== undefined && !isSettled(record);
  };
  const held = new Set((from?.held ?? []).filter(isOpen));
  const listeners = new Set<() => void>();
  /** How many the host keeps; -1 for a hold over nothing, which has to end. */
  let kept = from?.held.length || -1;
  let tail: Promise<void> = Promise.resolve();

  /** One write after the other, each of what is held when its turn comes, without `released`. */
  function keep(released: ReadonlySet<string> = new Set()): Promise<void> {
    const done = tail.then(async () => {
      const remaining = [...held].filter((id) => !released.has(id));
      if (remaining.length === kept) return;
      await from?.keep(remaining);
      kept = remaining.length;
      for (const id of released) held.delete(id);
    });
    tail = done.catch(() => {});
    return done;
  }

  const keepQuietly = () => {
    keep().catch((error: unknown) => {
      logger.error("the end of a hold could not be stored; the next start finds it again", {
        error: errorText(error),
      });
    });
  };

  const unsubscribe =
    from === undefined
      ? () => {}
      : store.onDurable((changed) => {
          let settled = false;
          for (const id of changed) if (held.has(id) && !isOpen(id)) settled = held.delete(id);
          if (settled && held.size === 0) keepQuietly();
        });
  if (from !== undefined && held.size === 0) keepQuietly();

  return {
    has: (id) => held.has(id),
    ids: () => [...held],
    get size() {
      return held.size;
    },
    async release(ids) {
      await keep(new Set(ids.filter((id) => held.has(id))));
      for (const listener of listeners) listener();
    },
    onRelease: (listener) => void listeners.add(listener),
    async stop() {
      unsubscribe();
      await tail;
      keepQuietly();
      await tail;
    },
  };
}
