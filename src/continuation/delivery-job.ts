import { deliveryBindingMac, deliveryKey, originBindingIsAuthentic } from "../core/derive.ts";
import { equalDigests } from "../core/digest.ts";
import { errorText } from "../core/errors.ts";
import { SECOND_MS } from "../core/limits.ts";
import type { DeliveryOutcome, HistoryOutcome } from "../core/ports/delivery.ts";
import type { ContinuationRecord } from "../core/record.ts";
import { bounded } from "./bounded.ts";
import type { ContinuationDeps } from "./deps.ts";
import type { Ledger } from "./ledger.ts";
import { destinationBlocks } from "./synthesis-job.ts";

const HISTORY_TIMEOUT_MS = 30 * SECOND_MS;

/**
 * Whether text and destination are still the ones that were bound when the text was stored (store-format.md §10).
 * A record of an older runtime has no delivery MAC: then the snapshot binding decides where its reference is left.
 */
export function deliveryIsBound(secret: Uint8Array, record: ContinuationRecord): boolean {
  if (record.deliveryBindingMac !== undefined) {
    return equalDigests(
      record.deliveryBindingMac,
      deliveryBindingMac(secret, record, record.synthesizedText ?? ""),
    );
  }
  return record.originContextRef === undefined || originBindingIsAuthentic(secret, record);
}

/** Appends a delivered answer to history; a failure is reported in the receipt and never repeats the post. */
export async function recordHistory(
  deps: Pick<ContinuationDeps, "clock" | "history" | "logger">,
  record: ContinuationRecord,
  stop: AbortSignal,
): Promise<HistoryOutcome> {
  const outcome = await bounded(deps.clock, HISTORY_TIMEOUT_MS, stop, () =>
    deps.history.record({
      originConversationId: record.originConversationId,
      destination: record.replyToConversationId ?? record.originConversationId,
      deliveryKey: deliveryKey(record.continuationId),
      text: record.synthesizedText ?? "",
      at: new Date(deps.clock.now()).toISOString(),
    }),
  );
  if (outcome.kind === "value") return outcome.value;
  if (outcome.kind === "threw") {
    deps.logger.warn("history append failed", {
      continuationId: record.continuationId,
      error: errorText(outcome.error),
    });
  }
  return {
    recorded: false,
    code: outcome.kind === "timed_out" ? "history_record_timeout" : "history_record_failed",
  };
}

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
        await settleOutcome(begun.value, outcome.value, stop);
        return;
      case "timed_out":
        await ledger.apply(id, {
          kind: "lose_delivery",
          code: "delivery_timeout_outcome_unknown",
          reason: `The channel did not answer within ${limits.deliveryTimeoutMs} ms.`,
        });
        return;
      case "threw":
        logger.warn("delivery threw", { continuationId: id, error: errorText(outcome.error) });
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
