import type { RetentionLimits } from "../core/limits.ts";
import type { DurableView, StoreCapture, TimeKey } from "../core/ports/store.ts";
import {
  type ContinuationRecord,
  type ContinuationState,
  claimIdentity,
  isTerminal,
  STATES,
  TERMINAL_STATES,
} from "../core/record.ts";
import { heldText } from "../core/retention.ts";
import { createActiveIndex } from "./active-index.ts";
import type { RecordFacts, RecordTable } from "./record-table.ts";
import { compareText, createSorted, type Sorted } from "./sorted.ts";

/**
 * Owns: the committed records and every index over them.
 * Does not own: what is committed (journal.ts calls `apply` after a transaction is durable).
 *
 * I1. Each index is changed with the record it points to, in the same call; nothing scans all records.
 * I2. Records are shared with callers and never changed in place.
 */

type ListRow = Pick<ContinuationRecord, "createdAt" | "continuationId">;
type WorkRow = Pick<ContinuationRecord, "updatedAt" | "continuationId">;

export interface DurableRecords extends DurableView {
  /** Puts the new version, or deletes with undefined. Returns the version before. */
  apply(id: string, next: ContinuationRecord | undefined): ContinuationRecord | undefined;
  /** What was put settled is kept as bytes from now on: whoever was told of it has looked at it. */
  freeze(): void;
  /** All records as they are now, read one by one until `release`. */
  capture(): StoreCapture;
}

const byTime = (a: TimeKey, b: TimeKey) => a.at - b.at || compareText(a.id, b.id);
const newestFirst = (a: ListRow, b: ListRow) =>
  compareText(b.createdAt, a.createdAt) || compareText(b.continuationId, a.continuationId);
const oldestUpdate = (a: WorkRow, b: WorkRow) =>
  compareText(a.updatedAt, b.updatedAt) || compareText(a.continuationId, b.continuationId);

const WORKABLE: ReadonlySet<ContinuationState> = new Set<ContinuationState>([
  "result_received",
  "ready_to_deliver",
  "delivery_retry",
]);

/** Sorts after the id of any record. */
const AFTER_EVERY_ID = "\uffff";

const ms = (date: string | undefined) => (date === undefined ? 0 : Date.parse(date));
const readyAt = (record: ContinuationRecord) => Math.max(ms(record.nextAttemptAt), ms(record.leaseUntil));
const workKey = (record: ContinuationRecord): TimeKey => ({
  at: readyAt(record),
  id: record.continuationId,
});
const deadlineKey = (record: RecordFacts): TimeKey => ({
  at: ms(record.deadline),
  id: record.continuationId,
});
const hasDeadline = (record: ContinuationRecord | undefined): record is ContinuationRecord =>
  record !== undefined && !isTerminal(record);
/** A begun post whose outcome is not stored is nobody's to repeat: its job, or the next start, decides. */
const isWorkable = (record: ContinuationRecord) =>
  WORKABLE.has(record.state) && record.deliveryStartedAt === undefined;
const isRetryable = (record: RecordFacts) => heldText(record) === "dead_letter";

/** Builds the view over the table, which is its own from now on, sorting each index once. */
export function createDurableView(records: RecordTable, limits: RetentionLimits): DurableRecords {
  const claims = new Map<string, string>();
  const active = createActiveIndex();
  const counts = Object.fromEntries(STATES.map((state) => [state, 0])) as Record<ContinuationState, number>;
  const tally = { compacted: 0, capturedText: 0, historyDegraded: 0 };

  function count(record: RecordFacts, step: 1 | -1): void {
    counts[record.state] += step;
    if (record.compactedAt !== undefined) tally.compacted += step;
    if (heldText(record) === "captured") tally.capturedText += step;
    if (record.receipt?.historyRecorded === false) tally.historyDegraded += step;
  }

  const initial = [...records.facts()];
  for (const facts of initial) {
    claims.set(claimIdentity(facts), facts.continuationId);
    count(facts, 1);
  }
  const live = [...records.live()];
  for (const record of live) active.change(undefined, record);
  const rowsOf = new Map<ContinuationState, ListRow[]>(STATES.map((state) => [state, []]));
  const rows: ListRow[] = [];
  for (const facts of initial.sort(newestFirst)) {
    const it = row(facts);
    rows.push(it);
    rowsOf.get(facts.state)?.push(it);
  }
  const all = createSorted<ListRow>(newestFirst, rows);
  const lists = Object.fromEntries(
    STATES.map((state) => [state, createSorted<ListRow>(newestFirst, rowsOf.get(state))]),
  ) as Record<ContinuationState, Sorted<ListRow>>;
  const deadlines = createSorted(byTime, live.filter(hasDeadline).map(deadlineKey));
  const retryable = createSorted(byTime, initial.filter(isRetryable).map(deadlineKey));
  // Work waits in `waiting` by the time it becomes due; `promote` moves it to `ready`, which is in working order.
  const waiting = createSorted(byTime, live.filter(isWorkable).map(workKey));
  const ready = createSorted<WorkRow>(oldestUpdate);
  let promotedMs = Number.NEGATIVE_INFINITY;

  function promote(nowMs: number): void {
    if (nowMs < promotedMs) demote(nowMs);
    promotedMs = nowMs;
    for (let first = waiting.first(); first !== undefined && first.at <= nowMs; first = waiting.first()) {
      waiting.remove(first);
      const record = records.get(first.id);
      if (record !== undefined) ready.add(record);
    }
  }

  /** The clock was set back: what was ready by the later time waits again. */
  function demote(nowMs: number): void {
    for (const { continuationId } of [...ready.from()]) {
      const record = records.get(continuationId);
      if (record === undefined || readyAt(record) <= nowMs) continue;
      ready.remove(record);
      waiting.add(workKey(record));
    }
  }

  function apply(id: string, next: ContinuationRecord | undefined): ContinuationRecord | undefined {
    const previous = records.get(id);
    active.change(previous, next);
    const sameDeadline = hasDeadline(previous) && hasDeadline(next) && previous.deadline === next.deadline;
    const sameState = previous?.state === next?.state;
    // The same in every version of a record, and so in both lists that it is in.
    let listed: ListRow | undefined;
    if (previous !== undefined) {
      count(previous, -1);
      if (isWorkable(previous) && !ready.remove(previous)) waiting.remove(workKey(previous));
      if (isRetryable(previous)) retryable.remove(deadlineKey(previous));
      if (hasDeadline(previous) && !sameDeadline) deadlines.remove(deadlineKey(previous));
      if (!sameState) listed = lists[previous.state].remove(previous);
    }
    if (next === undefined) {
      if (previous === undefined) return undefined;
      records.delete(id);
      all.remove(previous);
      if (claims.get(claimIdentity(previous)) === id) claims.delete(claimIdentity(previous));
      return previous;
    }
    records.put(next);
    count(next, 1);
    if (isWorkable(next)) waiting.add(workKey(next));
    if (isRetryable(next)) retryable.add(deadlineKey(next));
    if (hasDeadline(next) && !sameDeadline) deadlines.add(deadlineKey(next));
    if (sameState) return previous;
    listed ??= row(next);
    lists[next.state].add(listed);
    if (previous === undefined) {
      claims.set(claimIdentity(next), id);
      all.add(listed);
    }
    return previous;
  }

  const present = (ids: Iterable<string>): ContinuationRecord[] => {
    const found: ContinuationRecord[] = [];
    for (const id of ids) {
      const record = records.get(id);
      if (record !== undefined) found.push(record);
    }
    return found;
  };

  return {
    apply,
    get: (id) => records.get(id),
    byClaim(identity) {
      const id = claims.get(identity);
      return id === undefined ? undefined : records.get(id);
    },
    members: (group) => present(active.members(group)),
    active: () => active.total(),
    activeOfOrigin: (key) => active.ofOrigin(key),
    due(nowMs, limit) {
      promote(nowMs);
      const due: ContinuationRecord[] = [];
      for (const { continuationId } of ready.from()) {
        if (due.length >= limit) break;
        const record = records.get(continuationId);
        if (record !== undefined) due.push(record);
      }
      return due;
    },
    dueCount(nowMs) {
      promote(nowMs);
      return ready.size;
    },
    oldestActiveAt() {
      let oldest: string | undefined;
      for (const state of STATES) {
        const at = TERMINAL_STATES.has(state) ? undefined : lists[state].last()?.createdAt;
        if (at !== undefined && (oldest === undefined || at < oldest)) oldest = at;
      }
      return oldest;
    },
    nextDueAt(afterMs) {
      promote(afterMs);
      return waiting.first()?.at;
    },
    nextDeadlineAt: (afterMs) => deadlines.from({ at: afterMs, id: AFTER_EVERY_ID }).next().value?.at,
    overdue(nowMs, limit) {
      const ids: string[] = [];
      for (const key of deadlines.from()) {
        if (key.at > nowMs || ids.length >= limit) break;
        ids.push(key.id);
      }
      return present(ids);
    },
    retryable: (nowMs) => retryable.from({ at: nowMs, id: AFTER_EVERY_ID }),
    freeze: () => records.freeze(),
    capture: () => records.capture(),
    knowsRun(originRunId) {
      const part = `\0${originRunId}\0`;
      for (const identity of claims.keys()) if (identity.includes(part)) return true;
      return false;
    },
    inStates: (states) => states.flatMap((state) => present(ids(lists[state]))),
    page(limit, after, state) {
      const list = state === undefined ? all : lists[state];
      const start = after === undefined ? undefined : { createdAt: after[0], continuationId: after[1] };
      const found: ContinuationRecord[] = [];
      for (const { continuationId } of list.from(start)) {
        const record = records.get(continuationId);
        if (record === undefined) continue;
        const last = found.at(-1);
        if (found.length === limit && last !== undefined) {
          return { records: found, next: [last.createdAt, last.continuationId] };
        }
        found.push(record);
      }
      return { records: found };
    },
    counts: () => ({ ...counts }),
    stats: () => ({
      format: "per-record-v3",
      records: records.size,
      active: active.total(),
      unresolvedDelivery: counts.delivery_unknown,
      deadLettered: counts.dead_lettered,
      terminalTombstones: records.size - active.total() - counts.delivery_unknown,
      ...tally,
      limits: {
        terminalMaxRecords: limits.terminalMaxRecords,
        terminalMaxAgeMs: limits.terminalMaxAgeMs,
        capturedTextMaxRecords: limits.capturedTextMaxRecords,
        capturedTextMaxAgeMs: limits.capturedTextMaxAgeMs,
      },
    }),
  };
}

/** A row of its own, so that the lists don't keep old versions of records alive. */
function row(record: ListRow): ListRow {
  return { createdAt: record.createdAt, continuationId: record.continuationId };
}

function* ids(list: Sorted<ListRow>): Iterable<string> {
  for (const { continuationId } of list.from()) yield continuationId;
}
