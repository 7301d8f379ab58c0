import { checkedHistory } from "../core/delivery-outcome.ts";
import { deliveryBindingMac, deliveryKey, originBindingIsAuthentic } from "../core/derive.ts";
import { equalDigests } from "../core/digest.ts";
import { errorName, type Result, refuse } from "../core/errors.ts";
import { SECOND_MS } from "../core/limits.ts";
import type { HistoryOutcome } from "../core/ports/delivery.ts";
import type { ContinuationRecord } from "../core/record.ts";
import { bounded } from "./bounded.ts";
import type { ContinuationDeps } from "./deps.ts";
import { type Ledger, stopping } from "./ledger.ts";

/** What the channel found of a post. */
export interface ProvedPost {
  readonly parts: readonly { id: string }[];
  readonly channelId?: string;
  readonly proof: { by: string; evidence: string };
}

/**
 * How a delivery is decided, by an operator or by the channel's proof: history first, then the receipt.
 *
 * I1. One decision at a time for each continuation, and the worker leaves it alone meanwhile: what was found to be
 *     posted is not posted, cancelled or expired while that is being written down.
 * I2. A text is appended only where it was bound to go (store-format.md §10).
 * I3. A stop in the middle decides nothing; the next start finds the record as it was.
 */
export interface Decider {
  /** Runs a decision of one continuation; `resolution_in_progress` while another is under way. */
  exclusively(
    continuationId: string,
    decide: () => Promise<Result<ContinuationRecord>>,
  ): Promise<Result<ContinuationRecord>>;
  /** Whether a decision of it is under way. */
  has(continuationId: string): boolean;
  /** How many are under way. */
  readonly size: number;
  /** Called after each decision, also one that changed nothing. */
  onEnd(listener: () => void): void;
  /**
   * Records history and then the receipt: of a `delivery_unknown` record by an operator's word or the channel's proof, or
   * by a proof of one that is held after a restore. Call it inside `exclusively`.
   */
  delivered(
    record: ContinuationRecord,
    receipt: { deliveryId?: string } | ProvedPost,
  ): Promise<Result<ContinuationRecord>>;
}

const HISTORY_TIMEOUT_MS = 30 * SECOND_MS;

export function createDecider(deps: ContinuationDeps, ledger: Ledger, stop: AbortSignal): Decider {
  const deciding = new Set<string>();
  const listeners = new Set<() => void>();
  return {
    has: (continuationId) => deciding.has(continuationId),
    get size() {
      return deciding.size;
    },
    onEnd: (listener) => void listeners.add(listener),
    async exclusively(continuationId, decide) {
      if (deciding.has(continuationId)) {
        return refuse("resolution_in_progress", "Another decision on this continuation is under way.");
      }
      deciding.add(continuationId);
      try {
        return await decide();
      } finally {
        deciding.delete(continuationId);
        for (const listener of listeners) listener();
      }
    },
    async delivered(record, receipt) {
      // One that is held was posted after the backup, which may not have the text yet.
      const lost = record.state !== "delivery_unknown" && record.synthesizedText === undefined;
      const history: HistoryOutcome | "stopped" = lost
        ? { recorded: false, code: "text_lost_in_restore" }
        : await recordHistory(deps, record, stop);
      if (history === "stopped") return stopping();
      return ledger.apply(
        record.continuationId,
        "proof" in receipt
          ? { kind: "prove_delivered", ...receipt, history }
          : { kind: "resolve_delivered", ...receipt, history },
      );
    },
  };
}

/**
 * Whether text and destination are still the ones that were bound when the text was stored (store-format.md §10).
 * A text of an older runtime has no delivery MAC: then the snapshot's binding decides, where its reference is left; else
 * it is accepted, as that runtime would.
 */
export function deliveryIsBound(secret: Uint8Array, record: ContinuationRecord): boolean {
  if (record.deliveryBindingMac !== undefined) {
    const expected = deliveryBindingMac(secret, record, record.synthesizedText ?? "");
    return equalDigests(record.deliveryBindingMac, expected);
  }
  return record.originContextRef === undefined || originBindingIsAuthentic(secret, record);
}

/** Appends a delivered answer to history. A failure is reported in the receipt and never repeats the post. */
export async function recordHistory(
  deps: Pick<ContinuationDeps, "clock" | "history" | "logger" | "store">,
  record: ContinuationRecord,
  stop: AbortSignal,
): Promise<HistoryOutcome | "stopped"> {
  const { continuationId } = record;
  if (!deliveryIsBound(deps.store.secret, record))
    return { recorded: false, code: "delivery_binding_invalid" };
  const outcome = await bounded(deps.clock, HISTORY_TIMEOUT_MS, stop, () =>
    deps.history.record({
      originConversationId: record.originConversationId,
      destination: record.replyToConversationId ?? record.originConversationId,
      deliveryKey: deliveryKey(continuationId),
      text: record.synthesizedText ?? "",
      at: new Date(deps.clock.now()).toISOString(),
    }),
  );
  switch (outcome.kind) {
    case "value":
      return checkedHistory(outcome.value);
    case "stopped":
      return "stopped";
    case "timed_out":
      return { recorded: false, code: "history_record_timeout" };
    case "threw":
      deps.logger.warn("history append failed", { continuationId, error: errorName(outcome.error) });
      return { recorded: false, code: "history_record_failed" };
  }
}
