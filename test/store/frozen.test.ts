import { describe, expect, test } from "bun:test";
import { retentionSchema } from "../../src/core/limits.ts";
import { createMemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { createDurableView } from "../../src/store/durable-view.ts";
import { createRecordTable } from "../../src/store/record-table.ts";
import { NOW } from "../support/records.ts";
import { claim, openStore, tableOf } from "../support/store-harness.ts";

const LIMITS = retentionSchema.parse({});
const settled = (id: string, over: object = {}) =>
  claim(id, { state: "delivered", compactedAt: NOW, receipt: { kind: "silent", deliveredAt: NOW }, ...over });

describe("settled records as bytes", () => {
  test("look the same from every side as the objects would", () => {
    const records = [
      settled("a"),
      settled("b", { unknown: { key: [1, "ü"] } }),
      claim("c"),
      settled("d", { originContextState: "legacy_missing" }),
    ];
    const plain = createDurableView(tableOf(records), LIMITS);
    const table = createRecordTable();
    for (const record of records) table.read(record);
    expect([...table.live()].map((record) => record.continuationId)).toEqual(["c"]);
    const frozen = createDurableView(table, LIMITS);
    table.forgetFacts();
    for (const view of [plain, frozen]) {
      view.apply("e", settled("e"));
      view.apply("a", undefined);
    }
    frozen.freeze();
    expect(frozen.page(10)).toEqual(plain.page(10));
    expect([...frozen.capture().records]).toEqual([...plain.capture().records]);
    expect(frozen.stats()).toEqual(plain.stats());
    expect(frozen.inStates(["delivered"])).toEqual(plain.inStates(["delivered"]));
    for (const id of ["a", "b", "c", "d", "e"]) expect(frozen.get(id)).toEqual(plain.get(id));
    expect(frozen.apply("b", undefined)).toEqual(plain.apply("b", undefined));
    expect(frozen.stats()).toEqual(plain.stats());
  });

  test("are read anew at each look once all were told, so that none stays in memory as an object", () => {
    const view = createDurableView(createRecordTable(), LIMITS);
    const record = settled("a");
    view.apply("a", record);
    expect(view.get("a")).toBe(record);
    view.freeze();
    expect(view.get("a")).not.toBe(record);
    expect(view.get("a")).not.toBe(view.get("a"));
    expect(view.get("a")).toEqual(record);
    const open = claim("b");
    view.apply("b", open);
    view.freeze();
    expect(view.get("b")).toBe(open);
  });

  test("a capture shows the records of its moment until it is released, whatever is dropped and added", () => {
    const table = createRecordTable();
    const before = Array.from({ length: 2_000 }, (_, index) => settled(`a-${index}`));
    for (const record of before) table.read(record);
    const view = createDurableView(table, LIMITS);
    table.forgetFacts();
    const [first, second] = [view.capture(), view.capture()];
    for (const record of before) view.apply(record.continuationId, undefined);
    for (let index = 0; index < 2_000; index += 1) view.apply(`b-${index}`, settled(`b-${index}`));
    view.freeze();
    expect([...first.records]).toEqual(before);
    first.release();
    first.release();
    expect([...second.records]).toEqual(before);
    second.release();
    expect(view.get("a-1")).toBeUndefined();
    expect([...view.capture().records]).toHaveLength(2_000);
    expect(view.get("b-1999")).toEqual(settled("b-1999"));
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
