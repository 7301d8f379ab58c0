import { checkedProof } from "../core/delivery-outcome.ts";
import { deliveryKey } from "../core/derive.ts";
import { errorName, errorText, ok, type Result, refuse } from "../core/errors.ts";
import { ABSENCE_GRACE_MS } from "../core/limits.ts";
import type { DeliveryProof } from "../core/ports/delivery.ts";
import type { ContinuationRecord } from "../core/record.ts";
import { bounded } from "./bounded.ts";
import { DELIVERY_TIMED_OUT } from "./delivery-job.ts";
import type { ContinuationDeps } from "./deps.ts";
import { type Hold, isHeld } from "./hold.ts";
import type { Ledger } from "./ledger.ts";
import { supportOf } from "./readiness.ts";
import { type Decider, deliveryIsBound, type ProvedPost } from "./settle-delivered.ts";

/**
 * Owns: asking the channel what became of the posts of `delivery_unknown` records, and of those that are held after a
 * restore: at start-up, when an outcome turns out unknown, once more when absence can count, when a channel comes up that
 * was asked while it was not, and on demand. Never posts.
 *
 * I1. A proof settles the record, with its evidence in the receipt.
 * I2. Absence makes it deliverable again only when the channel's look is exact, or after two complete looks; the
 *     latter, and either after a time-out, not before the request's own time-out plus five minutes (protocol.md). Anything else leaves it unknown for the operator.
 *     Of a held record only a delivery is proved: absence here says nothing about what the lost days brought.
 * I3. At most `maxConcurrent` look-ups run at a time.
 */
export interface Prover {
  /** Asks soon for every unknown and every held record. Never throws. */
  considerAll(): void;
  /** Asks soon, and again when absence can count. Never throws. */
  consider(continuationId: string): void;
  /** A channel came up: asks again for those that were asked for while theirs was not. Never throws. */
  announceReady(): void;
  /** Asks now; resolves with the record as it is afterwards. */
  prove(continuationId: string): Promise<Result<ContinuationRecord>>;
  /** Cancels what was planned and waits for look-ups under way; the stop signal ends those. */
  stop(): Promise<void>;
}

export function createProver(
  deps: ContinuationDeps,
  ledger: Ledger,
  decider: Decider,
  hold: Hold,
  stop: AbortSignal,
): Prover {
  const { store, clock, limits, logger } = deps;
  const planned = new Map<string, () => void>();
  const waiting: string[] = [];
  /** Asked for in vain while their channel was not up. */
  const missed = new Set<string>();
  const running = new Set<Promise<void>>();
  let stopped = false;

  const look = async (record: ContinuationRecord, destination: string): Promise<DeliveryProof> => {
    const found = await bounded(clock, limits.deliveryTimeoutMs, stop, (signal) =>
      deps.delivery.find(destination, deliveryKey(record.continuationId), sinceOf(record), signal),
    );
    if (found.kind === "value") return checkedProof(found.value);
    if (found.kind === "threw") {
      logger.warn("delivery look-up failed", {
        continuationId: record.continuationId,
        error: errorName(found.error),
      });
    }
    return { kind: "unknown" };
  };

  const prove: Prover["prove"] = (continuationId) =>
    decider.exclusively(continuationId, async () => {
      const record = store.durable.get(continuationId);
      if (record === undefined) return refuse("not_found", "No such continuation.");
      if (isHeld(record, hold)) return proveHeld(record);
      if (record.state !== "delivery_unknown") {
        return refuse(
          "not_delivery_unknown",
          `Only delivery_unknown can be proved; the state is ${record.state}.`,
        );
      }
      const destination = record.replyToConversationId;
      // An altered record must not steer where a text is looked for.
      if (destination === undefined || !deliveryIsBound(store.secret, record)) return ok(record);
      const proof = await look(record, destination);
      switch (proof.kind) {
        case "unknown":
          return ok(record);
        case "delivered":
          return decider.delivered(record, provedPost(proof));
        case "absent": {
          const early = clock.now() < absenceCountsAt(record);
          if (early && (!proof.exact || record.lastError?.code === DELIVERY_TIMED_OUT)) return ok(record);
          if (!proof.exact) {
            const second = await look(record, destination);
            if (second.kind !== "absent") return ok(record);
          }
          return ledger.apply(continuationId, { kind: "prove_absent" });
        }
      }
    });

  const proveHeld = async (record: ContinuationRecord): Promise<Result<ContinuationRecord>> => {
    const destination = record.replyToConversationId;
    if (destination === undefined || !deliveryIsBound(store.secret, record)) return ok(record);
    const proof = await look(record, destination);
    // Also when it was released meanwhile: the worker leaves it alone until this has ended (settle-delivered.ts, I1).
    if (proof.kind !== "delivered") return ok(record);
    return decider.delivered(record, provedPost(proof));
  };

  const sinceOf = (record: ContinuationRecord) => record.deliveryStartedAt ?? record.updatedAt;
  const absenceCountsAt = (record: ContinuationRecord) =>
    Date.parse(sinceOf(record)) + limits.deliveryTimeoutMs + ABSENCE_GRACE_MS;

  const unproved = (continuationId: string): ContinuationRecord | undefined => {
    const record = store.durable.get(continuationId);
    return record?.state === "delivery_unknown" || isHeld(record, hold) ? record : undefined;
  };

  const isChannelDown = (record: ContinuationRecord): boolean =>
    supportOf(record.replyToConversationId ?? "", deps) === "not_running";

  const proveQuietly = async (continuationId: string) => {
    const before = unproved(continuationId);
    const wasDown = before !== undefined && isChannelDown(before);
    try {
      await prove(continuationId);
    } catch (error) {
      logger.error("a proof could not be stored", { continuationId, error: errorText(error) });
    }
    plan(continuationId);
    // It may have come up during the look, and its announcement is over.
    if (wasDown) lookWhenUp(continuationId);
  };

  const lookWhenUp = (continuationId: string) => {
    const record = unproved(continuationId);
    missed.delete(continuationId);
    if (record === undefined) return;
    if (isChannelDown(record)) missed.add(continuationId);
    else consider(continuationId);
  };

  /** One more look when absence can count; after that only an operator asks. */
  const plan = (continuationId: string) => {
    planned.get(continuationId)?.();
    planned.delete(continuationId);
    const record = store.durable.get(continuationId);
    if (stopped || record?.state !== "delivery_unknown") return;
    const delayMs = absenceCountsAt(record) - clock.now();
    if (delayMs > 0)
      planned.set(
        continuationId,
        clock.timer(delayMs, () => consider(continuationId)),
      );
  };

  const consider = (continuationId: string) => {
    planned.get(continuationId)?.();
    planned.delete(continuationId);
    if (stopped) return;
    waiting.push(continuationId);
    pump();
  };

  const pump = () => {
    while (running.size < limits.maxConcurrent && !stopped) {
      const continuationId = waiting.shift();
      if (continuationId === undefined) return;
      const job = proveQuietly(continuationId).finally(() => {
        running.delete(job);
        pump();
      });
      running.add(job);
    }
  };

  const unsubscribe = store.onDurable((changed) => {
    if (hold.size === 0) return;
    // The result of a claim that is held; what it led to before may have been posted.
    for (const id of changed) if (hold.has(id) && isHeld(store.durable.get(id), hold)) consider(id);
  });

  return {
    considerAll() {
      // The oldest first, as in the worker: a channel that hangs must not keep them waiting behind newer ones.
      const unknown = store.durable.inStates(["delivery_unknown"]).toReversed();
      for (const record of unknown) consider(record.continuationId);
      for (const id of hold.ids()) if (isHeld(store.durable.get(id), hold)) consider(id);
    },
    consider,
    announceReady() {
      for (const continuationId of [...missed]) lookWhenUp(continuationId);
    },
    prove,
    async stop() {
      stopped = true;
      unsubscribe();
      for (const cancel of planned.values()) cancel();
      planned.clear();
      await Promise.all(running);
    },
  };
}

function provedPost(found: Extract<DeliveryProof, { kind: "delivered" }>): ProvedPost {
  return {
    parts: found.parts,
    ...(found.channelId === undefined ? {} : { channelId: found.channelId }),
    proof: { by: "channel", evidence: found.evidence },
  };
}
