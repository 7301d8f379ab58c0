import { describe, expect, test } from "bun:test";
import { retentionSchema } from "../../src/core/limits.ts";
import { createMemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { createDurableView } from "../../src/store/durable-view.ts";
import { createRecordTable } from "../../src/store/record-table.ts";
import { NOW } from "../support/records.ts";
import { claim, openStore } from "../support/store-harness.ts";

const LIMITS = retentionSchema.parse({});
const settled = (id: string, over: object = {}) =>
  claim(id, { state: "delivered", compactedAt: NOW, receipt: { kind: "silent", deliveredAt: NOW }, ...over });

describe("settled records as texts", () => {
  test("look the same from every side as the objects would, also those that lack what older versions lacked", () => {
    const records = [
      settled("a"),
      settled("b", { unknown: { key: [1, "ü"] } }),
      claim("c"),
      settled("d", { originContextState: "legacy_missing" }),
    ];
    const texts = new Map(records.map((record) => [record.continuationId, JSON.stringify(record, null, 2)]));
    const { synthesisDeferrals: _, originContextState: __, ...older } = settled("d");
    texts.set("d", JSON.stringify(older));
    const plain = createDurableView(createRecordTable(records), LIMITS);
    const table = createRecordTable();
    for (const record of records) table.read(record, texts.get(record.continuationId) ?? "");
    expect([...table.live()].map((record) => record.continuationId)).toEqual(["c"]);
    const frozen = createDurableView(table, LIMITS);
    table.forgetFacts();
    for (const view of [plain, frozen]) {
      view.apply("e", settled("e"), JSON.stringify(settled("e")));
      view.apply("a", undefined);
      view.freeze();
    }
    expect(frozen.page(10)).toEqual(plain.page(10));
    expect([...frozen.all()]).toEqual([...plain.all()]);
    expect(frozen.stats()).toEqual(plain.stats());
    expect(frozen.inStates(["delivered"])).toEqual(plain.inStates(["delivered"]));
    for (const id of ["a", "b", "c", "d", "e"]) expect(frozen.get(id)).toEqual(plain.get(id));
    expect(frozen.apply("b", undefined)).toEqual(plain.apply("b", undefined));
    expect(frozen.stats()).toEqual(plain.stats());
  });

  test("are read anew at each look once all were told, so that none stays in memory as an object", () => {
    const text = JSON.stringify(settled("a"));
    const view = createDurableView(createRecordTable(), LIMITS);
    const record = settled("a");
    view.apply("a", record, text);
    expect(view.get("a")).toBe(record);
    view.freeze();
    expect(view.get("a")).not.toBe(record);
    expect(view.get("a")).not.toBe(view.get("a"));
    expect(view.get("a")).toEqual(record);
    const open = claim("b");
    view.apply("b", open, JSON.stringify(open));
    view.freeze();
    expect(view.get("b")).toBe(open);
  });

  test("a list of all is that of the moment when it was asked for", () => {
    const view = createDurableView(createRecordTable([settled("a"), settled("b")]), LIMITS);
    const all = view.all();
    view.apply("a", undefined);
    view.apply("c", settled("c"), JSON.stringify(settled("c")));
    view.freeze();
    expect([...all].map((record) => record.continuationId).sort()).toEqual(["a", "b"]);
    expect([...all]).toHaveLength(2);
  });

  test("runs are known by all their records", async () => {
    const store = await openStore({ fs: createMemoryFileSystem() });
    await store.commit({
      puts: [settled("a", { originRunId: "run-1" }), claim("b", { originRunId: "run-22" })],
    });
    expect(["run-1", "run-22", "run-2", "un-1", ""].map((run) => store.durable.knowsRun(run))).toEqual([
      true,
      true,
      false,
      false,
      false,
    ]);
    await store.close();
  });
});
