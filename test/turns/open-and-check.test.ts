import { Database } from "bun:sqlite";
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import {
  chmodSync,
  copyFileSync,
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import type { FileSystem } from "../../src/core/ports/platform.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { checkTurns } from "../../src/turns/check.ts";
import { MIGRATIONS, SCHEMA_VERSION } from "../../src/turns/schema.ts";
import { openTurnStore } from "../../src/turns/turn-store.ts";
import {
  AT,
  admission,
  completeTurn,
  createLedgerFolder,
  createRecordingLogger,
  type LedgerFolder,
} from "../support/turns-fixture.ts";

let folder: LedgerFolder;
beforeEach(() => {
  folder = createLedgerFolder();
});
afterEach(() => folder.remove());

const fs = createFileSystem();
const check = (path = folder.path) => checkTurns({ path, fs });
/** Name, mode, size and bytes of everything in a folder. */
const picture = (dir = folder.dir) =>
  readdirSync(dir)
    .sort()
    .map((name) => [name, statSync(join(dir, name)).mode, readFileSync(join(dir, name)).toString("base64")]);

describe("files", () => {
  test.each([0o000, 0o077, 0o777])(
    "the ledger and the files beside it are 0600 under umask %o",
    async (umask) => {
      const before = process.umask(umask);
      try {
        const store = await folder.open();
        await completeTurn(store, "t1", "answer");
        const modes = readdirSync(folder.dir).map((name) => [
          name,
          statSync(join(folder.dir, name)).mode & 0o7777,
        ]);
        await store.close();
        expect(Object.fromEntries(modes)).toEqual({
          "host.sqlite": 0o600,
          "host.sqlite-wal": 0o600,
          "host.sqlite-shm": 0o600,
        });
      } finally {
        process.umask(before);
      }
    },
  );

  test("a wider mode is closed and logged", async () => {
    await (await folder.open()).close();
    chmodSync(folder.path, 0o644);
    const logger = createRecordingLogger();
    const store = await openTurnStore({ path: folder.path, fs, logger });
    await store.close();
    expect(statSync(folder.path).mode & 0o7777).toBe(0o600);
    expect(logger.lines).toMatchObject([{ level: "warn", fields: { file: folder.path } }]);
  });

  test.each(["", "-wal", "-shm", "-journal"])(
    "a symlink at host.sqlite%s is refused and not followed",
    async (suffix) => {
      const target = join(folder.dir, "victim");
      writeFileSync(target, "keep");
      symlinkSync(target, folder.path + suffix);
      await expect(folder.open()).rejects.toMatchObject({ code: "turns_unsafe_file" });
      expect(readFileSync(target, "utf8")).toBe("keep");
      if (suffix === "") expect(check()).toMatchObject({ kind: "unsafe" });
    },
  );

  test("a folder, a hard link and a foreign owner are refused", async () => {
    mkdirSync(folder.path);
    await expect(folder.open()).rejects.toMatchObject({ code: "turns_unsafe_file" });
    rmSync(folder.path, { recursive: true });
    await (await folder.open()).close();
    const foreign: FileSystem = { ...fs, uid: (fs.uid ?? 0) + 1 };
    const options = { path: folder.path, fs: foreign, logger: createRecordingLogger() };
    await expect(openTurnStore(options)).rejects.toMatchObject({ code: "turns_unsafe_file" });
    linkSync(folder.path, join(folder.dir, "second-name"));
    await expect(folder.open()).rejects.toMatchObject({ code: "turns_unsafe_file" });
  });

  test("after a close the ledger is one file, and closing twice is harmless", async () => {
    const store = await folder.open();
    await completeTurn(store, "t1", "answer");
    await store.close();
    await store.close();
    expect(readdirSync(folder.dir)).toEqual(["host.sqlite"]);
    await expect(store.getTurn("t1")).rejects.toMatchObject({ code: "service_stopping" });
  });

  test("what was answered is there after the process vanished without closing", async () => {
    const store = await folder.open();
    await completeTurn(store, "t1", "answer");
    const copy = createLedgerFolder();
    for (const name of readdirSync(folder.dir)) copyFileSync(join(folder.dir, name), join(copy.dir, name));
    await store.close();
    const reopened = await copy.open();
    expect(await reopened.getTurn("t1")).toMatchObject({ status: "succeeded" });
    await reopened.close();
    copy.remove();
  });
});

describe("schema", () => {
  test("a newer schema is refused, names the file and changes nothing", async () => {
    await (await folder.open()).close();
    const db = new Database(folder.path);
    db.exec(`PRAGMA user_version = ${SCHEMA_VERSION + 1}`);
    db.close();
    const before = picture();
    const refusal = await folder.open().catch((error: unknown) => error);
    expect(refusal).toMatchObject({ code: "turns_newer_schema" });
    expect(String(refusal)).toContain(folder.path);
    expect(picture()).toEqual(before);
    expect(check()).toEqual({ kind: "newer_schema", schemaVersion: SCHEMA_VERSION + 1 });
  });

  test("a database of something else is not taken over", async () => {
    const db = new Database(folder.path);
    db.exec("CREATE TABLE bookmarks (url)");
    db.close();
    chmodSync(folder.path, 0o600);
    await expect(folder.open()).rejects.toMatchObject({ code: "turns_corrupt" });
    const after = new Database(folder.path);
    expect(after.query("SELECT name FROM sqlite_schema").all()).toEqual([{ name: "bookmarks" }]);
    after.close();
  });

  test("damage is reported with the path and the way out", async () => {
    writeFileSync(folder.path, "not a database ".repeat(400), { mode: 0o600 });
    const fault = await folder.open().catch((error: unknown) => error);
    expect(fault).toMatchObject({ code: "turns_corrupt" });
    expect(String(fault)).toContain(folder.path);
    expect(String(fault)).toContain("restore a backup");
    expect(check()).toMatchObject({ kind: "corrupt" });
  });

  test("an empty file, left by a crash while it was made, is filled", async () => {
    writeFileSync(folder.path, "", { mode: 0o600 });
    expect(check()).toEqual({ kind: "migration_due", schemaVersion: 0 });
    const store = await folder.open();
    await completeTurn(store, "t1", "answer");
    await store.close();
    expect(check()).toMatchObject({ kind: "ok" });
  });
});

test("a ledger from before tool bindings is brought up to date and keeps what it holds", async () => {
  const db = new Database(folder.path);
  chmodSync(folder.path, 0o600);
  db.exec(`${MIGRATIONS[0]}; PRAGMA user_version = 1`);
  db.exec("INSERT INTO conversations VALUES ('terminal:a', 'terminal:a', '2026-11-30T12:00:00.000Z')");
  db.exec(
    `INSERT INTO messages (conversation_id, base_id, role, content, created_at)
     VALUES ('terminal:a', 'terminal:a', 'assistant', 'answer', '2026-11-30T12:00:00.000Z')`,
  );
  db.close();
  expect(check()).toEqual({ kind: "migration_due", schemaVersion: 1 });
  const store = await folder.open();
  expect((await store.tail("terminal:a", 10)).map(({ content }) => content)).toContain("answer");
  await store.admit(admission("t2"));
  await store.startRun("t2", "r2", AT);
  await store.openStep({ stepId: "s1", runId: "r2", index: 0, model: "m", startedAt: AT });
  const call = {
    runId: "r2",
    stepId: "s1",
    callId: "c",
    server: "w",
    tool: "t",
    bindingDigest: "d1",
    input: {},
  };
  await store.openToolCall({ ...call, startedAt: AT });
  await store.close();
  const after = new Database(folder.path, { readonly: true });
  expect(after.query("SELECT binding_digest FROM tool_calls").all()).toEqual([{ binding_digest: "d1" }]);
  after.close();
});

describe("check", () => {
  test("an absent ledger is absent and stays so", () => {
    expect(check()).toEqual({ kind: "absent" });
    expect(existsSync(folder.path)).toBe(false);
  });

  test("it counts unfinished turns and open activations beside a running host, after a crash and when closed", async () => {
    const store = await folder.open();
    await store.admit(admission("t1"));
    await store.admit(admission("t2"));
    await store.startRun("t1", "r1", AT);
    const activation = { historyBoundary: "r1", snapshotDigest: "d".repeat(64) };
    await store.commitTurn({ turnId: "t1", runId: "r1", assistantText: "answer", now: AT, activation });
    const expected = {
      kind: "ok" as const,
      schemaVersion: SCHEMA_VERSION,
      unfinishedTurns: 1,
      openActivations: 1,
    };
    expect(check()).toEqual(expected);

    const crashed = createLedgerFolder();
    for (const name of readdirSync(folder.dir)) {
      copyFileSync(join(folder.dir, name), join(crashed.dir, name));
      chmodSync(join(crashed.dir, name), 0o600);
    }
    const before = picture(crashed.dir);
    expect(check(crashed.path)).toEqual(expected);
    expect(picture(crashed.dir)).toEqual(before);
    rmSync(`${crashed.path}-shm`);
    expect(check(crashed.path)).toMatchObject({ kind: "unreadable" });
    expect(readdirSync(crashed.dir).sort()).toEqual(["host.sqlite", "host.sqlite-wal"]);
    crashed.remove();

    await store.close();
    const closed = picture();
    expect(check()).toEqual(expected);
    expect(picture()).toEqual(closed);
  });

  test("a wide mode is unsafe, and a damaged page is corrupt", async () => {
    const store = await folder.open();
    for (let i = 0; i < 50; i++) await completeTurn(store, `t${i}`, "answer ".repeat(200));
    await store.close();
    chmodSync(folder.path, 0o640);
    expect(check()).toMatchObject({ kind: "unsafe" });
    chmodSync(folder.path, 0o600);
    const bytes = readFileSync(folder.path);
    bytes.fill(0xff, 4096 * 10, 4096 * 14);
    writeFileSync(folder.path, bytes);
    expect(check()).toMatchObject({ kind: "corrupt" });
  });

  test("a folder name with URI characters is read as it is", async () => {
    const dir = join(folder.dir, "a b?c#d%20");
    mkdirSync(dir);
    const path = join(dir, "host.sqlite");
    const store = await openTurnStore({ path, fs, logger: createRecordingLogger() });
    await completeTurn(store, "t1", "answer");
    await store.close();
    expect(check(path)).toMatchObject({ kind: "ok", unfinishedTurns: 0 });
  });
});
