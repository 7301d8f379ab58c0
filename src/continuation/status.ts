import type { ContinuationStore } from "../core/ports/store.ts";
import { type ContinuationRecord, type ContinuationState, isTerminal } from "../core/record.ts";
import type {
  ContinuationDetail,
  ContinuationHealth,
  ContinuationStatus,
  OwedItem,
  WatchEvent,
} from "../core/wire.ts";
import { type Hold, isHeld } from "./hold.ts";

/** What the status needs of the hold. */
export type Held = Pick<Hold, "has" | "size">;

/** What may be seen of a record: never payload, text, destination or token. */
export function statusOf(record: ContinuationRecord): ContinuationStatus {
  return {
    continuationId: record.continuationId,
    state: record.state,
    mode: record.mode,
    taskKey: record.taskKey,
    createdAt: record.createdAt,
    updatedAt: record.updatedAt,
    deadline: record.deadline,
    attempts: { synthesis: record.synthesisAttempts, delivery: record.deliveryAttempts },
    synthesisDeferrals: record.synthesisDeferrals,
    originContext: {
      state: record.originContextState,
      ...(record.originContextDigest === undefined ? {} : { digest: record.originContextDigest }),
      ...(record.originContextMessageCount === undefined
        ? {}
        : { messageCount: record.originContextMessageCount }),
    },
    ...(record.completionKind === undefined ? {} : { completionKind: record.completionKind }),
    ...(record.nextAttemptAt === undefined || isTerminal(record)
      ? {}
      : { nextAttemptAt: record.nextAttemptAt }),
    ...(record.lastError === undefined ? {} : { lastError: record.lastError }),
    ...(record.receipt === undefined ? {} : { receipt: record.receipt }),
  };
}

/** The status, its timeline (records of older runtimes have none) and what it waits for. */
export function detailOf(record: ContinuationRecord, nowMs: number, hold: Held): ContinuationDetail {
  const waitsFor = waitsForOf(record, nowMs, hold);
  return {
    ...statusOf(record),
    timeline: record.timeline ?? [{ at: record.createdAt, what: "claimed" }],
    ...(waitsFor === undefined ? {} : { waitsFor }),
  };
}

/** One sentence: what must happen next, and who does it. Undefined when nothing is left to happen. */
export function waitsForOf(record: ContinuationRecord, nowMs: number, hold: Held): string | undefined {
  if (isHeld(record, hold)) return HELD;
  const own = waitsForState(record, nowMs);
  const later = record.state === "claimed" && hold.has(record.continuationId);
  return later ? `${own}; then for ${HELD}` : own;
}

const HELD =
  "a release after the restore: it may have been answered after the backup (continuations prove, continuations release)";

function waitsForState(record: ContinuationRecord, nowMs: number): string | undefined {
  const retryAt = record.nextAttemptAt === undefined ? "" : `; next attempt at ${record.nextAttemptAt}`;
  switch (record.state) {
    case "claimed":
      return record.originContextState === "pending"
        ? "the origin turn to commit, and the service to submit its result"
        : "the service to submit its result";
    case "result_received":
      if (record.originContextState === "pending") return `the origin turn to commit${retryAt}`;
      return record.lastError === undefined ? "a free worker" : `${record.lastError.code} to pass${retryAt}`;
    case "synthesizing":
      return "the model to answer";
    case "ready_to_deliver":
      return record.deliveryStartedAt === undefined
        ? `delivery${retryAt}`
        : "the channel to confirm the post";
    case "delivery_retry":
      return `the channel to accept the post${retryAt}`;
    case "delivery_unknown":
      return "a proof by the channel, or an operator's decision (continuations resolve)";
    case "dead_lettered":
      return canBeRetried(record, nowMs) ? "an operator's retry, if it is still wanted" : undefined;
    default:
      return undefined;
  }
}

/** Past the deadline every decision on a dead letter is refused. */
function canBeRetried(record: ContinuationRecord, nowMs: number): boolean {
  return record.synthesizedText !== undefined && nowMs < Date.parse(record.deadline);
}

/**
 * States in which a promise is still open. So is a dead letter whose text can be retried, until its deadline (`retryable`
 * of the store).
 */
export const NOT_KEPT: readonly ContinuationState[] = [
  "claimed",
  "result_received",
  "synthesizing",
  "ready_to_deliver",
  "delivery_retry",
  "delivery_unknown",
];

/** Nothing happens by itself any more, and a person can still do something. */
export function needsPerson(record: ContinuationRecord, nowMs: number, hold: Held): boolean {
  if (record.state === "dead_lettered") return canBeRetried(record, nowMs);
  return isHeld(record, hold) || record.state === "delivery_unknown";
}

export function owedOf(record: ContinuationRecord, nowMs: number, hold: Held): OwedItem {
  return {
    ...statusOf(record),
    ageMs: Math.max(0, nowMs - Date.parse(record.createdAt)),
    overdue: nowMs >= Date.parse(record.deadline),
    waitsFor: waitsForOf(record, nowMs, hold) ?? "nothing",
    needsPerson: needsPerson(record, nowMs, hold),
  };
}

/** What the newest change of a record was, by its timeline; records of older runtimes have none. */
export function watchEventOf(record: ContinuationRecord): WatchEvent {
  const last = record.timeline?.at(-1);
  // Activation is the store's and adds no line: it is replayed, and must give the same record each time.
  const prepared = record.originContextState === "pinned" && last?.what === "origin_prepared";
  // Nor does a deferral.
  const pinned = prepared && record.lastError?.at !== record.updatedAt;
  const current = last?.at === record.updatedAt && !pinned ? last : undefined;
  const code = current?.code ?? record.lastError?.code;
  return {
    continuationId: record.continuationId,
    state: record.state,
    at: record.updatedAt,
    what: pinned ? "origin_pinned" : (current?.what ?? record.state),
    ...(code === undefined ? {} : { code }),
  };
}

/** Health by the rules of seed-000: unhealthy, degraded, healthy. A poisoned store is unhealthy. */
export function healthOf(store: ContinuationStore, nowMs: number, hold: Held): ContinuationHealth {
  const counts = store.durable.counts();
  const stats = store.durable.stats();
  const fault = store.fault();
  const pending = store.durable.active();
  const oldestPendingAt = store.durable.oldestActiveAt();
  const unhealthy = fault !== undefined || counts.dead_lettered > 0 || counts.delivery_unknown > 0;
  const held = hold.size;
  const degraded = pending > 0 || held > 0 || counts.expired > 0 || stats.historyDegraded > 0;
  return {
    status: unhealthy ? "unhealthy" : degraded ? "degraded" : "healthy",
    checkedAt: new Date(nowMs).toISOString(),
    counts,
    pending,
    due: dueCount(store, hold, nowMs),
    ...(held === 0 ? {} : { held }),
    ...(oldestPendingAt === undefined ? {} : { oldestPendingAt }),
    storage: {
      ...stats,
      ...(fault === undefined ? {} : { fault: { code: fault.code, since: fault.since } }),
    },
  };
}

/** What a worker could start now: without what is held. */
function dueCount(store: ContinuationStore, hold: Held, nowMs: number): number {
  const all = store.durable.dueCount(nowMs);
  if (hold.size === 0) return all;
  return store.durable.due(nowMs, all).filter((record) => !hold.has(record.continuationId)).length;
}
