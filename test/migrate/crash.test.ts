import { describe, expect, test } from "bun:test";
import { fileJson } from "../../src/core/json.ts";
import type { ContinuationRecord } from "../../src/core/record.ts";
import { recordFileName } from "../../src/core/record.ts";
import { createRandom } from "../../src/store/explore/simulated.ts";
import type { MigrationBatch } from "../../src/store/migrate/phases.ts";
import { expectedOf } from "../support/fixture-reading.ts";
import { diskWith, fixtureFiles, openLegacy } from "../support/migrate-disk.ts";
import { explore } from "../support/migrate-explore.ts";
import { recordsOf } from "../support/store-harness.ts";

/** Any crash of a migration, then an opening, ends as without the crash. */

const BATCHES: Record<string, MigrationBatch> = {
  "batches of 1": { records: 1, bytes: 1 },
  "batches of 2": { records: 2, bytes: 1 << 20 },
  "one batch": { records: 1_000, bytes: 1 << 30 },
};

const FIXTURES = [
  "v2/all-states",
  "v2/interrupted-transaction",
  "v2/migration-crash-guard",
  "v2/migration-crash-partial",
  "v2/rollback-window",
  "v2/empty",
  "v1/monolith",
  "v1/with-v2-agreeing",
  "v1/with-v2-compacted",
];

describe("any crash, then an opening, ends as without the crash", () => {
  for (const name of FIXTURES) {
    for (const [batchName, batch] of Object.entries(BATCHES)) {
      test(`${name} in ${batchName}`, async () => {
        const nowMs = Date.parse(expectedOf(name).asOf);
        const { labels, states } = await explore(fixtureFiles(name), nowMs, batch);
        expect(states).toBeGreaterThan(20);
        if (name === "v2/interrupted-transaction") {
          for (const label of ["legacy.record.rename", "legacy.transaction.unlink", "guard.rename"]) {
            expect(labels).toContain(label);
          }
        }
      }, 120_000);
    }
  }

  test("v1, v2 with an unfinished transaction and v3 with another, all at once", async () => {
    const v2 = fixtureFiles("v2/interrupted-transaction");
    const monolith = JSON.parse(fixtureFiles("v1/monolith")["continuations-v1.json"] ?? "{}");
    const old = Object.entries<object>(monolith.records).slice(9, 14);
    const name = Object.keys(v2).find((path) => /records-v2\/[0-9a-f]+\.json$/.test(path)) ?? "";
    const normalised = { ...JSON.parse(v2[name] ?? ""), synthesisDeferrals: 0 };
    normalised.originContextState = normalised.historyBoundary ? "legacy_missing" : "detached_latest";
    const transaction = {
      schemaVersion: 3,
      generation: "g",
      createdAt: "2026-11-20T12:01:04.000Z",
      writes: [normalised],
      // The second is in the monolith still, so it comes back.
      deletes: ["gone", old[0]?.[0]],
    };
    const files = {
      ...v2,
      "continuations-v1.json": JSON.stringify({ ...monolith, records: Object.fromEntries(old) }),
      "continuation-transaction-v3.json": JSON.stringify(transaction),
    };
    const { labels, images } = await explore(files, Date.parse("2026-11-20T12:01:04.000Z"), {
      records: 1,
      bytes: 1,
    });
    expect(images).toBeGreaterThan(50);
    for (const label of [
      "legacy.transaction.unlink",
      "transaction.unlink",
      "guard.rename",
      "record.rename",
    ]) {
      expect(labels).toContain(label);
    }
  }, 120_000);
});

/** Where one record lies before the migration; some lie in several places. */
const PLACES = ["v1", "v2", "v1 and v2", "v2 transaction", "v2 and v3", "v1 and v3 transaction"] as const;

/** A directory with a few records of the fixtures in random places, and what must come out. */
function randomDirectory(seed: number) {
  const random = createRandom(seed);
  const pool = fixtureFiles("v2/all-states");
  const names = Object.keys(pool).filter((name) => /records-v2\/[0-9a-f]+\.json$/.test(name));
  const files: Record<string, string> = { "continuation-secret": pool["continuation-secret"] ?? "" };
  const v1: Record<string, object> = {};
  const v2Writes: object[] = [];
  const v3Writes: object[] = [];
  const expected: Record<string, object> = {};
  const count = 2 + random.below(4);
  for (let taken = 0; taken < count; taken += 1) {
    const [name = ""] = names.splice(random.below(names.length), 1);
    const record = JSON.parse(pool[name] ?? "") as ContinuationRecord;
    const id = record.continuationId;
    const normalised = {
      ...record,
      originContextState: record.historyBoundary === undefined ? "detached_latest" : "legacy_missing",
      synthesisDeferrals: 0,
    };
    const v3 = `records-v3/${recordFileName(id)}`;
    const place = random.pick(PLACES);
    if (place.includes("v1")) v1[id] = record;
    if (place === "v2" || place === "v1 and v2" || place === "v2 and v3") files[name] = fileJson(record);
    if (place === "v2 transaction") {
      v2Writes.push(record);
      if (random.chance(0.5)) files[name] = fileJson({ ...record, taskHash: "an older version" });
    }
    if (place === "v2 and v3") files[v3] = JSON.stringify(normalised);
    if (place === "v1 and v3 transaction") v3Writes.push(normalised);
    expected[id] = normalised;
  }
  const frame = { generation: "g", createdAt: "2026-11-20T12:00:00.000Z" };
  if (Object.keys(v1).length > 0) {
    files["continuations-v1.json"] = JSON.stringify({ schemaVersion: 1, records: v1 });
  }
  if (v2Writes.length > 0 || random.chance(0.2)) {
    const gone = names[0] ?? "";
    files[gone] = pool[gone] ?? "";
    const deletes = [JSON.parse(pool[gone] ?? "").continuationId];
    const transaction = { schemaVersion: 2, ...frame, writes: v2Writes, deletes };
    files["continuation-transaction-v2.json"] = JSON.stringify(transaction);
  }
  if (v3Writes.length > 0) {
    const transaction = { schemaVersion: 3, ...frame, writes: v3Writes, deletes: ["gone"] };
    files["continuation-transaction-v3.json"] = JSON.stringify(transaction);
  }
  return { files, expected };
}

describe("directories by chance", () => {
  for (let seed = 1; seed <= 12; seed += 1) {
    test(`seed ${seed}`, async () => {
      const { files, expected } = randomDirectory(seed);
      const batch = { records: 1 + (seed % 3), bytes: 1 << 20 };
      const { records } = await explore(files, Date.parse("2026-11-20T12:00:19.000Z"), batch);
      expect(records).toEqual(expected as never);
    }, 120_000);
  }
});

test("a disk that fails at any operation stops the opening, and the next one ends as without the fault", async () => {
  const files = fixtureFiles("v2/interrupted-transaction");
  const nowMs = Date.parse(expectedOf("v2/interrupted-transaction").asOf);
  const whole = diskWith(files);
  const store = await openLegacy(whole, { nowMs });
  const end = recordsOf(store);
  await store.close();
  for (let number = 1; number <= whole.counts.operations; number += 1) {
    const fs = diskWith(files);
    fs.failWhen((_, current) => (current === number ? "ENOSPC" : undefined));
    const opened = await openLegacy(fs, { nowMs }).catch((error: { code: string }) => error.code);
    fs.failWhen();
    const label = whole.trace[number - 1]?.label;
    // A temporary that can't be removed, or a manifest that is written while closing, is no reason to stop.
    if (typeof opened !== "string") {
      expect(["temporary.unlink", "manifest.write", "manifest.rename"]).toContain(String(label));
      await opened.close();
    } else expect(opened).toBe("store_write_failed");
    const next = await openLegacy(fs, { nowMs });
    expect(recordsOf(next)).toEqual(end);
    await next.close();
  }
});
