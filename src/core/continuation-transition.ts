import {
  type Command,
  type CommandKind,
  changed,
  type Decision,
  leaseLost,
  MOVES,
  refused,
} from "./continuation-commands.ts";
import {
  backoff,
  deadLetter,
  deliver,
  edit,
  historyFields,
  lastError,
  lease,
  loseDelivery,
  NO_LEASE,
  optional,
  settle,
} from "./continuation-edits.ts";
import { expire, inFlight, OPERATOR_DEAD_LETTERED, recover, retry } from "./continuation-recovery.ts";
import { assert, BugError } from "./errors.ts";
import {
  DEFERRAL_BASE_MS,
  DEFERRAL_CAP_MS,
  DELIVERY_BACKOFF_BASE_MS,
  DELIVERY_BACKOFF_CAP_MS,
  DELIVERY_MAX_ATTEMPTS,
  RECORD_MAX_BYTES,
  RECORD_RESERVE_BYTES,
} from "./limits.ts";
import { type ContinuationRecord, recordFileBytes } from "./record.ts";

/**
 * Owns: every change of `state`. Record + command + now in; new record, no change, or a typed refusal out.
 * Does not own: creation (claims), group activation (store), dropping old records (retention).
 *
 * I1. `MOVES` is the only list of legal moves; a result outside of it is a bug and stops.
 * I2. A terminal state never changes, except delivery_unknown by an operator or a proof, and dead_lettered by an
 *     operator's retry.
 * I3. The attempt counter and the start time are in the record before the model is called or a post begins.
 */

/** Decides one command at `nowMs`. Pure: the caller commits what comes out. */
export function transition(record: ContinuationRecord, command: Command, nowMs: number): Decision {
  const decision = decide(record, command, nowMs);
  const next = decision.kind === "changed" ? decision.record : undefined;
  if (next !== undefined) {
    const legal = MOVES[record.state][command.kind];
    assert(legal?.includes(next.state), `${record.state} × ${command.kind} must not lead to ${next.state}`);
  }
  return decision;
}

function decide(record: ContinuationRecord, command: Command, nowMs: number): Decision {
  const at = new Date(nowMs).toISOString();
  if (command.kind === "accept_result") return acceptResult(record, command, nowMs);
  if (command.kind === "cancel" && record.state === "cancelled") return { kind: "unchanged", record };
  if (command.kind === "recover" && MOVES[record.state].recover === undefined)
    return { kind: "unchanged", record };
  if (MOVES[record.state][command.kind] === undefined) return refusedByTable(record, command.kind);

  switch (command.kind) {
    case "bind_snapshot":
      if (record.originContextState !== "pending") return leaseLost();
      return changed(
        edit(
          record,
          at,
          {
            originContextRef: command.ref,
            originContextDigest: command.ref.digest,
            originContextMessageCount: command.ref.messageCount,
            originContextFingerprint: command.fingerprint,
            originContextBindingMac: command.mac,
          },
          "origin_prepared",
        ),
      );
    case "abandon_origin":
      return abandonOrigin(record, at);
    case "defer": {
      const delayMs = backoff(record.synthesisDeferrals, DEFERRAL_BASE_MS, DEFERRAL_CAP_MS);
      return changed(
        edit(record, at, {
          synthesisDeferrals: record.synthesisDeferrals + 1,
          nextAttemptAt: new Date(nowMs + delayMs).toISOString(),
          lastError: lastError(command, at),
        }),
      );
    }
    case "begin_synthesis":
      return changed(
        edit(
          record,
          at,
          {
            state: "synthesizing",
            synthesisAttempts: record.synthesisAttempts + 1,
            synthesisStartedAt: at,
            nextAttemptAt: undefined,
            lastError: undefined,
            ...lease(command.owner, nowMs),
          },
          "synthesis_started",
        ),
      );
    case "complete_synthesis":
      return changed(
        withText(record, command, at, { completionKind: "synthesized", lastError: undefined }, "synthesized"),
      );
    case "use_fallback":
      return changed(
        withText(
          record,
          command,
          at,
          {
            completionKind: "origin_context_unavailable",
            lastError: lastError(command, at),
          },
          "origin_context_unavailable",
        ),
      );
    case "fail_synthesis":
    case "reject":
    case "refuse_delivery":
      return changed(deadLetter(record, command, at));
    case "finish_silent":
      return changed(deliver(record, at, { kind: "silent", deliveredAt: at }));
    case "suppress":
      return changed(deliver({ ...record, actionable: false }, at, { kind: "suppressed", deliveredAt: at }));
    case "begin_delivery":
      if (record.deliveryStartedAt !== undefined) return leaseLost();
      return changed(
        edit(
          record,
          at,
          {
            deliveryAttempts: record.deliveryAttempts + 1,
            deliveryStartedAt: at,
            nextAttemptAt: undefined,
            ...lease(command.owner, nowMs),
          },
          "delivery_started",
        ),
      );
    case "confirm_delivery": {
      const parts = command.parts.map((part) => ({ id: part.id, at }));
      return changed(
        deliver(edit(record, at, { deliveryParts: parts }), at, {
          kind: "delivered",
          deliveredAt: at,
          ...optional("deliveryId", parts.at(-1)?.id),
          ...optional("channelId", command.channelId),
          ...historyFields(command.history),
        }),
      );
    }
    case "postpone_delivery": {
      if (record.deliveryAttempts >= DELIVERY_MAX_ATTEMPTS) {
        return changed(
          deadLetter(
            record,
            {
              code: "delivery_attempts_exhausted",
              reason: `No success in ${DELIVERY_MAX_ATTEMPTS} attempts; the last error was ${command.code}.`,
            },
            at,
          ),
        );
      }
      const delayMs =
        command.retryAfterMs ??
        backoff(record.deliveryAttempts - 1, DELIVERY_BACKOFF_BASE_MS, DELIVERY_BACKOFF_CAP_MS);
      return changed(
        edit(
          record,
          at,
          {
            state: "delivery_retry",
            deliveryStartedAt: undefined,
            ...NO_LEASE,
            nextAttemptAt: new Date(nowMs + delayMs).toISOString(),
            lastError: lastError(command, at),
          },
          "delivery_postponed",
          command.code,
        ),
      );
    }
    case "lose_delivery":
      return changed(loseDelivery(record, command, at));
    case "recover":
      return recover(record, at);
    case "expire":
      return expire(record, nowMs);
    case "retry":
      return retry(record, command.allowUnknown, nowMs);
    case "cancel":
      if (inFlight(record)) {
        return refused(
          "continuation_in_flight",
          "The continuation is being worked on; try again when that has ended.",
        );
      }
      return changed(
        settle(record, at, "cancelled", {
          code: "cancelled_by_operator",
          reason: "Continuation cancelled by the operator.",
        }),
      );
    case "resolve_delivered":
      return changed(
        deliver(record, at, {
          kind: "delivered",
          deliveredAt: at,
          ...optional("deliveryId", command.deliveryId),
          ...optional("channelId", command.channelId),
          ...historyFields(command.history),
          ...(command.proof === undefined ? {} : { proof: { ...command.proof, at } }),
        }),
      );
    case "resolve_not_delivered":
      return changed(
        edit(
          record,
          at,
          {
            state: "ready_to_deliver",
            deliveryStartedAt: undefined,
            nextAttemptAt: at,
            lastError: undefined,
          },
          "resolved_not_delivered",
        ),
      );
    case "resolve_dead_lettered":
      return changed(
        deadLetter(record, { code: OPERATOR_DEAD_LETTERED, reason: "Dead-lettered by the operator." }, at),
      );
    default:
      throw new BugError(`unknown command ${String(command satisfies never)}`);
  }
}

function acceptResult(
  record: ContinuationRecord,
  command: Extract<Command, { kind: "accept_result" }>,
  nowMs: number,
): Decision {
  if (record.resultIdempotencyKey !== undefined) {
    const same =
      record.resultIdempotencyKey === command.idempotencyKey &&
      record.resultPayloadHash === command.payloadHash;
    return same
      ? { kind: "unchanged", record }
      : refused(
          "result_conflict",
          "Another result was accepted for this continuation; a result is immutable.",
        );
  }
  const gone = refused(
    "continuation_expired",
    "The deadline of this continuation has passed without a result.",
  );
  if (record.state === "expired") return gone;
  if (record.state !== "claimed") {
    return refused("result_not_accepted", `A continuation in state ${record.state} accepts no result.`);
  }
  const expired = expire(record, nowMs);
  if (expired.kind === "changed") return { ...gone, record: expired.record };
  const at = new Date(nowMs).toISOString();
  const next = edit(
    record,
    at,
    {
      state: "result_received",
      resultIdempotencyKey: command.idempotencyKey,
      resultPayloadHash: command.payloadHash,
      resultPayload: command.payload,
      nextAttemptAt: at,
    },
    "result_received",
  );
  if (recordFileBytes(next) > RECORD_MAX_BYTES - RECORD_RESERVE_BYTES) {
    return refused(
      "record_too_large",
      "The payload is small but nested so deeply that its indented form passes the 2 MiB record limit.",
    );
  }
  return changed(next);
}

function abandonOrigin(record: ContinuationRecord, at: string): Decision {
  if (record.originContextState !== "pending") return { kind: "unchanged", record };
  return changed(
    edit(
      record,
      at,
      {
        originContextState: "abandoned",
        originContextRef: undefined,
        lastError: {
          code: "origin_context_unavailable",
          reason: "The origin run did not commit its pinned continuation context.",
          at,
        },
        ...(record.state === "result_received" ? { nextAttemptAt: at } : {}),
      },
      "origin_abandoned",
    ),
  );
}

/** Stores the text with its destination binding; capture ends here, other modes become deliverable. */
function withText(
  record: ContinuationRecord,
  command: { text: string; bindingMac: string },
  at: string,
  patch: Partial<ContinuationRecord>,
  what: string,
): ContinuationRecord {
  const ready = edit(
    record,
    at,
    {
      ...patch,
      state: "ready_to_deliver",
      synthesizedText: command.text,
      deliveryBindingMac: command.bindingMac,
      ...(record.mode === "notify_if_actionable" ? { actionable: true } : {}),
      ...NO_LEASE,
      nextAttemptAt: at,
    },
    what,
  );
  if (record.mode === "capture") return deliver(ready, at, { kind: "captured", deliveredAt: at });
  // Payload and text together may pass 2 MiB; the payload has done its work (store-format.md §10).
  return recordFileBytes(ready) > RECORD_MAX_BYTES - RECORD_RESERVE_BYTES
    ? edit(ready, at, { resultPayload: undefined })
    : ready;
}

function refusedByTable(record: ContinuationRecord, command: CommandKind): Decision {
  switch (command) {
    case "retry":
      return record.state === "synthesizing"
        ? refused("continuation_in_flight", "The continuation is being synthesized.")
        : refused("not_retryable", `A continuation in state ${record.state} can't be retried.`);
    case "cancel":
      return record.state === "synthesizing"
        ? refused("continuation_in_flight", "The continuation is being synthesized.")
        : refused("already_terminal", `The continuation is already ${record.state}.`);
    case "resolve_delivered":
    case "resolve_not_delivered":
    case "resolve_dead_lettered":
      return refused(
        "not_delivery_unknown",
        `Only delivery_unknown can be resolved; the state is ${record.state}.`,
      );
    default:
      return leaseLost();
  }
}
