import type { Command } from "../core/continuation-commands.ts";
import { transition } from "../core/continuation-transition.ts";
import { ok, type Result, refuse } from "../core/errors.ts";
import type { Clock } from "../core/ports/platform.ts";
import type { ContinuationStore } from "../core/ports/store.ts";
import type { ContinuationRecord } from "../core/record.ts";

/**
 * The one way in which the domain changes a record: load from head, decide, commit, and only then answer.
 *
 * I1. No await between load and commit, so a decision is always made on the newest state.
 * I2. An answer that rests on a head not yet durable (a replay, a refusal) waits for that commit.
 * I3. After `close` nothing is changed any more.
 */
export interface Ledger {
  apply(continuationId: string, command: Command): Promise<Result<ContinuationRecord>>;
  /** Decides the same kind of command for several records and commits them together; refused ones are left out. */
  applyAll(
    records: readonly ContinuationRecord[],
    command: (record: ContinuationRecord) => Command,
  ): Promise<void>;
  close(): void;
  readonly closed: boolean;
}

export function createLedger(store: ContinuationStore, clock: Clock): Ledger {
  let closed = false;
  const stopping = () =>
    refuse("service_stopping", "The host is stopping; repeat the request after its restart.", 1000);

  return {
    async apply(continuationId, command) {
      if (closed) return stopping();
      const record = store.head.get(continuationId);
      if (record === undefined) return refuse("not_found", "No such continuation.");
      const decision = transition(record, command, clock.now());
      if (decision.kind === "refused") {
        if (decision.record === undefined) await store.settled(continuationId);
        else await store.commit({ puts: [decision.record] });
        return { ok: false, refusal: decision.refusal };
      }
      if (decision.kind === "unchanged") await store.settled(continuationId);
      else await store.commit({ puts: [decision.record] });
      return ok(decision.record);
    },

    async applyAll(records, command) {
      if (closed) return;
      const puts: ContinuationRecord[] = [];
      for (const record of records) {
        const decision = transition(record, command(record), clock.now());
        if (decision.kind === "changed") puts.push(decision.record);
      }
      if (puts.length > 0) await store.commit({ puts });
    },

    close() {
      closed = true;
    },
    get closed() {
      return closed;
    },
  };
}
