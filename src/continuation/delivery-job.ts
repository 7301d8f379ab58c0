import { checkedOutcome } from "../core/delivery-outcome.ts";
import { deliveryKey } from "../core/derive.ts";
import { errorName } from "../core/errors.ts";
import type { DeliveryOutcome } from "../core/ports/delivery.ts";
import type { ContinuationRecord } from "../core/record.ts";
import { bounded } from "./bounded.ts";
import type { ContinuationDeps } from "./deps.ts";
import { destinationBlocks } from "./destination.ts";
import type { Ledger } from "./ledger.ts";
import { deliveryIsBound, recordHistory } from "./settle-delivered.ts";

/** The call may still be under way: a promise can't be stopped. */
export const DELIVERY_TIMED_OUT = "delivery_timeout_outcome_unknown";

/** One post of a `ready_to_deliver` or `delivery_retry` record: counted durably before it begins, never guessed after. */
export function createDeliveryJob(deps: ContinuationDeps, ledger: Ledger, owner: string) {
  const { store, clock, limits, logger } = deps;

  return async (record: ContinuationRecord, stop: AbortSignal): Promise<void> => {
    const id = record.continuationId;
    const text = record.synthesizedText;
    if (text === undefined || !deliveryIsBound(store.secret, record)) {
      await ledger.apply(id, {
        kind: "reject",
        code: "delivery_binding_invalid",
        reason: "Text or destination changed after they were bound together.",
      });
      return;
    }
    if (await destinationBlocks(record, deps, ledger)) return;
    const begun = await ledger.apply(id, { kind: "begin_delivery", owner });
    if (!begun.ok) return;

    const outcome = await bounded(clock, limits.deliveryTimeoutMs, stop, (signal) =>
      deps.delivery.deliver({
        destination: record.replyToConversationId ?? "",
        text,
        deliveryKey: deliveryKey(id),
        signal,
      }),
    );
    switch (outcome.kind) {
      case "stopped":
        // `deliveryStartedAt` is on disk: the next start finds an unknown outcome and asks the channel for a proof.
        return;
      case "value":
        await settleOutcome(begun.value, checkedOutcome(outcome.value), stop);
        return;
      case "timed_out":
        await ledger.apply(id, {
          kind: "lose_delivery",
          code: DELIVERY_TIMED_OUT,
          reason: `The channel did not answer within ${limits.deliveryTimeoutMs} ms.`,
        });
        return;
      case "threw":
        logger.warn("delivery threw", { continuationId: id, error: errorName(outcome.error) });
        await ledger.apply(id, {
          kind: "lose_delivery",
          code: "delivery_threw",
          reason: "The channel failed after the post had begun.",
        });
    }
  };

  async function settleOutcome(record: ContinuationRecord, outcome: DeliveryOutcome, stop: AbortSignal) {
    const id = record.continuationId;
    switch (outcome.kind) {
      case "delivered": {
        const history = await recordHistory(deps, record, stop);
        // Stopped between post and receipt: as after a crash, the next start asks the channel for a proof.
        if (history === "stopped") return;
        await ledger.apply(id, {
          kind: "confirm_delivery",
          parts: outcome.parts,
          ...(outcome.channelId === undefined ? {} : { channelId: outcome.channelId }),
          history,
        });
        return;
      }
      case "retryable":
        await ledger.apply(id, {
          kind: "postpone_delivery",
          code: outcome.code,
          reason: outcome.reason,
          ...(outcome.retryAfterMs === undefined ? {} : { retryAfterMs: outcome.retryAfterMs }),
        });
        return;
      case "permanent":
        await ledger.apply(id, { kind: "refuse_delivery", code: outcome.code, reason: outcome.reason });
        return;
      case "unknown":
        await ledger.apply(id, { kind: "lose_delivery", code: outcome.code, reason: outcome.reason });
    }
  }
}
