import { expect } from "bun:test";
import type { CrashDisk } from "../../src/core/ports/crash-disk.ts";
import { GUARD_CONTENT } from "../../src/core/store-files.ts";
import type { MemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { createRandom } from "../../src/store/explore/simulated.ts";
import { randomSurvival, survivals } from "../../src/store/explore/survivals.ts";
import type { MigrationBatch } from "../../src/store/migrate/phases.ts";
import { diskWith, type Files, openLegacy } from "./migrate-disk.ts";
import { readAsOlderRuntime } from "./older-runtime-reader.ts";
import { readAsV2Runtime } from "./older-v2-reader.ts";
import { recordsOf, STATE_DIR } from "./store-harness.ts";

/**
 * Cuts the power before every operation of a migration, opens everything that may survive, and expects the end that
 * there is without a cut. A reader of the v2 time looks at each of these disks.
 */

const GUARD = `${STATE_DIR}/records-v2/UPGRADED-TO-RECORDS-V3`;
const MANIFEST = `${STATE_DIR}/continuation-store-v3.json`;
const LEGACY = [`${STATE_DIR}/continuations-v1.json`, `${STATE_DIR}/continuation-store-v2.json`];

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

/** Committed files of v3. */
function evidenceOf(files: Record<string, string>): Record<string, string> {
  const v3 = Object.entries(files).filter(([path]) =>
    /\/(records-v3\/|continuation-transaction-v3)/.test(path),
  );
  return Object.fromEntries(v3.filter(([path]) => isCommitted(path)));
}

export async function explore(files: Files, nowMs: number, batch: MigrationBatch) {
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
      expect([what, evidenceOf(found)]).toEqual([what, evidenceOf(startFiles)]);
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
  return { labels, states, images: seen.size, records: end.records };
}
