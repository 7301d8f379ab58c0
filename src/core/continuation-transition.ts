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
  deliverPost,
  edit,
  fitted,
  lastError,
  lease,
  loseDelivery,
  NO_LEASE,
  postponed,
  settle,
  withText,
} from "./continuation-edits.ts";
import { expire, inFlight, OPERATOR_DEAD_LETTERED, recover, retry } from "./continuation-recovery.ts";
import { assert, BugError } from "./errors.ts";
import {
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
 * I1. `MOVES` is the only list of legal moves; a result outside of it is a bug and stops. Work and results past the
 *     deadline are refused and move the record as `expire`.
 * I2. A terminal state never changes, except delivery_unknown by an operator or a proof, and dead_lettered by an
 *     operator's retry.
 * I3. The attempt counter and the start time are in the record before the model is called or a post begins.
 */

/** Decides one command at `nowMs`. Pure: the caller commits what comes out. */
export function transition(record: ContinuationRecord, command: Command, nowMs: number): Decision {
  const decision = decide(record, command, nowMs);
  if (decision.kind === "unchanged" || decision.record === undefined) return decision;
  const move = decision.kind === "refused" ? "expire" : command.kind;
  assert(
    MOVES[record.state][move]?.includes(decision.record.state),
    `${record.state} × ${move} must not lead to ${decision.record.state}`,
  );
  return { ...decision, record: fitted(decision.record) };
}

function decide(record: ContinuationRecord, command: Command, nowMs: number): Decision {
  const at = new Date(nowMs).toISOString();
  if (command.kind === "accept_result") return acceptResult(record, command, nowMs);
  if (command.kind === "cancel" && record.state === "cancelled") return { kind: "unchanged", record };
  if (command.kind === "recover" && MOVES[record.state].recover === undefined)
    return { kind: "unchanged", record };
  if (MOVES[record.state][command.kind] === undefined) return refusedByTable(record, command.kind);
  if (STARTS_WORK.has(command.kind)) {
    const expired = expire(record, nowMs);
    if (expired.kind === "changed") {
      return { ...refused("continuation_expired", "The deadline has passed."), record: expired.record };
    }
  }

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
    case "await_origin":
      // Decided on an older version: the origin was settled meanwhile, and the record is due already.
      if (record.originContextState !== "pending") return leaseLost();
      return changed(
        postponed(record, nowMs, {
          code: "origin_context_pending",
          reason: "The origin turn has not committed its pinned context yet.",
        }),
      );
    case "defer":
      return changed(postponed(record, nowMs, command));
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
            // A snapshot that could not be used is given up, as the older runtime does.
            ...(record.originContextState === "pinned"
              ? { originContextState: "abandoned", originContextRef: undefined }
              : {}),
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
    case "confirm_delivery":
      return changed(deliverPost(record, at, command));
    case "postpone_delivery": {
      if (record.deliveryAttempts >= DELIVERY_MAX_ATTEMPTS) return exhausted(record, command.code, at);
      const delayMs = command.retryAfterMs ?? deliveryBackoff(record);
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
    // A proof may also come for a record that is held after a restore: its post was made after the backup.
    case "prove_delivered":
    case "resolve_delivered":
      return changed(deliverPost(record, at, command));
    case "resolve_not_delivered":
      return deliverAgain(record, nowMs, at, "resolved_not_delivered");
    case "prove_absent":
      return proveAbsent(record, nowMs);
    case "resolve_dead_lettered":
      return changed(
        deadLetter(record, { code: OPERATOR_DEAD_LETTERED, reason: "Dead-lettered by the operator." }, at),
      );
    default:
      throw new BugError(`unknown command ${String(command satisfies never)}`);
  }
}

/** Commands that begin or finish work: past the deadline they expire the record instead. */
const STARTS_WORK: ReadonlySet<CommandKind> = new Set<CommandKind>([
  "begin_synthesis",
  "complete_synthesis",
  "use_fallback",
  "finish_silent",
  "suppress",
  "begin_delivery",
]);

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

function exhausted(record: ContinuationRecord, lastCode: string, at: string): Decision {
  return changed(
    deadLetter(
      record,
      {
        code: "delivery_attempts_exhausted",
        reason: `No success in ${DELIVERY_MAX_ATTEMPTS} attempts; the last error was ${lastCode}.`,
      },
      at,
    ),
  );
}

function deliveryBackoff(record: ContinuationRecord): number {
  return backoff(record.deliveryAttempts - 1, DELIVERY_BACKOFF_BASE_MS, DELIVERY_BACKOFF_CAP_MS);
}

/** A post that surely did not happen is made again, from now or from `dueAt` on. */
function deliverAgain(record: ContinuationRecord, nowMs: number, dueAt: string, what: string): Decision {
  if (nowMs >= Date.parse(record.deadline)) {
    return refused(
      "continuation_expired",
      "The deadline has passed; delivering again would expire at once. Resolve it as dead-lettered instead.",
    );
  }
  return changed(
    edit(
      record,
      new Date(nowMs).toISOString(),
      { state: "ready_to_deliver", deliveryStartedAt: undefined, nextAttemptAt: dueAt, lastError: undefined },
      what,
    ),
  );
}

/**
 * A proved absence is a failed attempt like any other: the next one waits for its back-off, counted from the begin of
 * the post, and the attempts are limited. A channel that fails and proves it each time must not be asked without end.
 */
function proveAbsent(record: ContinuationRecord, nowMs: number): Decision {
  const at = new Date(nowMs).toISOString();
  if (record.deliveryAttempts >= DELIVERY_MAX_ATTEMPTS) {
    return exhausted(record, record.lastError?.code ?? "delivery_outcome_unknown", at);
  }
  const dueMs = Math.max(nowMs, Date.parse(record.deliveryStartedAt ?? at) + deliveryBackoff(record));
  return deliverAgain(record, nowMs, new Date(dueMs).toISOString(), "proved_absent");
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
    case "prove_delivered":
    case "resolve_delivered":
    case "resolve_not_delivered":
    case "prove_absent":
    case "resolve_dead_lettered":
      return refused(
        "not_delivery_unknown",
        `Only delivery_unknown can be resolved; the state is ${record.state}.`,
      );
    default:
      return leaseLost();
  }
}
