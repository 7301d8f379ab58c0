import { describe, expect, test } from "bun:test";
import { fileJson } from "../../src/core/json.ts";
import { RECORD_MAX_BYTES, type RetentionLimits } from "../../src/core/limits.ts";
import { type ContinuationRecord, claimIdentity, recordFileName } from "../../src/core/record.ts";
import { createMemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { NOW, NOW_MS, recordIn } from "../support/records.ts";
import { claim, openStore, recordsOf, STATE_DIR } from "../support/store-harness.ts";

const TRANSACTION = `${STATE_DIR}/continuation-transaction-v3.json`;
const recordPath = (id: string) => `${STATE_DIR}/records-v3/${recordFileName(id)}`;

/** A store that has its guard and manifest already, so that only the commits of the test are counted. */
async function warmStore(retention: Partial<RetentionLimits> = {}) {
  const fs = createMemoryFileSystem();
  const store = await openStore({ fs, retention });
  await store.commit({ puts: [claim("warm")] });
  return { fs, store };
}

/** A settled record. The one with the lowest number is the oldest. */
const ended = (id: string, number: number, patch: Partial<ContinuationRecord> = {}) =>
  claim(id, { state: "expired", updatedAt: new Date(NOW_MS + number).toISOString(), ...patch });

function codeOf(act: () => unknown): string | undefined {
  try {
    act();
    return undefined;
  } catch (error) {
    return (error as { code?: string }).code;
  }
}

const rejection = (promise: Promise<unknown>) =>
  promise.then(
    () => undefined,
    (error: { code: string; message: string }) => error,
  );

describe("group commit", () => {
  test("mutations that wait together share one transaction, which costs two fsyncs", async () => {
    const { fs, store } = await warmStore();
    const before = { ...fs.counts };
    await Promise.all(
      Array.from({ length: 32 }, (_, index) => store.commit({ puts: [claim(`c-${index}`)] })),
    );
    expect(fs.counts.fsyncs - before.fsyncs).toBe(2);
    expect(fs.counts.renames - before.renames).toBe(1);
    expect(recordsOf(store)).toContainKeys(["warm", "c-0", "c-31"]);
  });

  test("what arrives while a commit is under way goes into the next one, whatever its number", async () => {
    const { fs, store } = await warmStore();
    const before = fs.counts.fsyncs;
    const start = fs.trace.length;
    const first = store.commit({ puts: [claim("first")] });
    while (!fs.trace.slice(start).some((step) => step.label === "transaction.rename")) {
      await Promise.resolve();
    }
    const rest = Array.from({ length: 20 }, (_, index) => store.commit({ puts: [claim(`r-${index}`)] }));
    await Promise.all([first, ...rest]);
    expect(fs.counts.fsyncs - before).toBe(4);
  });

  test("a mutation shows on head at once, and on the durable view only when it is on disk", async () => {
    const { fs, store } = await warmStore();
    const record = claim("new");
    const done = store.commit({ puts: [record] });
    expect(store.head.get("new")).toEqual(record);
    expect(store.head.byClaim(claimIdentity(record))).toEqual(record);
    expect(store.head.active()).toBe(2);
    expect(store.head.activeOfOrigin("run-new")).toBe(1);
    expect(store.durable.get("new")).toBeUndefined();
    expect(store.durable.byClaim(claimIdentity(record))).toBeUndefined();
    expect(store.durable.active()).toBe(1);
    await done;
    expect(store.durable.get("new")).toEqual(record);
    expect(fs.files()[TRANSACTION]).toContain('"new"');
  });

  test("listeners hear the changed ids before the mutation's own promise resolves", async () => {
    const { store } = await warmStore();
    const heard: string[] = [];
    const stop = store.onDurable((changed) => heard.push(...changed));
    const done = store.commit({ puts: [claim("a"), claim("b")] }).then(() => heard.push("resolved"));
    await done;
    expect(heard).toEqual(["a", "b", "resolved"]);
    stop();
    await store.commit({ puts: [claim("c")] });
    expect(heard).toHaveLength(3);
  });

  test("whenDurable waits for one record's newest version, or for all, and does not wait for others", async () => {
    const { store } = await warmStore();
    await store.whenDurable("warm");
    await store.whenDurable("never seen");
    const done = store.commit({ puts: [claim("x")] });
    await store.whenDurable("x");
    expect(store.durable.get("x")).toBeDefined();
    await done;
    void store.commit({ puts: [claim("y")] });
    await store.whenDurable();
    expect(store.durable.get("y")).toBeDefined();
  });

  test("what retention deletes goes the same way", async () => {
    const retention = { terminalMaxRecords: 1 };
    const { fs, store } = await warmStore(retention);
    await store.commit({ puts: [ended("x", 1)] });
    await store.close();
    const again = await openStore({ fs, retention });
    expect(fs.files()[recordPath("x")]).toBeDefined();
    const done = again.commit({ puts: [ended("y", 2)] });
    expect(again.head.get("x")).toBeUndefined();
    expect(again.durable.get("x")).toBeDefined();
    await done;
    expect(again.durable.get("x")).toBeUndefined();
    await again.close();
    expect(fs.files()[recordPath("x")]).toBeUndefined();
  });
});

describe("files", () => {
  test("the transaction file is exactly the indented JSON of what it carries, and then blanks", async () => {
    const { fs, store } = await warmStore({ terminalMaxRecords: 1 });
    await store.commit({ puts: [ended("gone", 1)] });
    await store.commit({ puts: [ended("ünï", 2, { note: "line\nbreak \u2028 \ud83d\ude00" })] });
    const text = fs.files()[TRANSACTION] ?? "";
    const parsed = JSON.parse(text);
    expect(text.trimEnd()).toBe(fileJson(parsed).trimEnd());
    expect(text.slice(fileJson(parsed).length)).toMatch(/^ *$/);
    expect(parsed.deletes).toEqual(["gone"]);
    expect(parsed.writes.map((record: { continuationId: string }) => record.continuationId)).toEqual([
      "warm",
      "ünï",
    ]);
  });

  test("past 256 KiB the checkpoint moves records to their own files, and a version leaves the transaction only then", async () => {
    const { fs, store } = await warmStore();
    const text = "x".repeat(40 * 1024);
    for (let index = 0; index < 12; index += 1) {
      await store.commit({ puts: [claim(`big-${index}`, { filler: text })] });
      const carried = JSON.parse(fs.files()[TRANSACTION] ?? '{"writes":[]}').writes as {
        continuationId: string;
      }[];
      for (const id of Object.keys(recordsOf(store))) {
        const inFile = fs.files()[recordPath(id)] === fileJson(store.durable.get(id));
        expect(inFile || carried.some((record) => record.continuationId === id)).toBe(true);
      }
    }
    expect(Object.keys(fs.files()).filter((path) => path.includes("records-v3/")).length).toBeGreaterThan(4);
    await store.close();
    expect(fs.files()[TRANSACTION]).toBeUndefined();
  });

  test("a version that changed while its file was written stays in the transaction", async () => {
    const { fs, store } = await warmStore();
    const opened = Promise.withResolvers<void>();
    fs.holdWhen((step) => (step.label === "records.sync" ? opened.promise : undefined));
    await store.commit({ puts: [claim("big", { filler: "x".repeat(300 * 1024) })] });
    while (fs.files()[recordPath("big")] === undefined) await Promise.resolve();
    await store.commit({ puts: [claim("big", { filler: "newer" })] });
    opened.resolve();
    for (let turn = 0; turn < 20; turn += 1) await Promise.resolve();
    await store.commit({ puts: [claim("other")] });
    for (const survival of ["none", "all"] as const) {
      const again = await openStore({ fs: fs.afterPowerCut(survival) });
      expect(again.durable.get("big")?.filler).toBe("newer");
      await again.close();
    }
  });

  test("commits wait for the checkpoint when a mebibyte is carried, and go on after it", async () => {
    const { fs, store } = await warmStore();
    const opened = Promise.withResolvers<void>();
    fs.holdWhen((step) => (step.label === "records.sync" ? opened.promise : undefined));
    const filler = "x".repeat(300 * 1024);
    const commits = Array.from({ length: 6 }, (_, index) =>
      store.commit({ puts: [claim(`big-${index}`, { filler })] }),
    );
    await commits[2];
    for (let turn = 0; turn < 50; turn += 1) await Promise.resolve();
    expect(store.durable.get("big-3")).toBeUndefined();
    expect((fs.files()[TRANSACTION] ?? "").length).toBeLessThan(1024 * 1024 + 1024);
    opened.resolve();
    await Promise.all(commits);
    expect(store.durable.get("big-5")).toBeDefined();
  });

  test("a mutation larger than a transaction may be is split, and every part is within the limit", async () => {
    const { fs, store } = await warmStore();
    let largest = 0;
    fs.failWhen((operation) => {
      if (operation.label === "transaction.rename") {
        largest = Math.max(largest, (fs.files()[TRANSACTION] ?? "").length);
      }
      return undefined;
    });
    const filler = "x".repeat(1024 * 1024);
    const puts = Array.from({ length: 20 }, (_, index) => claim(`huge-${index}`, { filler }));
    await store.commit({ puts });
    largest = Math.max(largest, (fs.files()[TRANSACTION] ?? "").length);
    expect(largest).toBeGreaterThan(4 * 1024 * 1024);
    expect(largest).toBeLessThanOrEqual(16 * 1024 * 1024);
    await store.close();
    const again = await openStore({ fs });
    expect(Object.keys(recordsOf(again))).toHaveLength(21);
    await again.close();
  });

  test("what was written over or dropped lies about for a second after the last commit, and no longer", async () => {
    const fs = createMemoryFileSystem();
    const clock = createFakeClock(NOW_MS);
    let setBackMs = 0;
    const store = await openStore({ fs, clock: { ...clock, now: () => clock.now() - setBackMs } });
    const spares = () => Object.keys(fs.files()).filter((path) => path.endsWith(".tmp"));
    const pass = async (ms: number) => {
      clock.advance(ms);
      for (let turn = 0; turn < 40; turn += 1) await Promise.resolve();
    };
    await store.commit({ puts: [claim("a", { note: "dropped" })] });
    await pass(600);
    await store.commit({ puts: [claim("a")] });
    expect(spares().map((path) => fs.files()[path]?.includes("dropped"))).toEqual([true]);
    await pass(999);
    expect(spares()).toHaveLength(1);
    await pass(1);
    expect(spares()).toEqual([]);
    expect(Object.values(fs.files()).filter((text) => text.includes("dropped"))).toEqual([]);
    // It goes on as before, and a clock that is set back does not put it off for ever.
    await store.commit({ puts: [claim("b")] });
    await store.commit({ puts: [claim("c")] });
    expect(spares()).toHaveLength(1);
    setBackMs = 3_600_000;
    await pass(1_000);
    expect(spares()).toEqual([]);
    await store.close();
    expect(clock.pending()).toBe(0);
  });

  test("the manifest follows within a second, and not more often", async () => {
    const fs = createMemoryFileSystem();
    const clock = createFakeClock(NOW_MS);
    const store = await openStore({ fs, clock });
    await store.commit({ puts: [claim("a")] });
    const stats = () => JSON.parse(fs.files()[`${STATE_DIR}/continuation-store-v3.json`] ?? "{}").stats;
    expect(stats().records).toBe(0);
    await store.commit({ puts: [claim("b")] });
    let writes = 0;
    fs.failWhen(({ label }) => {
      if (label === "manifest.rename") writes += 1;
      return undefined;
    });
    clock.advance(1000);
    for (let turn = 0; turn < 20; turn += 1) await Promise.resolve();
    expect(stats().records).toBe(2);
    expect(writes).toBe(1);
    await store.close();
    expect(clock.pending()).toBe(0);
  });
});

describe("refusals", () => {
  test("a record that the next start would refuse is not committed", async () => {
    const { fs, store } = await warmStore();
    const before = fs.counts.operations;
    const receipt = { kind: "delivered", deliveredAt: NOW, deliveryId: "" } as const;
    for (const wrong of [
      claim("bad", { receipt }),
      claim("bad", { taskKey: "" }),
      claim("bad", { updatedAt: "soon" }),
    ]) {
      expect(() => store.commit({ puts: [claim("good"), wrong] })).toThrow("broken invariant");
    }
    expect(store.head.get("good")).toBeUndefined();
    expect(fs.counts.operations).toBe(before);
    await store.commit({ puts: [claim("good")] });
  });

  test("a record over 2 MiB in its indented form is refused before anything changes, however small it is sent", async () => {
    const { fs, store } = await warmStore();
    const before = fs.counts.operations;
    let deep: unknown = 1;
    for (let level = 0; level < 60_000; level += 1) deep = [deep];
    const refused = recordIn("result_received", { continuationId: "deep", resultPayload: deep as never });
    expect(codeOf(() => store.commit({ puts: [claim("good"), refused] }))).toBe("record_too_large");
    const wide = claim("wide", { filler: "x".repeat(RECORD_MAX_BYTES) });
    expect(codeOf(() => store.commit({ puts: [wide] }))).toBe("record_too_large");
    expect(store.head.get("good")).toBeUndefined();
    await store.whenDurable();
    expect(fs.counts.operations).toBe(before);
    await store.commit({ puts: [claim("good")] });
  });

  for (const label of ["transaction.write", "transaction.rename", "transaction.sync"]) {
    test(`a failed ${label} poisons the store: all who wait get one error, and later ones are refused`, async () => {
      const { fs, store } = await warmStore();
      fs.failWhen((operation) => (operation.label === label ? "ENOSPC" : undefined));
      const waiting = [
        store.commit({ puts: [claim("a")] }),
        store.commit({ puts: [claim("b")] }),
        store.whenDurable(),
      ];
      const errors = await Promise.all(waiting.map(rejection));
      expect(errors.map((error) => error?.code)).toEqual(Array(3).fill("store_write_failed"));
      expect(new Set(errors).size).toBe(1);
      expect(store.fault()).toEqual({ code: "ENOSPC", since: new Date(NOW_MS).toISOString() });
      expect(codeOf(() => store.commit({ puts: [claim("c")] }))).toBe("store_poisoned");
      expect(store.durable.get("a")).toBeUndefined();
      expect(Object.keys(recordsOf(store))).toEqual(["warm"]);
      const operations = fs.counts.operations;
      await store.close();
      expect(fs.counts.operations).toBe(operations);

      fs.failWhen();
      const again = await openStore({ fs });
      expect(again.durable.get("warm")).toBeDefined();
      expect(again.fault()).toBeUndefined();
      await again.commit({ puts: [claim("d")] });
      await again.close();
    });
  }

  test("a failed checkpoint poisons the store and loses nothing that was acknowledged", async () => {
    const { fs, store } = await warmStore();
    fs.failWhen((operation) => (operation.label === "records.sync" ? "EIO" : undefined));
    const acknowledged: string[] = [];
    for (let index = 0; index < 40 && store.fault() === undefined; index += 1) {
      const id = `big-${index}`;
      try {
        await store.commit({ puts: [claim(id, { filler: "x".repeat(40 * 1024) })] });
        acknowledged.push(id);
      } catch {}
    }
    expect(store.fault()?.code).toBe("EIO");
    expect(acknowledged.length).toBeGreaterThan(3);
    await store.close();
    for (const survival of ["none", "all"] as const) {
      const again = await openStore({ fs: fs.afterPowerCut(survival) });
      expect(recordsOf(again)).toContainKeys(acknowledged);
      await again.close();
    }
  });

  test("a closed store refuses mutations and closes only once", async () => {
    const { store } = await warmStore();
    const late = store.commit({ puts: [claim("late")] });
    const closed = store.close();
    expect(store.close()).toBe(closed);
    expect(codeOf(() => store.commit({ puts: [claim("x")] }))).toBe("service_stopping");
    await closed;
    await late;
  });
});
