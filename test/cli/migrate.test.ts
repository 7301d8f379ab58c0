import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { barLine, progressBar } from "../../src/cli/migrate-progress.ts";
import { type ContinuationRecord, isSettled } from "../../src/core/record.ts";
// @ts-expect-error: plain JavaScript beside the fixtures, used as it is
import { materialize } from "../fixtures/materialize.mjs";
import { cliRun } from "../support/cli-run.ts";
import { type ConfigFolder, configFolder, MINIMAL } from "../support/config-folder.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { expectedOf } from "../support/fixture-reading.ts";
import { tree } from "../support/store-directory.ts";

let folder: ConfigFolder;
let stateDir: string;
beforeEach(() => {
  folder = configFolder();
  folder.write("mono-agent.config.json", { ...MINIMAL, continuations: {} });
  stateDir = join(folder.path, ".mono-agent/continuations");
});
afterEach(() => folder.remove());

const run = (...args: string[]) => cliRun(folder.path, args);
const backups = () => join(folder.path, ".mono-agent/backups");
const manifest = () => JSON.parse(readFileSync(join(stateDir, "continuation-store-v3.json"), "utf8"));

describe("migrate --dry-run", () => {
  test("says what would happen and changes nothing", async () => {
    materialize("v1/monolith", stateDir);
    const { asOf } = expectedOf("v1/monolith");
    const before = tree(stateDir, { owner: true });
    const { code, out } = await run("migrate", "--dry-run", "--as-of", asOf);
    expect(code).toBe(0);
    expect(out).toContain("format v1: 19 records");
    expect(out).toContain("together 19 records: claimed 3, result_received 3, synthesizing 1,");
    expect(out).toContain("legacy_missing, answered with a fixed text): 7; detached: 3");
    expect(out).toContain("will write 19 record files");
    const old = JSON.parse(readFileSync(join(stateDir, "continuations-v1.json"), "utf8")).records;
    const settled = Object.values<ContinuationRecord>(old).filter(isSettled);
    const payloads = settled.filter(({ resultPayload }) => resultPayload !== undefined).length;
    expect(out).toContain(`retention then drops 0 records, ${payloads} payloads and 3 texts`);
    expect(tree(stateDir, { owner: true })).toEqual(before);
  });

  test("needs no configuration when it is told where", async () => {
    const other = join(folder.path, "elsewhere");
    materialize("v2/interrupted-transaction", other);
    rmSync(join(folder.path, "mono-agent.config.json"));
    const { code, out } = await run("migrate", "--dry-run", "--state-dir", "elsewhere", "--json");
    expect(code).toBe(0);
    expect(JSON.parse(out)).toMatchObject({
      stateDir: other,
      kind: "migrate",
      ok: true,
      records: 4,
      states: { claimed: 3, result_received: 1 },
      sources: { v2: { records: 4, unfinished: 3 } },
      writes: { records: 4 },
    });
  });

  test("fails when there is nothing where it is told to look", async () => {
    const { code, err } = await run("migrate", "--dry-run", "--state-dir", "typo");
    expect(code).toBe(1);
    expect(err).toContain(`there is no folder ${join(folder.path, "typo")}`);
  });

  test("exits 1 with every refusal, each with its file and id", async () => {
    materialize("v1/with-v2-conflict", stateDir);
    writeFileSync(join(stateDir, "records-v2/notes.txt"), "", { mode: 0o600 });
    const { code, out } = await run("migrate", "--dry-run");
    expect(code).toBe(1);
    expect(out).toContain(
      `refused: ${join(stateDir, "records-v2/notes.txt")} is not the name of a record file`,
    );
    expect(out).toContain("refused: continuation f6e88683-168d-4e2c-a8db-1fb3786fea23 is in the v1 file");
  });

  test("tells how many records retention will drop as of a given time", async () => {
    materialize("v2/all-states", stateDir);
    const { out } = await run("migrate", "--dry-run", "--as-of", "2028-01-01T00:00:00Z", "--json");
    expect(JSON.parse(out).retention).toEqual({ records: 8, payloads: 0, texts: 0 });
  });

  test("says that nothing waits, for a converted directory and for none", async () => {
    expect((await run("migrate", "--dry-run")).out).toContain("nothing of an older format waits");
    expect((await run("migrate")).out).toContain("nothing of an older format waits");
    expect(existsSync(join(folder.path, ".mono-agent"))).toBe(false);
    materialize("v2/migrated", stateDir);
    const { code, out } = await run("migrate", "--dry-run");
    expect(code).toBe(0);
    expect(out).toContain("nothing of an older format waits");
  });
});

describe("migrate", () => {
  test("backs up, converts, and gives the directory back", async () => {
    materialize("v2/all-states", stateDir);
    const { asOf } = expectedOf("v2/all-states");
    const { code, out, err } = await run("migrate", "--as-of", asOf);
    expect(code).toBe(0);
    expect(out).toMatch(/converted in [0-9.]+ s; 19 records are kept\n$/);
    expect(err).toContain("older state is being converted phase=writing");
    expect(readdirSync(join(stateDir, "records-v3"))).toHaveLength(19);
    expect(manifest().rollbackGuardRequired).toBe(true);
    expect(readdirSync(backups())).toHaveLength(1);
    expect((await run("migrate")).out).toContain("nothing of an older format waits");
  });

  test("refuses without changing anything, and exits 1", async () => {
    materialize("v1/with-v2-conflict-and-transaction", stateDir);
    const before = tree(stateDir);
    const { code, out } = await run("migrate");
    expect(code).toBe(1);
    expect(out).toContain("f6e88683-168d-4e2c-a8db-1fb3786fea23");
    expect(tree(stateDir)).toEqual(before);
    expect(existsSync(backups())).toBe(false);
  });

  test.each([
    [["--prune-legacy", "--dry-run"], "exclude each other"],
    [["--backup", "x"], "only for --prune-legacy"],
    [["--state-dir", "x"], "only for --dry-run"],
    [["--as-of", "someday"], "must be a date"],
  ])("%p is wrong usage", async (args, says) => {
    const { code, err } = await run("migrate", ...args);
    expect(code).toBe(2);
    expect(err).toContain(says);
  });

  test("its help does not show the option for tests", async () => {
    const { out } = await run("migrate", "--help");
    expect(out).toContain("--dry-run");
    expect(out).not.toContain("as-of");
  });
});

describe("migrate --prune-legacy", () => {
  const legacy = () =>
    readdirSync(stateDir, { recursive: true, encoding: "utf8" }).filter((name) =>
      /^records-v2\/[0-9a-f]|-v2\.json$|-v1\.json$/.test(name),
    );

  test("removes what the automatic backup holds, also what a finished transaction wrote, and says what it frees", async () => {
    materialize("v2/interrupted-transaction", stateDir);
    await run("migrate");
    expect(legacy()).toHaveLength(5);
    const left = await run("doctor");
    expect(left.code).toBe(0);
    expect(left.out).toMatch(/5 files of older formats are left \([0-9.]+ MiB\)[^\n]*migrate --prune-legacy/);
    const { code, out } = await run("migrate", "--prune-legacy");
    expect(out).toMatch(
      /^removed 5 files of older formats, [0-9.]+ KiB; all of them are in .*before-migration-.*\.tar\n$/,
    );
    expect(code).toBe(0);
    expect(legacy()).toEqual([]);
    expect(existsSync(join(stateDir, "records-v2/UPGRADED-TO-RECORDS-V3"))).toBe(true);
    expect((await run("migrate", "--prune-legacy")).out).toBe("nothing of an older format is left\n");
    const doctor = await run("doctor");
    expect([doctor.code, doctor.out.includes("older formats")]).toEqual([0, false]);
  });

  test("does not touch a directory that is not converted", async () => {
    materialize("v2/all-states", stateDir);
    const before = tree(stateDir);
    const { code, err } = await run("migrate", "--prune-legacy");
    expect(code).toBe(1);
    expect(err).toContain("not converted and guarded yet");
    expect(tree(stateDir)).toEqual(before);
  });

  test("does not touch anything without a backup, and takes one that was made afterwards", async () => {
    materialize("v2/migrated", stateDir);
    const before = legacy();
    const refused = await run("migrate", "--prune-legacy");
    expect(refused.code).toBe(1);
    expect(refused.err).toContain("nothing is removed: no backup was made before the conversion");
    expect(legacy()).toEqual(before);
    expect((await run("backup", "copy")).code).toBe(0);
    expect((await run("migrate", "--prune-legacy", "--backup", "copy")).code).toBe(0);
    expect(legacy()).toEqual([]);
  });

  test.each([
    [
      "changed since",
      () => {
        const name = legacy().find((path) => path.startsWith("records-v2/")) ?? "";
        writeFileSync(join(stateDir, name), "{}", { mode: 0o600 });
      },
      "does not hold records-v2/",
    ],
    [
      "is damaged itself",
      () => {
        const path = join(folder.path, "copy/continuations/continuation-store-v2.json");
        writeFileSync(path, "{}");
      },
      "its digest differs",
    ],
    ["is not there", () => rmSync(join(folder.path, "copy"), { recursive: true }), "there is no backup at"],
  ])("does not touch anything when the backup %s", async (_, spoil, says) => {
    materialize("v2/migrated", stateDir);
    await run("backup", "copy");
    spoil();
    const before = tree(stateDir);
    const { code, err } = await run("migrate", "--prune-legacy", "--backup", "copy");
    expect(code).toBe(1);
    expect(err).toContain(says);
    expect(tree(stateDir)).toEqual(before);
  });

  test("does not touch anything while the converted state is damaged", async () => {
    materialize("v2/migrated", stateDir);
    await run("backup", "copy");
    writeFileSync(join(stateDir, `records-v3/${"0".repeat(64)}.json`), "{", { mode: 0o600 });
    const before = tree(stateDir);
    const { err } = await run("migrate", "--prune-legacy", "--backup", "copy");
    expect(err).toContain("the older files stay, because the converted state is not sound");
    expect(tree(stateDir)).toEqual(before);
  });
});

describe("doctor", () => {
  const section = async () => {
    const { code, out } = await run("doctor", "--json");
    const found = JSON.parse(out).sections.find(({ id }: { id: string }) => id === "continuations");
    return { code, ...found, text: found.details.join("\n") };
  };

  test("says that older state waits for the next start, and how to look first", async () => {
    materialize("v1/with-v2-agreeing", stateDir);
    const { code, status, text } = await section();
    expect({ code, status }).toEqual({ code: 0, status: "waiting" });
    expect(text).toContain("the next start converts records: 3 of format v1, 3 of format v2");
    expect(text).toContain("migrate --dry-run");
  });

  test("is an error, with the cause, when the next start will refuse", async () => {
    materialize("v1/malformed-record", stateDir);
    const { code, status, text } = await section();
    expect({ code, status }).toEqual({ code: 1, status: "error" });
    expect(text).toContain("continuations-v1.json");
    expect(text).toContain("continuation bd868d9a-bb62-4593-ae4f-ee53aca85bd5");
  });
});

test("the bar shows phase and counts, keeps a line for each phase, and draws no more than 20 times a second", () => {
  expect(barLine({ phase: "writing", done: 25, total: 50, unit: "records" })).toBe(
    "writing      [############------------] 25 of 50 records",
  );
  expect(barLine({ phase: "reading v1", done: 1 << 20, total: 4 << 20, unit: "bytes" })).toContain(
    "1.0 of 4.0 MiB",
  );
  const clock = createFakeClock(0);
  let text = "";
  const bar = progressBar((piece) => {
    text += piece;
  }, clock);
  for (let done = 0; done <= 100; done += 1)
    bar.progress({ phase: "writing", done, total: 100, unit: "records" });
  bar.progress({ phase: "fencing", done: 0, total: 0, unit: "records" });
  bar.end();
  bar.end();
  expect(text.split("\r").length).toBe(5);
  expect(text).toContain("100 of 100 records\n");
  expect(text.endsWith("fencing\n")).toBe(true);
});
