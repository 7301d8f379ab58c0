import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { fileJson } from "../../src/core/json.ts";
import { memberBody } from "../../src/store/codec.ts";
import { createTransactionFile, deleteEntry, type Entry, putEntry } from "../../src/store/transaction.ts";
import { claimedRecord } from "../support/records.ts";
import "../support/seed.ts";

const AT = "2026-11-30T00:00:00.000Z";
const put = (id: string, filler: string): Entry => {
  const record = claimedRecord({ continuationId: id, filler });
  return putEntry(record);
};
const frame = (generation: string) => ({ generation, createdAt: AT, length: (bytes: number) => bytes });
const text = (bytes: Uint8Array) => Buffer.from(bytes).toString("utf8");

/** What the file must say, from the entries in the order in which they came. */
function expected(generation: string, carried: readonly Entry[]): string {
  return fileJson({
    schemaVersion: 3,
    generation,
    createdAt: AT,
    writes: carried.flatMap(({ record }) => record ?? []),
    deletes: carried.flatMap(({ id, record }) => (record === undefined ? [id] : [])),
  });
}

type Change = { kind: "put" | "delete" | "drop" | "drop an old one"; id: string; filler: string };
const change: fc.Arbitrary<Change> = fc.record({
  kind: fc.constantFrom("put", "put", "delete", "drop", "drop an old one"),
  id: fc.constantFrom("a", "b", "c", "ü-€-😀", 'q"\\'),
  filler: fc.oneof(
    fc.string({ unit: "binary", maxLength: 30 }),
    fc.constant("\n    \n"),
    fc.constant("x".repeat(9_000)),
  ),
});

describe("the transaction file", () => {
  test("is byte for byte the JSON of what it carries, after any changes", () => {
    fc.assert(
      fc.property(fc.array(fc.array(change, { maxLength: 6 }), { maxLength: 12 }), (commits) => {
        const file = createTransactionFile();
        const carried = new Map<string, Entry>();
        const old: Entry[] = [];
        for (const [index, changes] of commits.entries()) {
          for (const { kind, id, filler } of changes) {
            const now = carried.get(id);
            if (kind === "drop an old one") {
              const [first] = old;
              if (first !== undefined && carried.get(first.id) !== first) file.drop(first);
              continue;
            }
            if (now !== undefined) old.unshift(now);
            carried.delete(id);
            if (kind === "drop") {
              if (now !== undefined) file.drop(now);
              continue;
            }
            const entry = kind === "put" ? put(id, filler) : deleteEntry(id);
            carried.set(id, entry);
            file.put(entry);
          }
          const blanks = [0, 7, 100_000][index % 3] ?? 0;
          const content = text(
            file.content({
              generation: `generation-${index}`,
              createdAt: AT,
              length: (bytes) => bytes + blanks,
            }),
          );
          const json = expected(`generation-${index}`, [...carried.values()]);
          expect(content).toBe(json + " ".repeat(blanks));
          const bytes = [...carried.values()].reduce((sum, entry) => sum + entry.bytes, 0);
          expect(Buffer.byteLength(content)).toBeLessThanOrEqual(bytes + 200 + blanks);
        }
      }),
      { numRuns: 500 },
    );
  });

  test("keeps what it returned as it is while versions are dropped", () => {
    const file = createTransactionFile();
    const entries = ["a", "b", "c"].map((id) => put(id, "x".repeat(1_900_000)));
    for (const entry of entries) file.put(entry);
    const content = file.content(frame("g"));
    const before = text(content);
    for (const entry of entries) file.drop(entry);
    expect(text(content)).toBe(before);
    expect(text(file.content(frame("h")))).toBe(expected("h", []));
  });

  test("an entry gives the record's own file back", () => {
    fc.assert(
      fc.property(fc.json(), fc.string({ unit: "binary" }), (payload, filler) => {
        const record = claimedRecord({ resultPayload: JSON.parse(payload), filler });
        const body = fileJson(record);
        expect(memberBody(putEntry(record).text)).toBe(body);
      }),
      { numRuns: 500 },
    );
  });
});
