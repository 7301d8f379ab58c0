import { ERROR_REASON_MAX_CHARS, LEASE_MS, TIMELINE_MAX_ENTRIES } from "./limits.ts";
import type { HistoryOutcome } from "./ports/delivery.ts";
import type { ContinuationRecord, Receipt } from "./record.ts";
import { settleRecord } from "./retention.ts";

/** The ends and edits that the transitions are made of. Only `continuation-transition.ts` imports this. */

export const NO_LEASE = { leaseOwner: undefined, leaseUntil: undefined } as const;

export function deliver(record: ContinuationRecord, at: string, receipt: Receipt): ContinuationRecord {
  const delivered = edit(
    record,
    at,
    {
      state: "delivered",
      receipt,
      deliveryStartedAt: undefined,
      lastError: undefined,
      nextAttemptAt: undefined,
      ...NO_LEASE,
    },
    receipt.kind,
    receipt.proof === undefined ? undefined : "proved",
  );
  return settleRecord(delivered, at, { keepText: record.mode === "capture" });
}

export function deadLetter(record: ContinuationRecord, error: { code: string; reason: string }, at: string) {
  return settle(record, at, "dead_lettered", error);
}

export function settle(
  record: ContinuationRecord,
  at: string,
  state: "expired" | "cancelled" | "dead_lettered",
  error: { code: string; reason: string },
): ContinuationRecord {
  const ended = edit(
    record,
    at,
    {
      state,
      nextAttemptAt: undefined,
      ...NO_LEASE,
      lastError: lastError(error, at),
    },
    state,
    error.code,
  );
  return settleRecord(ended, at, { keepText: state === "dead_lettered" });
}

/** Not settled: the text stays, so that an operator or a proof can still decide. */
export function loseDelivery(
  record: ContinuationRecord,
  error: { code: string; reason: string },
  at: string,
) {
  const unknown = edit(
    record,
    at,
    {
      state: "delivery_unknown",
      nextAttemptAt: undefined,
      ...NO_LEASE,
      lastError: lastError(error, at),
    },
    "delivery_unknown",
    error.code,
  );
  return settleRecord(unknown, at, { keepText: true });
}

export function backoff(failures: number, baseMs: number, capMs: number): number {
  return Math.min(capMs, baseMs * 2 ** Math.max(0, Math.min(failures, 30)));
}

export function lease(owner: string, nowMs: number) {
  return { leaseOwner: owner, leaseUntil: new Date(nowMs + LEASE_MS).toISOString() };
}

export function lastError(error: { code: string; reason: string }, at: string) {
  return { code: error.code, reason: error.reason.slice(0, ERROR_REASON_MAX_CHARS), at };
}

export function historyFields(history: HistoryOutcome) {
  return history.recorded
    ? { historyRecorded: true }
    : { historyRecorded: false, historyErrorCode: history.code.slice(0, 128) };
}

export function optional<K extends string>(key: K, value: string | undefined): { [P in K]?: string } {
  return (value === undefined ? {} : { [key]: value }) as { [P in K]?: string };
}

/** A new version of the record: `undefined` in the patch removes a key; `what` adds a line to its timeline. */
export function edit(
  record: ContinuationRecord,
  at: string,
  patch: Partial<ContinuationRecord>,
  what?: string,
  code?: string,
): ContinuationRecord {
  const next: ContinuationRecord = { ...record, ...patch, updatedAt: at };
  for (const key of Object.keys(patch)) if (next[key] === undefined) delete next[key];
  if (what === undefined) return next;
  const entry = code === undefined ? { at, what } : { at, what, code };
  return { ...next, timeline: [...(record.timeline ?? []), entry].slice(-TIMELINE_MAX_ENTRIES) };
}
