import { checkedSupport } from "../core/delivery-outcome.ts";
import { errorName } from "../core/errors.ts";
import type { DestinationSupport } from "../core/ports/delivery.ts";
import type { ContinuationRecord, ContinuationState } from "../core/record.ts";
import type { ContinuationDeps } from "./deps.ts";
import type { Ledger } from "./ledger.ts";

/** Whether channel and model can be used now. What can't is put off (`defer`) at no attempt, with its back-off. */

const CODE_MAX_CHARS = 128;

/**
 * What the host says of a destination. A throw, or an answer that can't be read, is `not_running`: it refuses no claim,
 * and nothing is synthesized or posted on the strength of it.
 */
export function supportOf(
  destination: string,
  { delivery, logger }: Pick<ContinuationDeps, "delivery" | "logger">,
): DestinationSupport {
  try {
    const support = checkedSupport(delivery.supports(destination));
    if (support !== undefined) return support;
    logger.warn("what the channel says of a destination can't be read");
  } catch (error) {
    logger.warn("asking the channel about a destination failed", { error: errorName(error) });
  }
  return "not_running";
}

/**
 * Readiness of the host's model, before a synthesis: anything but `true` defers, at no attempt. Resolves with true when
 * the record was dealt with.
 */
export async function synthesisBlocks(
  record: ContinuationRecord,
  deps: Pick<ContinuationDeps, "synthesis" | "logger">,
  ledger: Ledger,
): Promise<boolean> {
  const code = blockedBy(record, deps);
  if (code === undefined) return false;
  await ledger.apply(record.continuationId, {
    kind: "defer",
    code,
    reason: "The host can't begin a synthesis now.",
  });
  return true;
}

/** The code of what it waits for; an answer that can't be read is a failed look, because a model call can't be undone. */
function blockedBy(
  { continuationId }: ContinuationRecord,
  { synthesis, logger }: Pick<ContinuationDeps, "synthesis" | "logger">,
): string | undefined {
  if (synthesis.ready === undefined) return undefined;
  try {
    const answer = synthesis.ready();
    if (answer === true) return undefined;
    const { code } = answer;
    if (typeof code === "string" && code !== "") return code.slice(0, CODE_MAX_CHARS);
    logger.warn("the readiness of the synthesis can't be read", { continuationId });
  } catch (error) {
    logger.warn("the readiness of the synthesis failed", { continuationId, error: errorName(error) });
  }
  return "synthesis_preflight_failed";
}

/** States in which a record can be put off. */
export const DEFERRED_STATES: readonly ContinuationState[] = [
  "result_received",
  "ready_to_deliver",
  "delivery_retry",
];

/**
 * Whether it waits for a channel or the model to become ready, by what `defer` leaves in a record. Not the wait for its
 * origin turn, nor the delay after a failed post, which stands: the channel asked for it, or it keeps a failing channel
 * from being asked without end.
 */
export function isDeferred(record: ContinuationRecord, nowMs: number): boolean {
  const { lastError, nextAttemptAt, synthesisDeferrals } = record;
  if (synthesisDeferrals === 0 || lastError === undefined) return false;
  if (nextAttemptAt === undefined || Date.parse(nextAttemptAt) <= nowMs) return false;
  switch (record.state) {
    case "result_received":
      return record.originContextState !== "pending";
    case "ready_to_deliver":
      return true;
    case "delivery_retry": {
      // A failed post adds to the timeline, a deferral after it does not.
      const failed = record.timeline?.at(-1)?.at;
      return failed !== undefined && Date.parse(lastError.at) > Date.parse(failed);
    }
    default:
      return false;
  }
}

/** Whether nothing that a record can be put off for stands in its way now. Changes nothing. */
export function isReady(
  record: ContinuationRecord,
  deps: Pick<ContinuationDeps, "delivery" | "synthesis" | "logger">,
): boolean {
  const { mode, replyToConversationId = "" } = record;
  if (mode !== "capture" && supportOf(replyToConversationId, deps) !== "supported") return false;
  return record.state !== "result_received" || blockedBy(record, deps) === undefined;
}
