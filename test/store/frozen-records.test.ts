import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import type { ContinuationRecord } from "../../src/core/record.ts";
import { createFrozenRecords, FROZEN_MAX_CHARS } from "../../src/store/frozen-records.ts";
import { claim } from "../support/store-harness.ts";

const SEGMENT_BYTES = 256 * 1024;

const withKeys = (id: string, over: object) => ({ ...claim(id), ...over }) as ContinuationRecord;

describe("records as bytes", () => {
  test("come back with every member, in its order, whatever its name", () => {
    const frozen = createFrozenRecords();
    const odd = JSON.parse(
      `{"__proto__":{"a":1},"continuationId":"x","7":null,"b":[{"2":1,"1":2,"__proto__":3}],"":"\\ud800 ü"}`,
    ) as ContinuationRecord;
    const records = [
      claim("a"),
      odd,
      withKeys("b", { unknown: -0, list: [] }),
      withKeys("c", { note: "😀" }),
    ];
    const handles = records.map((record) => frozen.add(record) ?? -1);
    for (const [index, record] of records.entries()) {
      expect(JSON.stringify(frozen.read(handles[index] ?? -1))).toBe(JSON.stringify(record));
    }
    expect(Object.hasOwn(frozen.read(handles[1] ?? -1), "__proto__")).toBe(true);
  });

  test("leave out members that are undefined, as JSON does", () => {
    const frozen = createFrozenRecords();
    const handle = frozen.add(withKeys("a", { note: undefined })) ?? -1;
    expect(Object.hasOwn(frozen.read(handle), "note")).toBe(false);
    expect(frozen.read(handle)).toEqual(claim("a"));
  });

  test("of more than the limit are not taken", () => {
    const frozen = createFrozenRecords();
    const room = FROZEN_MAX_CHARS - JSON.stringify(Object.values(withKeys("a", { note: "" }))).length;
    expect(frozen.add(withKeys("a", { note: "x".repeat(room + 1) }))).toBeUndefined();
    const largest = withKeys("a", { note: "\u0800".repeat(room) });
    expect(frozen.read(frozen.add(largest) ?? -1)).toEqual(largest);
  });

  test("stay readable when there are more sets of keys than are kept", () => {
    const frozen = createFrozenRecords();
    const records = Array.from({ length: 1_500 }, (_, index) =>
      withKeys(`${index}`, { [`k${index}`]: index }),
    );
    const handles = records.map((record) => frozen.add(record) ?? -1);
    expect(handles.map((handle) => frozen.read(handle))).toEqual(records);
  });

  test("that were removed are not read", () => {
    const frozen = createFrozenRecords();
    const handle = frozen.add(claim("a")) ?? -1;
    expect(frozen.read(handle)).toEqual(claim("a"));
    frozen.remove(handle);
    expect(() => frozen.read(handle)).toThrow("a handle that there is not");
    expect(() => frozen.remove(handle)).toThrow("a handle that there is not");
  });

  test("are what was added, in little more room than they need, through any adding and removing", () => {
    fc.assert(
      fc.property(
        fc.infiniteStream(fc.nat()),
        fc.array(fc.record({ adds: fc.nat(400), removes: fc.nat(400), chars: fc.nat(3_000) }), {
          maxLength: 12,
        }),
        (choices, rounds) => {
          const frozen = createFrozenRecords();
          const held = new Map<number, string>();
          let bytes = 0;
          for (const { adds, removes, chars } of rounds) {
            for (let index = 0; index < adds; index += 1) {
              const record = withKeys(`${index}`, { note: "é".repeat((chars * index) % 3_001) });
              const text = JSON.stringify(record);
              const handle = frozen.add(record) ?? -1;
              expect(held.has(handle)).toBe(false);
              held.set(handle, text);
              bytes += Buffer.byteLength(text);
            }
            for (let index = 0; index < removes && held.size > 0; index += 1) {
              const [handle, text] = [...held][choices.next().value % held.size] ?? [-1, ""];
              frozen.remove(handle);
              held.delete(handle);
              bytes -= Buffer.byteLength(text);
            }
            for (const [handle, text] of held) expect(JSON.stringify(frozen.read(handle))).toBe(text);
            // The newest segment, four spare ones, and at the end of each other one less than the largest record takes.
            const room = SEGMENT_BYTES - 3 * FROZEN_MAX_CHARS;
            expect(frozen.reserved).toBeLessThanOrEqual(
              SEGMENT_BYTES * (5 + Math.ceil(bytes / (room * 0.75))),
            );
          }
        },
      ),
      { numRuns: 20 },
    );
  });
});
