import { utf8Bytes } from "./json.ts";
import {
  DEFERRAL_BASE_MS,
  DEFERRAL_CAP_MS,
  ERROR_REASON_MAX_CHARS,
  LEASE_MS,
  RECORD_MAX_BYTES,
  RECORD_RESERVE_BYTES,
  TIMELINE_MAX_ENTRIES,
} from "./limits.ts";
import type { HistoryOutcome } from "./ports/delivery.ts";
import { type ContinuationRecord, type Receipt, recordFileBytes } from "./record.ts";
import { settleRecord } from "./retention.ts";

/** The ends and edits that the transitions are made of. Only `continuation-transition.ts` and `continuation-recovery.ts` import this. */

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

/** Bytes of a part in the record's file beside its id: keys, date and indentation. */
const PART_FRAME_BYTES = 100;

/** All parts, or the newest that fit into half of what a record has in reserve: thousands must not keep it from ending. */
function fittingParts(parts: readonly { readonly id: string }[], at: string): { id: string; at: string }[] {
  const kept: { id: string; at: string }[] = [];
  let room = RECORD_RESERVE_BYTES / 2;
  for (const { id } of parts.toReversed()) {
    room -= utf8Bytes(JSON.stringify(id)) + PART_FRAME_BYTES;
    if (room < 0) break;
    kept.unshift({ id, at });
  }
  return kept;
}

/** The post is there: its receipt, with the id of every part that is known. */
export function deliverPost(
  record: ContinuationRecord,
  at: string,
  post: {
    readonly deliveryId?: string;
    readonly parts?: readonly { id: string }[];
    readonly channelId?: string;
    readonly history: HistoryOutcome;
    readonly proof?: { by: string; evidence: string };
  },
): ContinuationRecord {
  const parts = post.parts && fittingParts(post.parts, at);
  return deliver(parts === undefined ? record : edit(record, at, { deliveryParts: parts }), at, {
    kind: "delivered",
    deliveredAt: at,
    ...optional("deliveryId", post.deliveryId ?? parts?.at(-1)?.id),
    ...optional("channelId", post.channelId),
    ...historyFields(post.history),
    ...(post.proof === undefined ? {} : { proof: { ...post.proof, at } }),
  });
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

function historyFields(history: HistoryOutcome) {
  return history.recorded
    ? { historyRecorded: true }
    : { historyRecorded: false, historyErrorCode: history.code.slice(0, 128) };
}

function optional<K extends string>(key: K, value: string | undefined): { [P in K]?: string } {
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

/** The record with its next attempt put off: 1 s doubling to 5 min. */
export function postponed(
  record: ContinuationRecord,
  nowMs: number,
  error: { code: string; reason: string },
) {
  const at = new Date(nowMs).toISOString();
  const delayMs = backoff(record.synthesisDeferrals, DEFERRAL_BASE_MS, DEFERRAL_CAP_MS);
  return edit(record, at, {
    synthesisDeferrals: record.synthesisDeferrals + 1,
    nextAttemptAt: new Date(nowMs + delayMs).toISOString(),
    lastError: lastError(error, at),
  });
}

/** Stores the text with its destination binding; capture ends here, other modes become deliverable. */
export function withText(
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
  return record.mode === "capture" ? deliver(ready, at, { kind: "captured", deliveredAt: at }) : ready;
}

/**
 * Keeps a record with a text within 2 MiB, with room for its receipt: the payload has done its work by then and goes
 * (store-format.md §10). A record of an older runtime may be near the limit without one; then its timeline goes too.
 */
export function fitted(record: ContinuationRecord): ContinuationRecord {
  if (record.synthesizedText === undefined && record.state !== "delivery_unknown") return record;
  if (fits(record)) return record;
  const { resultPayload: _payload, ...withoutPayload } = record;
  if (fits(withoutPayload)) return withoutPayload;
  const { timeline: _timeline, ...least } = withoutPayload;
  return least;
}

function fits(record: ContinuationRecord): boolean {
  return recordFileBytes(record) <= RECORD_MAX_BYTES - RECORD_RESERVE_BYTES;
}
