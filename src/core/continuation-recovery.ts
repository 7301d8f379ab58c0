import { changed, type Decision, refused } from "./continuation-commands.ts";
import { deadLetter, edit, loseDelivery, NO_LEASE, settle } from "./continuation-edits.ts";
import { type ContinuationRecord, isTerminal } from "./record.ts";

/** What ends or revives a continuation from outside the worker: a restart, its deadline, an operator's retry. */

export const OPERATOR_DEAD_LETTERED = "operator_dead_lettered";

export function recover(record: ContinuationRecord, at: string): Decision {
  if (record.state === "synthesizing") {
    return changed(
      deadLetter(
        record,
        {
          code: "synthesis_outcome_unknown",
          reason: "The host stopped during the synthesis; the model is never asked twice.",
        },
        at,
      ),
    );
  }
  if (deliveryBegun(record)) {
    return changed(
      loseDelivery(
        record,
        {
          code: "delivery_outcome_unknown",
          reason: "The host stopped after the post had begun and before its outcome was stored.",
        },
        at,
      ),
    );
  }
  return record.leaseOwner === undefined
    ? { kind: "unchanged", record }
    : changed(edit(record, at, NO_LEASE));
}

export function expire(record: ContinuationRecord, nowMs: number): Decision {
  if (isTerminal(record) || nowMs < Date.parse(record.deadline)) return { kind: "unchanged", record };
  const at = new Date(nowMs).toISOString();
  if (deliveryBegun(record)) {
    return changed(
      loseDelivery(
        record,
        {
          code: "delivery_outcome_unknown",
          reason: "The deadline passed after the post had begun and before its outcome was known.",
        },
        at,
      ),
    );
  }
  return changed(
    settle(record, at, "expired", {
      code: "deadline_expired",
      reason: "The deadline passed before delivery began.",
    }),
  );
}

export function retry(record: ContinuationRecord, allowUnknown: boolean, nowMs: number): Decision {
  if (inFlight(record)) {
    return refused(
      "continuation_in_flight",
      "The continuation is being worked on; try again when that has ended.",
    );
  }
  const doubtful =
    record.state === "delivery_unknown" ||
    (record.state === "dead_lettered" && record.lastError?.code === OPERATOR_DEAD_LETTERED);
  if (doubtful && !allowUnknown) {
    return refused(
      "delivery_unknown",
      "The post may have happened. Verify it, then resolve it, or retry with allowUnknown.",
    );
  }
  const hasText = record.synthesizedText !== undefined;
  const needsNoText = record.mode === "silent" && record.state === "dead_lettered";
  if (!hasText && !needsNoText) {
    return refused(
      "synthesis_not_retryable",
      "No synthesized text is stored, and the model is never asked twice.",
    );
  }
  if (nowMs >= Date.parse(record.deadline)) {
    return refused("continuation_expired", "The deadline has passed; a retry would expire at once.");
  }
  const at = new Date(nowMs).toISOString();
  return changed(
    edit(
      record,
      at,
      {
        state: hasText ? "ready_to_deliver" : "result_received",
        deliveryStartedAt: undefined,
        // An operator's retry is a fresh budget; what was tried before stands in the timeline.
        ...(record.lastError?.code === "delivery_attempts_exhausted" ? { deliveryAttempts: 0 } : {}),
        compactedAt: undefined,
        nextAttemptAt: at,
        lastError: undefined,
      },
      "retried_by_operator",
    ),
  );
}

/** A lease or a begun post: somebody works on it right now (`recover` clears what a dead process left). */
export function inFlight(record: ContinuationRecord): boolean {
  if (isTerminal(record)) return false;
  return (
    record.leaseOwner !== undefined ||
    record.deliveryStartedAt !== undefined ||
    record.state === "synthesizing"
  );
}

/** A post was begun and its outcome is not stored. */
function deliveryBegun(record: ContinuationRecord): boolean {
  const deliverable = record.state === "ready_to_deliver" || record.state === "delivery_retry";
  return deliverable && record.deliveryStartedAt !== undefined;
}
