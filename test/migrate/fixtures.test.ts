import { describe, expect, test } from "bun:test";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { retentionSchema } from "../../src/core/limits.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { planMigration } from "../../src/store/migrate/plan.ts";
import { openContinuationStore } from "../../src/store/open.ts";
import { ownershipLock } from "../../src/store/ownership.ts";
// @ts-expect-error: plain JavaScript beside the fixtures, used as it is
import { materialize } from "../fixtures/materialize.mjs";
import { createFakeClock } from "../support/fake-clock.ts";
import { createFakeIds } from "../support/fake-ids.ts";
import { expectedOf, FIXTURES, shortForm } from "../support/fixture-reading.ts";
import { readAsOlderRuntime } from "../support/older-runtime-reader.ts";
import { readAsV2Runtime } from "../support/older-v2-reader.ts";
import { silentLogger } from "../support/silent-logger.ts";
import { tree } from "../support/store-directory.ts";
import { recordsOf, withFolder } from "../support/store-harness.ts";

/** Directories of the older formats, opened as their `*.expected.json` says that the released runtime opens them. */

const retention = retentionSchema.parse({});

function open(stateDir: string, asOf: string) {
  const fs = createFileSystem();
  const clock = createFakeClock(Date.parse(asOf));
  return openContinuationStore({
    stateDir,
    fs,
    clock,
    ids: createFakeIds(stateDir),
    logger: silentLogger,
    retention,
    acquireLock: ownershipLock(fs, clock, process.pid),
  });
}

const plan = (stateDir: string, asOf: string) =>
  planMigration({ fs: createFileSystem(), stateDir, retention, nowMs: Date.parse(asOf) });

/** Text of every file but the secret and the owner database, as `files` of the expectations tells them. */
function contents(folder: string): Record<string, string> {
  const found: Record<string, string> = {};
  for (const name of readdirSync(folder, { recursive: true, encoding: "utf8" }).sort()) {
    if (name.startsWith("continuations-owner") || name === "continuation-secret") continue;
    try {
      found[name] = readFileSync(join(folder, name), "utf8");
    } catch {
      // A folder.
    }
  }
  return found;
}

const MANIFEST = "continuation-store-v3.json";

/** A manifest that is rewritten is left out: it is a report, which we write later or, when it says the same, not. */
function touched(before: Record<string, string>, after: Record<string, string>) {
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])].sort();
  return {
    added: names.filter((name) => before[name] === undefined),
    removed: names.filter((name) => after[name] === undefined),
    changed: names.filter(
      (name) =>
        name !== MANIFEST &&
        before[name] !== undefined &&
        after[name] !== undefined &&
        before[name] !== after[name],
    ),
  };
}

const NAMES = ["v1", "v2"]
  .flatMap((version) => readdirSync(join(FIXTURES, version)).map((name) => `${version}/${name}`))
  .filter((name) => name.endsWith(".expected.json"))
  .map((name) => name.replace(".expected.json", ""));

/** Where we do better than the runtime that the expectations are from (store-format.md §10). */
const BETTER: Record<string, "migrates" | "refused untouched"> = {
  "v1/with-v2-compacted": "migrates",
  "v1/with-v2-conflict-and-transaction": "refused untouched",
};

describe("directories of the older formats", () => {
  test("all fixtures are looked at", () => {
    expect(NAMES.length).toBe(14);
  });

  for (const name of NAMES) {
    const expected = expectedOf(name);
    if (!expected.open.ok && BETTER[name] !== "migrates") {
      test(`${name} is refused for the same reason, and not one byte changes`, () =>
        withFolder(async (folder) => {
          materialize(name, folder);
          const before = tree(folder);
          const planned = plan(folder, expected.asOf);
          expect(planned.ok).toBe(false);
          expect(tree(folder)).toEqual(before);
          const refused = await open(folder, expected.asOf).then(
            () => undefined,
            (error: { code: string; message: string }) => error,
          );
          if (expected.open.ok) return;
          const id = /id ([0-9a-f-]{36})/.exec(expected.open.error)?.[1];
          const cause = id ?? "continuations-v1.json";
          expect(refused?.message).toContain(cause);
          expect(refused?.code).toBe(id === undefined ? "store_corrupt" : "store_migration_conflict");
          expect(planned.refusals[0]?.message).toContain(cause);
          expect(tree(folder)).toEqual(before);
        }));
      continue;
    }
    test(`${name} ends as the released runtime leaves it`, () =>
      withFolder(async (folder) => {
        materialize(name, folder);
        const before = contents(folder);
        const planned = plan(folder, expected.asOf);
        expect(planned.ok).toBe(true);
        expect(planned.kind).toBe(
          before["continuation-store-v3.json"]?.includes('"rollbackGuardRequired": true')
            ? "none"
            : "migrate",
        );
        expect(contents(folder)).toEqual(before);

        const store = await open(folder, expected.asOf);
        const records = Object.values(recordsOf(store));
        const after = contents(folder);
        if (expected.open.ok) {
          expect(records.map(shortForm)).toEqual(expected.open.records);
          if (expected.open.normalizedRecords !== undefined) {
            expect(records as unknown[]).toEqual(expected.open.normalizedRecords);
          }
          expect(store.durable.stats()).toEqual(expected.open.stats as never);
          const { changed, ...others } = expected.open.files;
          expect(touched(before, after)).toEqual({
            ...others,
            changed: changed.filter((path) => path !== MANIFEST),
          });
          expect(existsSync(join(folder, "records-v2/UPGRADED-TO-RECORDS-V3"))).toBe(
            expected.open.rollbackGuardPresent,
          );
          const manifest = JSON.parse(after["continuation-store-v3.json"] ?? "{}");
          expect(manifest.rollbackGuardRequired).toBe(expected.open.manifestRollbackGuardRequired);
        } else {
          expect(records.map(({ continuationId }) => continuationId).sort()).toEqual(
            Object.values(expected.labels).sort(),
          );
        }
        if (planned.kind === "migrate") expect(planned.records).toBe(records.length);
        await store.close();

        const fs = createFileSystem();
        const older = [...readAsOlderRuntime(fs, folder).values()];
        expect(older.map(({ continuationId }) => continuationId).sort()).toEqual(
          records.map(({ continuationId }) => continuationId).sort(),
        );
        expect(() => readAsV2Runtime(fs, folder)).toThrow("Unexpected entry");

        const again = await open(folder, expected.asOf);
        expect(Object.values(recordsOf(again))).toEqual(records);
        await again.close();
        expect(touched(after, contents(folder))).toEqual({ added: [], removed: [], changed: [] });
      }));
  }

  test("the compacted v2 copy of a settled v1 record is taken as it is", () =>
    withFolder(async (folder) => {
      materialize("v1/with-v2-compacted", folder);
      const { asOf, labels } = expectedOf("v1/with-v2-compacted");
      expect(plan(folder, asOf).sources.compacted).toBe(1);
      const v2 = readAsV2Runtime(createFileSystem(), folder).get(labels.settled ?? "");
      const store = await open(folder, asOf);
      expect(recordsOf(store)[labels.settled ?? ""]).toMatchObject(v2 as never);
      await store.close();
    }));
});
