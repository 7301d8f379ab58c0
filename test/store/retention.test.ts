import { describe, expect, test } from "bun:test";
import { isSettled, isTerminal, STATES } from "../../src/core/record.ts";
import { settleRecord } from "../../src/core/retention.ts";
import { createMemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { claimedRecord, NOW, NOW_MS, recordIn } from "../support/records.ts";
import { claim, openStore, recordsOf } from "../support/store-harness.ts";

const REF = { schemaVersion: 1, digest: "d".repeat(64), bytes: 10, messageCount: 2 } as const;
const FULL = {
  originContextState: "pinned",
  originContextRef: REF,
  originContextDigest: REF.digest,
  originContextMessageCount: 2,
  resultPayload: { a: 1 },
  synthesizedText: "text",
} as const;
const at = (minute: number) => new Date(NOW_MS + minute * 60_000).toISOString();

describe("settleRecord", () => {
  for (const state of STATES) {
    test(`${state}: keeps what the format says, and doing it twice changes nothing`, () => {
      const record = claimedRecord({ ...FULL, state });
      const settled = settleRecord(record, NOW, { keepText: true });
      if (!isTerminal(record)) return expect(settled).toBe(record);
      expect(settled.originContextRef).toBeUndefined();
      expect(settled).toMatchObject({
        originContextState: "scrubbed",
        originContextDigest: REF.digest,
        originContextMessageCount: 2,
      });
      expect(settled.resultPayload === undefined).toBe(isSettled(record));
      expect(settled.compactedAt).toBe(isSettled(record) ? NOW : undefined);
      const keeps = state === "dead_lettered" || state === "delivery_unknown";
      expect(settled.synthesizedText).toBe(keeps ? "text" : undefined);
      expect(settleRecord(settled, at(5), { keepText: true })).toBe(settled);
      const without = settleRecord(settled, at(5), { keepText: false });
      expect(without.synthesizedText).toBe(state === "delivery_unknown" ? "text" : undefined);
      expect(without.compactedAt).toBe(settled.compactedAt);
      return undefined;
    });
  }

  test("captured text stays, and a context state without a reference is not called scrubbed", () => {
    const record = recordIn("delivered", {
      mode: "capture",
      originContextState: "abandoned",
      synthesizedText: "t",
    });
    expect(settleRecord(record, NOW, { keepText: true })).toMatchObject({
      synthesizedText: "t",
      originContextState: "abandoned",
    });
  });
});

describe("retention in the store", () => {
  async function opened(retention: Parameters<typeof openStore>[0]["retention"]) {
    const fs = createMemoryFileSystem();
    const clock = createFakeClock(NOW_MS);
    const store = await openStore({ fs, clock, retention });
    const settle = (id: string, minute: number, patch = {}) =>
      store.commit({ puts: [claim(id, { state: "delivered", updatedAt: at(minute), ...patch })] });
    return { fs, clock, store, settle };
  }

  test("the oldest settled records beyond the number go in the same commit, unsettled ones never", async () => {
    const { fs, store, settle } = await opened({ terminalMaxRecords: 2 });
    await store.commit({
      puts: [claim("active"), claim("unknown", { state: "delivery_unknown", updatedAt: at(-99) })],
    });
    await settle("b", 2);
    await settle("a", 1);
    const done = settle("c", 3);
    expect(store.head.get("a")).toBeUndefined();
    await done;
    expect(Object.keys(recordsOf(store))).toEqual(["active", "b", "c", "unknown"]);
    await store.close();
    const again = await openStore({ fs, retention: { terminalMaxRecords: 2 } });
    expect(Object.keys(recordsOf(again))).toEqual(["active", "b", "c", "unknown"]);
    await again.close();
  });

  test("a settled record older than the age goes with a sweep", async () => {
    const { clock, store, settle } = await opened({ terminalMaxAgeMs: 60 * 60_000 });
    await settle("a", 0);
    await settle("b", 30);
    clock.advance(60 * 60_000);
    await store.sweep(clock.now());
    expect(Object.keys(recordsOf(store))).toEqual(["a", "b"]);
    clock.advance(1);
    await store.sweep(clock.now());
    expect(Object.keys(recordsOf(store))).toEqual(["b"]);
  });

  test("captured and dead-letter texts have limits of their own, by number and by age", async () => {
    const { clock, store, settle } = await opened({
      capturedTextMaxRecords: 1,
      deadLetterTextMaxRecords: 2,
      deadLetterTextMaxAgeMs: 60 * 60_000,
    });
    const text = (id: string) => store.durable.get(id)?.synthesizedText;
    for (const [index, id] of ["c1", "c2"].entries()) {
      await settle(id, index, { mode: "capture", synthesizedText: id });
    }
    for (const [index, id] of ["d1", "d2", "d3"].entries()) {
      await settle(id, index, { state: "dead_lettered", synthesizedText: id, resultPayload: { a: 1 } });
    }
    expect(["c1", "c2", "d1", "d2", "d3"].map(text)).toEqual([undefined, "c2", undefined, "d2", "d3"]);
    expect(store.durable.stats()).toMatchObject({
      capturedText: 1,
      compacted: 5,
      deadLettered: 3,
      records: 5,
    });
    const compactedAt = store.durable.get("d2")?.compactedAt;
    clock.advance(61 * 60_000 + 1);
    await store.sweep(clock.now());
    expect(["c2", "d2", "d3"].map(text)).toEqual(["c2", undefined, "d3"]);
    expect(store.durable.get("d2")).toMatchObject({ compactedAt, updatedAt: at(1) });
  });

  test("a dead letter of mode capture keeps its text by the limits of dead letters", async () => {
    const { store, settle } = await opened({ capturedTextMaxRecords: 0, deadLetterTextMaxRecords: 1 });
    await settle("dead", 0, { mode: "capture", state: "dead_lettered", synthesizedText: "kept" });
    expect(store.durable.get("dead")?.synthesizedText).toBe("kept");
    await settle("later", 1, { mode: "capture", state: "dead_lettered", synthesizedText: "newer" });
    expect(store.durable.get("dead")?.synthesizedText).toBeUndefined();
    expect(store.durable.get("later")?.synthesizedText).toBe("newer");
  });

  test("smaller limits take hold when the store opens", async () => {
    const { fs, store } = await opened({});
    const puts = Array.from({ length: 600 }, (_, index) =>
      claim(`s-${String(index).padStart(3, "0")}`, { state: "expired", updatedAt: at(index) }),
    );
    await store.commit({ puts });
    await store.close();
    const again = await openStore({ fs, retention: { terminalMaxRecords: 5 } });
    expect(Object.keys(recordsOf(again))).toEqual(["s-595", "s-596", "s-597", "s-598", "s-599"]);
    await again.close();
    expect(Object.keys(fs.files()).filter((path) => path.includes("records-v3/"))).toHaveLength(5);
  });
});
