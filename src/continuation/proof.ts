import { deliveryKey } from "../core/derive.ts";
import { errorName, errorText } from "../core/errors.ts";
import { bounded } from "./bounded.ts";
import type { ContinuationDeps } from "./deps.ts";
import type { Ledger } from "./ledger.ts";
import { type Decider, deliveryIsBound } from "./settle-delivered.ts";

/**
 * Asks the channel what became of the posts of `delivery_unknown` records, at start-up: no post of a dead process
 * can still be under way then. A proof settles the record, with its evidence in the receipt; a channel that can prove
 * that nothing was posted makes it deliverable again; anything else leaves it unknown for the operator.
 */
export function createProver(deps: ContinuationDeps, ledger: Ledger, decider: Decider, stop: AbortSignal) {
  const { store, clock, limits, logger } = deps;

  const prove = async (continuationId: string): Promise<void> => {
    const record = store.durable.get(continuationId);
    const destination = record?.replyToConversationId;
    // An altered record must not steer where a text is looked for.
    if (record === undefined || destination === undefined || !deliveryIsBound(store.secret, record)) return;
    const since = record.deliveryStartedAt ?? record.updatedAt;
    const found = await bounded(clock, limits.deliveryTimeoutMs, stop, (signal) =>
      deps.delivery.find(destination, deliveryKey(continuationId), since, signal),
    );
    if (found.kind === "threw") {
      logger.warn("delivery look-up failed", { continuationId, error: errorName(found.error) });
    }
    if (found.kind !== "value" || found.value.kind === "unknown") return;
    const proof = found.value;
    await decider.exclusively(continuationId, () => {
      if (proof.kind === "absent") return ledger.apply(continuationId, { kind: "resolve_not_delivered" });
      const deliveryId = proof.parts.at(-1)?.id;
      return decider.delivered(record, {
        ...(deliveryId === undefined ? {} : { deliveryId }),
        ...(proof.channelId === undefined ? {} : { channelId: proof.channelId }),
        proof: { by: "channel", evidence: proof.evidence },
      });
    });
  };

  /** Proves what it can, at most `maxConcurrent` look-ups at a time. Never rejects. */
  return async (): Promise<void> => {
    const ids = store.durable.inStates(["delivery_unknown"]).map((record) => record.continuationId);
    const lanes = Array.from({ length: Math.min(limits.maxConcurrent, ids.length) }, async () => {
      for (let id = ids.shift(); id !== undefined && !stop.aborted; id = ids.shift()) {
        try {
          await prove(id);
        } catch (error) {
          logger.error("a proof could not be stored", { continuationId: id, error: errorText(error) });
        }
      }
    });
    await Promise.all(lanes);
  };
}
