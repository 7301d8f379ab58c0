import type { ContinuationRecord } from "../core/record.ts";
import type { ContinuationDeps } from "./deps.ts";
import type { Ledger } from "./ledger.ts";
import { supportOf } from "./readiness.ts";

/**
 * Readiness and allowlist of the destination, before the model and before a post: a channel that is not running
 * defers, at no attempt; one that can never serve it ends the continuation, with no fallback to another route.
 * Resolves with true when the record was dealt with.
 */
export async function destinationBlocks(
  record: ContinuationRecord,
  deps: Pick<ContinuationDeps, "delivery" | "logger">,
  ledger: Ledger,
): Promise<boolean> {
  const destination = record.replyToConversationId;
  if (destination === undefined) {
    await ledger.apply(record.continuationId, {
      kind: "reject",
      code: "missing_delivery_binding",
      reason: "The record has no reply destination.",
    });
    return true;
  }
  switch (supportOf(destination, deps)) {
    case "supported":
      return false;
    case "not_running":
      await ledger.apply(record.continuationId, {
        kind: "defer",
        code: "destination_channel_unavailable",
        reason: "The channel of the destination is not running.",
      });
      return true;
    case "never":
      await ledger.apply(record.continuationId, {
        kind: "reject",
        code: "destination_not_allowed",
        reason: "No channel of this host may deliver to the destination.",
      });
      return true;
  }
}
