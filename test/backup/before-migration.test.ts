import { afterEach, beforeEach, expect, test } from "bun:test";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { isSettled } from "../../src/core/record.ts";
import { backupStoppedHost } from "../../src/host/backup-offline.ts";
import { restoreBackup } from "../../src/host/restore.ts";
import { loadConfig, type MonoAgentApp, startMonoAgent } from "../../src/index.ts";
// @ts-expect-error: plain JavaScript beside the fixtures, used as it is
import { materialize } from "../fixtures/materialize.mjs";
import { freePort } from "../support/binary.ts";
import { writeDemoFolder } from "../support/demo-folder.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { expectedOf } from "../support/fixture-reading.ts";
import { createRecordingLogger } from "../support/silent-logger.ts";

/** The host backs up what it is about to convert from an older format. */

const FIXTURE = "v2/all-states";
let path: string;
let app: MonoAgentApp | undefined;
let logger: ReturnType<typeof createRecordingLogger>;

beforeEach(() => {
  path = mkdtempSync(join(tmpdir(), "mono-agent-migration-"));
  logger = createRecordingLogger();
});
afterEach(async () => {
  await app?.stop();
  rmSync(path, { recursive: true, force: true });
});

async function start(folder: string, host: Record<string, unknown> = {}): Promise<void> {
  await app?.stop();
  mkdirSync(folder, { recursive: true });
  writeDemoFolder(folder, { continuations: { port: freePort() }, terminal: { port: freePort() }, host });
  const clock = createFakeClock(Date.parse(expectedOf(FIXTURE).asOf));
  app = await startMonoAgent({ config: loadConfig({ cwd: folder, env: {} }), logger, clock });
}

const backups = (folder: string) => {
  const place = join(folder, ".mono-agent/backups");
  return existsSync(place) ? readdirSync(place).map((name) => join(place, name)) : [];
};
const stateDir = (folder: string) => join(folder, ".mono-agent/continuations");
const legacyFiles = (folder: string) =>
  Object.fromEntries(
    readdirSync(join(folder, "records-v2")).map((name) => [
      name,
      readFileSync(join(folder, "records-v2", name), "utf8"),
    ]),
  );

test("before the first conversion of older state its bytes are in a backup, and the log says where", async () => {
  const live = join(path, "live");
  materialize(FIXTURE, stateDir(live));
  const before = legacyFiles(stateDir(live));
  await start(live);
  const [made, ...more] = backups(live);
  if (made === undefined) throw new Error("no backup");
  expect(more).toEqual([]);
  expect(logger.lines.filter((line) => line.includes(made)).length).toBe(1);
  await start(live);
  expect(backups(live)).toEqual([made]);

  const restored = join(path, "restored");
  const report = await restoreBackup(made, {
    hostDir: join(restored, ".mono-agent"),
    stateDir: stateDir(restored),
  });
  expect(legacyFiles(stateDir(restored))).toEqual(before);
  const unsettled = Object.values(before)
    .map((text) => JSON.parse(text))
    .filter((record) => !isSettled(record));
  expect(unsettled.length).toBeGreaterThan(3);
  expect(report.held).toBe(unsettled.length);
});

test("host.backupBeforeMigration: false makes none", async () => {
  const live = join(path, "live");
  materialize(FIXTURE, stateDir(live));
  await start(live, { backupBeforeMigration: false });
  expect(backups(live)).toEqual([]);
  expect(app?.listContinuations().length).toBeGreaterThan(3);
});

test("a state of the present format is not backed up by a start", async () => {
  await start(path);
  await start(path);
  expect(backups(path)).toEqual([]);
});

test("state that can't be converted is not backed up as if it could be restored: the refusal names the cause", async () => {
  for (const [name, why] of [
    ["v1/with-v2-conflict", "continuation "],
    ["v1/malformed-record", "continuations-v1.json"],
  ] as const) {
    const live = join(path, name);
    const places = { hostDir: join(live, ".mono-agent"), stateDir: stateDir(live) };
    materialize(name, places.stateDir);
    for (const target of ["copy", "copy.tar"]) {
      const making = backupStoppedHost(places, join(live, target));
      await expect(making).rejects.toMatchObject({ code: "backup_failed" });
      await expect(making).rejects.toThrow(why);
      expect(readdirSync(live)).toEqual([".mono-agent"]);
    }
  }
});

test("state of an older runtime can be backed up before the first start, when the host has no folder yet", async () => {
  const elsewhere = join(path, "elsewhere");
  materialize(FIXTURE, elsewhere);
  const places = { hostDir: join(path, "live/.mono-agent"), stateDir: elsewhere };
  mkdirSync(join(path, "live"));
  const made = await backupStoppedHost(places, join(path, "copy"));
  expect(made !== "running" && made.files).toBeGreaterThan(3);
  const restored = join(path, "restored");
  await restoreBackup(join(path, "copy"), {
    hostDir: join(restored, ".mono-agent"),
    stateDir: stateDir(restored),
  });
  expect(legacyFiles(stateDir(restored))).toEqual(legacyFiles(elsewhere));
  const nothing = { hostDir: join(path, "none"), stateDir: join(path, "none/state") };
  await expect(backupStoppedHost(nothing, join(path, "b"))).rejects.toThrow("nothing to back up");
  expect(existsSync(nothing.hostDir)).toBe(false);
});
