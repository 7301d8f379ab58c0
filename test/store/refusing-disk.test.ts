import { describe, expect, test } from "bun:test";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { diskRemedy, errnoOfSqlite } from "../../src/core/disk-remedy.ts";
import { retentionSchema } from "../../src/core/limits.ts";
import { FileFault } from "../../src/core/ports/platform.ts";
import { STORE_ENTRIES } from "../../src/core/store-files.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { openContinuationStore } from "../../src/store/open.ts";
import { ownershipLock } from "../../src/store/ownership.ts";
import { copyTurns } from "../../src/turns/copy.ts";
import { openTurnStore } from "../../src/turns/turn-store.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { createFakeIds } from "../support/fake-ids.ts";
import { NOW_MS } from "../support/records.ts";
import { silentLogger } from "../support/silent-logger.ts";
import { HAS_SMALL_DISKS, type SmallDisk, withSmallDisk } from "../support/small-disk.ts";
import { withFolder } from "../support/store-harness.ts";

/**
 * What SQLite is refused by the disk is not the fault of its file: nobody may be told that the file is corrupt, and
 * so to be removed.
 */

const fs = createFileSystem();
const clock = createFakeClock(NOW_MS);
const lock = ownershipLock(fs, clock, 1);

async function refusalOf(act: () => unknown) {
  try {
    await act();
  } catch (error) {
    const { code, message, cause } = error as { code?: string; message: string; cause?: unknown };
    return { code, message, errno: cause instanceof FileFault ? cause.errno : undefined };
  }
  throw new Error("it was not refused");
}

const REFUSALS: Record<string, { refuse: (disk: SmallDisk) => void; allow: (disk: SmallDisk) => void }> = {
  ENOSPC: { refuse: (disk) => disk.fill(), allow: (disk) => disk.free() },
  EROFS: { refuse: (disk) => disk.readOnly(true), allow: (disk) => disk.readOnly(false) },
};

describe.if(HAS_SMALL_DISKS)(
  "a start on a real disk that refuses (as root of a Linux, which may mount one)",
  () => {
    for (const [errno, { refuse, allow }] of Object.entries(REFUSALS)) {
      const remedy = diskRemedy(errno);

      test(`${errno}: the lock of the host says so and how to go on, and goes on`, () =>
        withSmallDisk(async (disk) => {
          const path = join(disk.path, "host-owner.sqlite");
          lock(path).release();
          refuse(disk);
          expect(await refusalOf(() => lock(path))).toEqual({
            code: "store_write_failed",
            message: `owner.lock failed at ${path}: ${errno}; ${remedy} and start again; nothing is lost`,
            errno,
          });
          allow(disk);
          lock(path).release();
        }));

      test(`${errno}: so does the store`, () =>
        withSmallDisk(async (disk) => {
          const stateDir = join(disk.path, "state");
          const open = () =>
            openContinuationStore({
              stateDir,
              fs,
              clock,
              ids: createFakeIds("refused"),
              logger: silentLogger,
              retention: retentionSchema.parse({}),
              acquireLock: lock,
            });
          await (await open()).close();
          refuse(disk);
          const owner = join(stateDir, STORE_ENTRIES.owner);
          expect(await refusalOf(open)).toEqual({
            code: "store_write_failed",
            message: `the state directory could not be opened: owner.lock failed at ${owner}: ${errno}; ${remedy} and start again; nothing in it is lost`,
            errno,
          });
          allow(disk);
          await (await open()).close();
        }));

      test(`${errno}: so does the ledger of turns`, () =>
        withSmallDisk(async (disk) => {
          const path = join(disk.path, "host.sqlite");
          await fs.run([{ op: "write", path, data: "", mode: 0o600, sync: true, label: "made" }]);
          refuse(disk);
          const open = () => openTurnStore({ path, fs, logger: silentLogger });
          const { code, message } = await refusalOf(open);
          expect(code).toBe("turns_failed");
          expect(message).toEndWith(`; ${remedy}`);
          allow(disk);
          await (await open()).close();
        }));
    }
  },
);

test.if(HAS_SMALL_DISKS)("a copy of the ledger onto a full disk names that disk, not the ledger's", () =>
  withSmallDisk((disk) =>
    withFolder(async (folder) => {
      mkdirSync(folder, { mode: 0o700 });
      const path = join(folder, "host.sqlite");
      await (await openTurnStore({ path, fs, logger: silentLogger })).close();
      const target = join(disk.path, "copy.sqlite");
      disk.fill();
      const { message } = await refusalOf(() => copyTurns({ path, target, fs }));
      expect(message).toStartWith(`the ledger ${target} failed: `);
      expect(message).toEndWith(`; ${diskRemedy("ENOSPC")}`);
    }),
  ),
);

/** A process of its own, which opens files until the system refuses, and then takes the lock. */
const WITHOUT_DESCRIPTORS = `
  const { openSync } = await import("node:fs");
  const { createFileSystem } = await import(process.env.SRC + "/platform/filesystem.ts");
  const { ownershipLock } = await import(process.env.SRC + "/store/ownership.ts");
  const lock = ownershipLock(createFileSystem(), { now: () => 0, timer: () => () => {} }, 1);
  lock(process.env.LOCK).release();
  try { for (;;) openSync("/dev/null", "r"); } catch {}
  try { lock(process.env.LOCK) } catch (error) { console.log(error.code, error.message) }
`;

test.skipIf(process.platform === "win32")("so does the lock when no more files may be open", () =>
  withFolder((folder) => {
    mkdirSync(folder, { mode: 0o700 });
    const path = join(folder, "host-owner.sqlite");
    const child = Bun.spawnSync(
      ["sh", "-c", 'ulimit -n 64 && exec "$0" -e "$1"', process.execPath, WITHOUT_DESCRIPTORS],
      {
        env: { ...process.env, SRC: join(import.meta.dir, "../../src"), LOCK: path },
      },
    );
    expect(child.stdout.toString()).toBe(
      `store_write_failed owner.lock failed at ${path}: EMFILE; ${diskRemedy("EMFILE")} and start again; nothing is lost\n`,
    );
  }),
);

test("of SQLite's own errors only those are the disk's that say so", () => {
  const names = [
    "FULL",
    "READONLY",
    "READONLY_DIRECTORY",
    "IOERR_WRITE",
    "IOERR",
    "PERM",
    "CORRUPT",
    "NOTADB",
    "FULLER",
  ];
  expect(names.map((name) => errnoOfSqlite(`SQLITE_${name}`))).toEqual([
    "ENOSPC",
    "EROFS",
    "EROFS",
    "EIO",
    "EIO",
    "EACCES",
    undefined,
    undefined,
    undefined,
  ]);
});
