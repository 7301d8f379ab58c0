import { describe, expect, test } from "bun:test";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { originBindingIsAuthentic } from "../../src/core/derive.ts";
import { retentionSchema } from "../../src/core/limits.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { openContinuationStore } from "../../src/store/open.ts";
import { ownershipLock } from "../../src/store/ownership.ts";
// @ts-expect-error: plain JavaScript beside the fixtures, used as it is
import { materialize } from "../fixtures/materialize.mjs";
import { createFakeClock } from "../support/fake-clock.ts";
import { createFakeIds } from "../support/fake-ids.ts";
import { expectedOf, FIXTURES, shortForm } from "../support/fixture-reading.ts";
import { silentLogger } from "../support/silent-logger.ts";
import { recordsOf, withFolder } from "../support/store-harness.ts";

/** Directories that the released runtime wrote, opened as their `*.expected.json` says it opens them. */

function open(stateDir: string, asOf: string) {
  const fs = createFileSystem();
  const clock = createFakeClock(Date.parse(asOf));
  return openContinuationStore({
    stateDir,
    fs,
    clock,
    ids: createFakeIds(stateDir),
    logger: silentLogger,
    retention: retentionSchema.parse({}),
    acquireLock: ownershipLock(fs, clock, process.pid),
  });
}

/** Every file but the owner database, for telling whether a refusal changed anything. */
function contents(folder: string): Record<string, string> {
  const found: Record<string, string> = {};
  const walk = (path: string, name: string) => {
    for (const entry of readdirSync(path, { withFileTypes: true })) {
      if (entry.name.startsWith("continuations-owner")) continue;
      const full = join(path, entry.name);
      if (entry.isDirectory()) walk(full, `${name}${entry.name}/`);
      else found[`${name}${entry.name}`] = readFileSync(full, "utf8");
    }
  };
  walk(folder, "");
  return found;
}

const V3 = readdirSync(join(FIXTURES, "v3"))
  .filter((name) => name.endsWith(".expected.json"))
  .map((name) => `v3/${name.replace(".expected.json", "")}`);

describe("directories of the released runtime", () => {
  for (const name of [...V3, "v2/migrated"]) {
    test(`${name} opens as the released runtime opens it`, () =>
      withFolder(async (folder) => {
        const expected = expectedOf(name);
        materialize(name, folder);
        const before = contents(folder);
        if (!expected.open.ok) {
          const refused = await open(folder, expected.asOf).then(
            () => undefined,
            (error: Error) => error,
          );
          const path = /<stateDir>(\S+)/.exec(expected.open.error)?.[1] ?? "?";
          expect(refused?.message).toContain(join(folder, path));
          expect(contents(folder)).toEqual(before);
          return;
        }
        const store = await open(folder, expected.asOf);
        const records = Object.values(recordsOf(store));
        expect(records.map(shortForm)).toEqual(expected.open.records);
        expect(store.durable.stats()).toEqual(expected.open.stats as never);
        expect(existsSync(join(folder, "records-v2/UPGRADED-TO-RECORDS-V3"))).toBe(
          expected.open.rollbackGuardPresent,
        );
        const manifest = JSON.parse(readFileSync(join(folder, "continuation-store-v3.json"), "utf8"));
        expect(manifest.rollbackGuardRequired).toBe(expected.open.manifestRollbackGuardRequired);
        for (const path of expected.open.files.removed) expect(existsSync(join(folder, path))).toBe(false);

        const opened = contents(folder);
        await store.close();
        const again = await open(folder, expected.asOf);
        expect(Object.values(recordsOf(again))).toEqual(records);
        await again.close();
        const closed = contents(folder);
        delete opened["continuation-store-v3.json"];
        delete closed["continuation-store-v3.json"];
        expect(closed).toEqual(opened);
      }));
  }

  test("the snapshot bindings that the released runtime wrote verify with the secret as we read it", () =>
    withFolder(async (folder) => {
      materialize("v3/all-states", folder);
      const store = await open(folder, "2026-11-20T12:04:17.000Z");
      const bound = Object.values(recordsOf(store)).filter((record) => record.originContextRef !== undefined);
      expect(bound.length).toBeGreaterThan(3);
      for (const record of bound) {
        expect(originBindingIsAuthentic(store.secret, record)).toBe(true);
        const ref = record.originContextRef;
        if (ref !== undefined) expect(store.snapshots.read(ref).ok).toBe(true);
      }
      await store.close();
    }));

  for (const name of ["v3/corrupt-blob", "v3/missing-blob"]) {
    test(`${name}: only the continuation that refers to the blob cannot read it`, () =>
      withFolder(async (folder) => {
        const expected = expectedOf(name);
        materialize(name, folder);
        const store = await open(folder, expected.asOf);
        const outcome = (label: string) => {
          const ref = store.durable.get(expected.labels[label] ?? "")?.originContextRef;
          if (ref === undefined) throw new Error("no reference");
          const read = store.snapshots.read(ref);
          return read.ok ? "ok" : read.damage;
        };
        expect(outcome("pinned-with-result")).toBe(name === "v3/corrupt-blob" ? "corrupt" : "missing");
        expect(outcome("healthy-with-result")).toBe("ok");
        await store.close();
      }));
  }
});
