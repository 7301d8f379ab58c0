import { Database } from "bun:sqlite";
import { describe, expect, test } from "bun:test";
import { mkdirSync, readdirSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { ownershipLock } from "../../src/store/ownership.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { NOW } from "../support/records.ts";
import { withFolder } from "../support/store-harness.ts";

const NAME = "continuations-owner.sqlite";

function inFolder(use: (path: string) => unknown): Promise<unknown> {
  return withFolder((folder) => {
    mkdirSync(folder, { mode: 0o700 });
    return use(join(folder, NAME));
  });
}

const acquire = (path: string) =>
  ownershipLock(createFileSystem(), createFakeClock(Date.parse(NOW)), 42)(path);

function codeOf(act: () => unknown): string | undefined {
  try {
    act();
    return undefined;
  } catch (error) {
    return (error as { code?: string }).code;
  }
}

/** A process of its own that holds the lock until it is killed. */
async function otherOwner(path: string) {
  const script = `
    import { createFileSystem } from ${JSON.stringify(join(import.meta.dir, "../../src/platform/filesystem.ts"))};
    import { ownershipLock } from ${JSON.stringify(join(import.meta.dir, "../../src/store/ownership.ts"))};
    ownershipLock(createFileSystem(), { now: () => 0, timer: () => () => {} }, process.pid)(${JSON.stringify(path)});
    console.log("held");
    await new Promise(() => process.stdin.resume());
  `;
  const child = Bun.spawn(["bun", "-e", script], { stdin: "pipe", stdout: "pipe" });
  const reader = child.stdout.getReader();
  await reader.read();
  reader.releaseLock();
  return child;
}

describe("ownership", () => {
  test("a second opener fails at once, in this process and in another, until the owner gives it up", () =>
    inFolder((path) => {
      const lock = acquire(path);
      expect(codeOf(() => acquire(path))).toBe("store_owned");
      lock.release();
      lock.release();
      acquire(path).release();
    }));

  test("a killed owner leaves no stale lock", () =>
    inFolder(async (path) => {
      const owner = await otherOwner(path);
      expect(codeOf(() => acquire(path))).toBe("store_owned");
      owner.kill("SIGKILL");
      await owner.exited;
      acquire(path).release();
    }));

  test("database and journal are owner-only whatever the umask", () =>
    inFolder((path) => {
      const before = process.umask(0);
      const lock = acquire(path);
      process.umask(before);
      const names = readdirSync(join(path, ".."));
      expect(names.sort()).toEqual([NAME, `${NAME}-journal`]);
      for (const name of names) expect(statSync(join(path, "..", name)).mode & 0o7777).toBe(0o600);
      lock.release();
    }));

  test("a symlink in its place is refused, and a file that is no database too", () =>
    inFolder((path) => {
      writeFileSync(`${path}-target`, "", { mode: 0o600 });
      symlinkSync(`${path}-target`, path);
      expect(codeOf(() => acquire(path))).toBe("store_unsafe_file");
      const other = `${path}-other`;
      writeFileSync(other, "not a database, but long enough to be read as one. ".repeat(40), { mode: 0o600 });
      expect(codeOf(() => acquire(other))).toBe("store_corrupt");
    }));

  test("an ownership database that another runtime committed opens as well", () =>
    inFolder((path) => {
      writeFileSync(path, "", { mode: 0o600 });
      const other = new Database(path);
      other.run(
        "CREATE TABLE ownership(id INTEGER PRIMARY KEY CHECK (id = 1), pid INTEGER NOT NULL, acquired_at TEXT NOT NULL)",
      );
      other.run("INSERT INTO ownership VALUES (1, 7, 'then')");
      other.close();
      acquire(path).release();
    }));
});
