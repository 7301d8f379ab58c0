import type { Command } from "../core/continuation-commands.ts";
import { transition } from "../core/continuation-transition.ts";
import { errorText, ok, type Result, refuse, StoreError } from "../core/errors.ts";
import { SECOND_MS } from "../core/limits.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";
import type { ContinuationStore } from "../core/ports/store.ts";
import type { ContinuationRecord } from "../core/record.ts";

/**
 * The one way in which the domain changes a record: load from head, decide, commit, and only then answer.
 *
 * I1. No await between load and commit, so a decision is always made on the newest state.
 * I2. An answer that rests on a head not yet durable (a replay, a refusal) waits for that commit.
 * I3. After `close` nothing is changed any more. Callers from outside and running jobs have a ledger each, so that
 *     the jobs can still finish when the callers are refused.
 */
export interface Ledger {
  apply(continuationId: string, command: Command): Promise<Result<ContinuationRecord>>;
  /**
   * Decides the same kind of command for several records and commits them together. Refused ones are left out, and
   * one that can't be stored is logged and left as it is: damage to one record never stops the others.
   */
  applyAll(
    continuationIds: readonly string[],
    command: (record: ContinuationRecord) => Command,
  ): Promise<void>;
  close(): void;
  readonly closed: boolean;
}

export function createLedger(store: ContinuationStore, clock: Clock, logger: Logger): Ledger {
  let closed = false;

  /** What the command makes of each record, by head; also what a refusal has to make durable. */
  const decided = (ids: readonly string[], command: (record: ContinuationRecord) => Command) => {
    const puts: ContinuationRecord[] = [];
    for (const id of ids) {
      const record = store.head.get(id);
      if (record === undefined) continue;
      const decision = transition(record, command(record), clock.now());
      if (decision.kind !== "unchanged" && decision.record !== undefined) puts.push(decision.record);
    }
    return puts;
  };

  return {
    async apply(continuationId, command) {
      if (closed) return stopping();
      const record = store.head.get(continuationId);
      if (record === undefined) return refuse("not_found", "No such continuation.");
      const decision = transition(record, command, clock.now());
      if (decision.kind === "refused") {
        if (decision.record === undefined) await store.whenDurable(continuationId);
        else await store.commit({ puts: [decision.record] });
        return { ok: false, refusal: decision.refusal };
      }
      if (decision.kind === "unchanged") await store.whenDurable(continuationId);
      else await store.commit({ puts: [decision.record] });
      return ok(decision.record);
    },

    async applyAll(ids, command) {
      if (closed) return;
      const puts = decided(ids, command);
      if (puts.length === 0) return;
      const commits: Promise<void>[] = [];
      try {
        commits.push(store.commit({ puts }));
      } catch (error) {
        if (!isTooLarge(error)) throw error;
        for (const record of puts) {
          try {
            commits.push(store.commit({ puts: [record] }));
          } catch (fault) {
            if (!isTooLarge(fault)) throw fault;
            logger.error("a continuation can't be changed", {
              continuationId: record.continuationId,
              error: errorText(fault),
            });
          }
        }
      }
      await Promise.all(commits);
    },

    close() {
      closed = true;
    },
    get closed() {
      return closed;
    },
  };
}

/** The refusal of everything that comes after the stop has begun. */
export function stopping() {
  return refuse("service_stopping", "The host is stopping; repeat the request after its restart.", SECOND_MS);
}

function isTooLarge(error: unknown): boolean {
  return error instanceof StoreError && error.code === "record_too_large";
}
