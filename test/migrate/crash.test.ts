import { describe, expect, test } from "bun:test";
import type { CrashDisk } from "../../src/core/ports/crash-disk.ts";
import { GUARD_CONTENT } from "../../src/core/store-files.ts";
import type { MemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { createRandom } from "../../src/store/explore/simulated.ts";
import { randomSurvival, survivals } from "../../src/store/explore/survivals.ts";
import type { MigrationBatch } from "../../src/store/migrate/phases.ts";
import { expectedOf } from "../support/fixture-reading.ts";
import { diskWith, type Files, fixtureFiles, openLegacy } from "../support/migrate-disk.ts";
import { readAsOlderRuntime } from "../support/older-runtime-reader.ts";
import { readAsV2Runtime } from "../support/older-v2-reader.ts";
import { recordsOf, STATE_DIR } from "../support/store-harness.ts";

/**
 * The power is cut before every operation of a migration, and everything that may survive is opened again: it ends as
 * it ends without a cut. The older formats are read by a reader of their time on each of these disks.
 */

const GUARD = `${STATE_DIR}/records-v2/UPGRADED-TO-RECORDS-V3`;
const MANIFEST = `${STATE_DIR}/continuation-store-v3.json`;
const LEGACY = [`${STATE_DIR}/continuations-v1.json`, `${STATE_DIR}/continuation-store-v2.json`];

const BATCHES: Record<string, MigrationBatch> = {
  "batches of 1": { records: 1, bytes: 1 },
  "batches of 2": { records: 2, bytes: 1 << 20 },
  "one batch": { records: 1_000, bytes: 1 << 30 },
};

/** What must be the same however often the power went: all but ids that each opening makes anew. */
function outcome(fs: MemoryFileSystem, records: object) {
  const { [MANIFEST]: manifest, ...files } = fs.files();
  const { generation: _, ...report } = JSON.parse(manifest ?? "{}");
  return { records, files, report, modes: fs.modes() };
}

/** What the reader of the v2 time makes of a disk: its records, or that it stops at the guard. */
function v2View(fs: CrashDisk): unknown {
  try {
    return Object.fromEntries(readAsV2Runtime(fs, STATE_DIR));
  } catch (error) {
    return String(error);
  }
}

const guardOf = (fs: MemoryFileSystem) => fs.files()[GUARD];
const isCommitted = (path: string) => !/\/\.[^/]+\.tmp$/.test(path);

async function explore(files: Files, nowMs: number, batch: MigrationBatch) {
  const open = async (fs: MemoryFileSystem) => {
    const store = await openLegacy(fs, { nowMs, batch });
    const records = recordsOf(store);
    await store.close();
    return records;
  };
  const whole = diskWith(files);
  const end = outcome(whole, await open(whole));
  expect(guardOf(whole)).toBe(GUARD_CONTENT);
  expect(end.report.rollbackGuardRequired).toBe(true);
  const labels = new Set(whole.trace.map(({ label }) => label));

  const start = diskWith(files);
  const startFiles = start.files();
  const startView = v2View(start);
  const random = createRandom(1);
  const seen = new Set<string>();
  let states = 0;

  async function check(image: MemoryFileSystem, what: string): Promise<void> {
    states += 1;
    const digest = image.digest();
    if (seen.has(digest)) return;
    seen.add(digest);
    const found = image.files();
    for (const path of LEGACY) expect([what, found[path]]).toEqual([what, startFiles[path]]);
    const guarded = found[GUARD] !== undefined;
    if (guarded) {
      expect([what, found[GUARD]]).toEqual([what, GUARD_CONTENT]);
      expect([what, v2View(image)]).toEqual([what, expect.stringContaining("Unexpected entry")]);
    } else {
      // As long as the older runtime may come back, it sees what it saw.
      expect([what, v2View(image)]).toEqual([what, startView]);
      const evidence = Object.keys(found).filter((path) => /records-v3|transaction-v3/.test(path));
      if (!Object.keys(startFiles).some((path) => path.includes("transaction-v3"))) {
        expect([what, evidence.filter(isCommitted)]).toEqual([what, []]);
      }
    }
    // Once more interrupted, somewhere.
    const twice = image.afterPowerCut("all");
    twice.cutAt(1 + random.below(whole.counts.operations));
    await open(twice).catch(() => {});
    const again = twice.afterPowerCut(randomSurvival(twice.unsynced(), random).survival);
    expect([what, outcome(again, await open(again))]).toEqual([what, end]);

    const disk = image.afterPowerCut("all");
    expect([what, outcome(disk, await open(disk))]).toEqual([what, end]);
  }

  for (let cut = 1; cut <= whole.counts.operations; cut += 1) {
    const fs = diskWith(files);
    fs.cutAt(cut);
    await open(fs).catch(() => {});
    const label = whole.trace[cut - 1]?.label ?? "?";
    for (const { name, survival } of survivals(fs.unsynced(), random)) {
      await check(fs.afterPowerCut(survival), `cut before ${cut} (${label}), ${name}`);
    }
    // Killed, opened by the next process, and only then the power goes.
    const next = fs.takeOver() as MemoryFileSystem;
    expect(outcome(next, await open(next))).toEqual(end);
    await check(next.afterPowerCut("none"), `killed before ${cut} (${label}), cut after the next opening`);
  }
  const older = [...readAsOlderRuntime(whole, STATE_DIR).keys()].sort();
  expect(older).toEqual(Object.keys(end.records).sort());
  return { labels, states, images: seen.size };
}

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
