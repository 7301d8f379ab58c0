import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { retentionSchema } from "../../src/core/limits.ts";
import {
  type ContinuationRecord,
  claimIdentity,
  isSettled,
  isTerminal,
  originKey,
  STATES,
} from "../../src/core/record.ts";
import { createDurableView } from "../../src/store/durable-view.ts";
import { createSorted } from "../../src/store/sorted.ts";
import { NOW_MS } from "../support/records.ts";
import { claim, tableOf } from "../support/store-harness.ts";

const LIMITS = retentionSchema.parse({});
const minute = (n: number) => new Date(NOW_MS + n * 60_000).toISOString();
const ID = fc.integer({ min: 0, max: 11 }).map((n) => `c-${n}`);
const MAYBE_MINUTE = fc.option(fc.integer({ min: -5, max: 5 }), { nil: undefined });

/** A new version of a record in any state, or a delete; times in minutes. */
interface Change {
  id: string;
  drop: boolean;
  state: ContinuationRecord["state"];
  updated: number;
  deadline: number;
  next: number | undefined;
  lease: number | undefined;
  capture: boolean;
  text: boolean;
}
const CHANGE: fc.Arbitrary<Change> = fc.record({
  id: ID,
  drop: fc.boolean(),
  state: fc.constantFrom(...STATES),
  updated: fc.integer({ min: -5, max: 5 }),
  deadline: fc.integer({ min: -5, max: 5 }),
  next: MAYBE_MINUTE,
  lease: MAYBE_MINUTE,
  capture: fc.boolean(),
  text: fc.boolean(),
});

describe("sorted list", () => {
  test("behaves like a sorted array, also over several chunks", () => {
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: 0, max: 3000 }), { maxLength: 1500 }),
        fc.array(fc.tuple(fc.boolean(), fc.integer({ min: 0, max: 3000 })), { maxLength: 1500 }),
        fc.integer({ min: -1, max: 3001 }),
        (initial, changes, after) => {
          const model = new Set(initial);
          const list = createSorted<number>((a, b) => a - b, [...model]);
          for (const [add, value] of changes) {
            if (add) {
              list.add(value);
              model.add(value);
            } else expect(list.remove(value)).toBe(model.delete(value) ? value : undefined);
          }
          const expected = [...model].sort((a, b) => a - b);
          expect([...list.from()]).toEqual(expected);
          expect([...list.from(after)]).toEqual(expected.filter((value) => value > after));
          expect([list.size, list.first(), list.last()]).toEqual([
            expected.length,
            expected[0],
            expected.at(-1),
          ]);
        },
      ),
      { numRuns: 60 },
    );
  });

  test("stays right when it grows by one at a time through many chunks", () => {
    const list = createSorted<number>((a, b) => a - b);
    const values = Array.from({ length: 5000 }, (_, index) => (index * 7919) % 5000);
    for (const value of values) list.add(value);
    expect([...list.from()]).toEqual([...values].sort((a, b) => a - b));
    for (const value of values) if (value % 3 !== 0) list.remove(value);
    expect([...list.from(2000)].slice(0, 3)).toEqual([2001, 2004, 2007]);
  });
});

describe("durable view", () => {
  test("every answer from an index equals the answer from looking at all records", () => {
    const check = (changes: readonly Change[], start: number) => {
      const model = new Map<string, ContinuationRecord>();
      const versions = changes.map(toRecord);
      for (const { id, record } of versions.slice(0, start)) {
        if (record === undefined) model.delete(id);
        else model.set(id, record);
      }
      const view = createDurableView(tableOf(model.values()), LIMITS);
      for (const { id, record } of versions.slice(start)) {
        // Asking in between moves work from the waiting to the ready order.
        view.due(NOW_MS, 3);
        view.apply(id, record);
        if (record === undefined) model.delete(id);
        else model.set(id, record);
        compare(view, [...model.values()]);
      }
      // The clock goes on, and may be set back.
      for (const minutes of [3, -2, 1, 6, -6, 0])
        compare(view, [...model.values()], NOW_MS + minutes * 60_000);
    };
    fc.assert(
      fc.property(fc.array(CHANGE, { maxLength: 40 }), fc.integer({ min: 0, max: 20 }), (changes, start) =>
        check(changes, start),
      ),
      { numRuns: 150 },
    );
  });
});

function toRecord(change: Change): { id: string; record: ContinuationRecord | undefined } {
  const { id, drop, state, updated, deadline, next, lease, capture, text } = change;
  if (drop) return { id, record: undefined };
  const number = Number(id.slice(2));
  const record = claim(id, {
    originRunId: `run-${number % 3}`,
    historyBoundary: `run-${number % 3}`,
    createdAt: minute(number % 4),
    updatedAt: minute(updated),
    deadline: minute(deadline),
    state,
    mode: capture ? "capture" : "reply",
  });
  if (text) record.synthesizedText = "text";
  if (next !== undefined) record.nextAttemptAt = minute(next);
  if (lease !== undefined) Object.assign(record, { leaseOwner: "o", leaseUntil: minute(lease) });
  return { id, record };
}

function compare(
  view: ReturnType<typeof createDurableView>,
  all: ContinuationRecord[],
  nowMs = NOW_MS,
): void {
  const ids = (records: ContinuationRecord[]) => records.map((record) => record.continuationId);
  const by =
    <T>(key: (record: ContinuationRecord) => T, sign = 1) =>
    (a: ContinuationRecord, b: ContinuationRecord) =>
      key(a) < key(b) ? -sign : key(a) > key(b) ? sign : 0;
  const idOrder = by((record) => record.continuationId);
  const active = all.filter((record) => !isTerminal(record));
  const ready = (record: ContinuationRecord) =>
    Math.max(Date.parse(record.nextAttemptAt ?? "1970"), Date.parse(record.leaseUntil ?? "1970"));
  const work = active.filter(
    (record) =>
      ["result_received", "ready_to_deliver", "delivery_retry"].includes(record.state) &&
      record.deliveryStartedAt === undefined,
  );
  const due = work
    .filter((record) => ready(record) <= nowMs)
    .sort((a, b) => by((record) => record.updatedAt)(a, b) || idOrder(a, b));

  expect(ids(view.due(nowMs, 100))).toEqual(ids(due));
  expect(ids(view.due(nowMs, 2))).toEqual(ids(due.slice(0, 2)));
  expect(view.dueCount(nowMs)).toBe(due.length);
  const later = work.map(ready).filter((at) => at > nowMs);
  expect(view.nextDueAt(nowMs)).toBe(later.length === 0 ? undefined : Math.min(...later));

  const late = active
    .filter((record) => Date.parse(record.deadline) <= nowMs)
    .sort((a, b) => by((record) => record.deadline)(a, b) || idOrder(a, b));
  expect(ids(view.overdue(nowMs, 100))).toEqual(ids(late));
  const ahead = active.map((record) => Date.parse(record.deadline)).filter((at) => at > nowMs);
  expect(view.nextDeadlineAt(nowMs)).toBe(ahead.length === 0 ? undefined : Math.min(...ahead));
  expect(view.oldestActiveAt()).toBe(active.map((record) => record.createdAt).sort()[0]);

  expect(view.active()).toBe(active.length);
  for (const run of ["run-0", "run-1", "run-2"]) {
    const own = active.filter((record) => record.originRunId === run);
    expect(view.activeOfOrigin(run)).toBe(own.filter((record) => originKey(record) === run).length);
    const group = { originRunId: run, originConversationId: "terminal:main", historyBoundary: run };
    expect(ids(view.members(group)).sort()).toEqual(ids(own).sort());
  }
  for (const record of all) expect(view.byClaim(claimIdentity(record))).toBe(record);

  const listed = [...all].sort(
    (a, b) => by((record) => record.createdAt, -1)(a, b) || by((record) => record.continuationId, -1)(a, b),
  );
  expect(ids(pages(view, undefined))).toEqual(ids(listed));
  for (const state of STATES) {
    const inState = listed.filter((record) => record.state === state);
    expect(ids(pages(view, state))).toEqual(ids(inState));
    expect(ids(view.inStates([state]))).toEqual(ids(inState));
    expect(view.counts()[state]).toBe(inState.length);
  }
  const texts = all.filter((record) => record.synthesizedText !== undefined && isSettled(record));
  const dead = texts.filter((record) => record.state === "dead_lettered");
  const retryable = dead
    .map((record) => ({ at: Date.parse(record.deadline), id: record.continuationId }))
    .filter(({ at }) => at > nowMs)
    .sort((a, b) => a.at - b.at || (a.id < b.id ? -1 : 1));
  expect([...view.retryable(nowMs)]).toEqual(retryable);
  expect(view.stats()).toMatchObject({
    records: all.length,
    active: active.length,
    capturedText: texts.filter((record) => record.mode === "capture" && !dead.includes(record)).length,
  });
}

function pages(view: ReturnType<typeof createDurableView>, state: ContinuationRecord["state"] | undefined) {
  const found: ContinuationRecord[] = [];
  let after: readonly [string, string] | undefined;
  do {
    const page = view.page(3, after, state);
    found.push(...page.records);
    after = page.next;
  } while (after !== undefined);
  return found;
}
