import { describe, expect, test } from "bun:test";
import { diskRemedy } from "../../src/core/disk-remedy.ts";
import { fileJson } from "../../src/core/json.ts";
import { retentionSchema } from "../../src/core/limits.ts";
import type { FileSystem } from "../../src/core/ports/platform.ts";
import { recordFileName } from "../../src/core/record.ts";
import { createMemoryFileSystem, type MemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { activationMarker } from "../../src/store/activation.ts";
import { openContinuationStore } from "../../src/store/open.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { createFakeIds } from "../support/fake-ids.ts";
import { NOW, NOW_MS } from "../support/records.ts";
import { createRecordingLogger, silentLogger } from "../support/silent-logger.ts";
import {
  claim,
  GROUP,
  GROUP_KEY,
  member,
  openStore,
  recordsOf,
  STATE_DIR,
  snapshotOf,
} from "../support/store-harness.ts";

/** Every operation of an opening fails: it is refused with one error, stops writing, and the next opening goes on. */

const at = (name: string) => `${STATE_DIR}/${name}`;

/** What a crash may leave: everything that opening has to put in order at once. */
async function leftBehind(): Promise<Record<string, string>> {
  const fs = createMemoryFileSystem();
  const store = await openStore({ fs, seed: "left" });
  const stored = await store.snapshots.put(snapshotOf());
  const orphan = await store.snapshots.put(snapshotOf("run-gone"));
  if (!stored.ok || !orphan.ok) throw new Error("refused");
  const { ref } = stored.value;
  await store.commit({
    puts: [
      claim("kept"),
      claim("written"),
      member("m-1", ref, store.secret),
      member("m-2", ref, store.secret),
    ],
  });
  await store.close();
  const uncompacted = claim("settled", { state: "delivered", resultPayload: { a: 1 } });
  fs.seed(at(`records-v3/${recordFileName("settled")}`), fileJson(uncompacted));
  fs.seed(
    at("continuation-transaction-v3.json"),
    fileJson({
      schemaVersion: 3,
      generation: "g",
      createdAt: NOW,
      writes: [claim("written", { taskHash: "newer" }), claim("new")],
      deletes: ["kept"],
    }),
  );
  fs.seed(
    at(`origin-context-groups-v1/${GROUP_KEY}.json`),
    fileJson(activationMarker(GROUP, ref.digest, ["m-1", "m-2"], NOW)),
  );
  return fs.files();
}
const LEFT = await leftBehind();
const MANIFEST = at("continuation-store-v3.json");
const GUARD = at("records-v2/UPGRADED-TO-RECORDS-V3");

const STARTS: Record<string, Record<string, string>> = {
  "a new directory": {},
  "a directory in which everything is left to do": LEFT,
  "the same without guard and manifest": Object.fromEntries(
    Object.entries(LEFT).filter(([path]) => path !== MANIFEST && path !== GUARD),
  ),
};

function diskOf(files: Record<string, string>): MemoryFileSystem {
  const fs = createMemoryFileSystem();
  for (const [path, text] of Object.entries(files)) fs.seed(path, text);
  return fs;
}

interface Attempt {
  readonly records?: ReturnType<typeof recordsOf>;
  readonly error?: { code: string; message: string };
  readonly releases: number;
}

async function attempt(fs: MemoryFileSystem): Promise<Attempt> {
  let releases = 0;
  const opening = openContinuationStore({
    stateDir: STATE_DIR,
    fs,
    clock: createFakeClock(NOW_MS),
    ids: createFakeIds("opening"),
    logger: silentLogger,
    retention: retentionSchema.parse({}),
    acquireLock: () => ({
      release() {
        releases += 1;
      },
    }),
  });
  const outcome = await opening.then(
    async (store) => {
      const records = recordsOf(store);
      await store.close();
      return { records };
    },
    (error: { code: string; message: string }) => ({ error }),
  );
  return { ...outcome, releases };
}

describe("an opening that fails at any of its operations", () => {
  for (const [what, start] of Object.entries(STARTS)) {
    test(`of ${what}`, async () => {
      const rehearsal = diskOf(start);
      const opened = await openStore({ fs: rehearsal, seed: "opening" });
      const operations = rehearsal.counts.operations;
      const expected = recordsOf(opened);
      await opened.close();
      expect(operations).toBeGreaterThan(5);
      for (const injected of ["ENOSPC", "EIO", "EROFS", "EMFILE", { errno: "EIO", done: true }] as const) {
        const errno = typeof injected === "string" ? injected : injected.errno;
        for (let number = 1; number <= operations; number += 1) {
          const fs = diskOf(start);
          fs.failWhen((_, current) => (current === number ? injected : undefined));
          const { error, releases } = await attempt(fs);
          const label = rehearsal.trace[number - 1]?.label ?? "";
          // The state directory itself comes before the lock in it.
          expect(releases).toBe(label.startsWith("state.") ? 0 : 1);
          if (["temporary.unlink", "spare.unlink", "snapshot.unlink"].includes(label))
            expect(error).toBeUndefined();
          else {
            expect([label, error?.code]).toEqual([label, "store_write_failed"]);
            expect(error?.message).toContain(errno);
            expect(error?.message).toContain(`${diskRemedy(errno)} and start again; nothing in it is lost`);
            expect(error?.message).not.toContain("needs a restart");
            expect(error?.message).toContain(
              ["state.parent.sync", "parent.sync"].includes(label) ? " /:" : STATE_DIR,
            );
            // Nothing is written behind a failure.
            expect([label, fs.counts.operations]).toEqual([label, number]);
          }
          fs.failWhen();
          for (const survival of ["none", "all"] as const) {
            const disk = fs.afterPowerCut(survival);
            const again = await attempt(disk);
            if (again.error !== undefined) throw again.error;
            expect(again.records).toEqual(expected);
            expect(Object.keys(disk.files()).filter((path) => path.endsWith(".tmp"))).toEqual([]);
          }
        }
      }
    });
  }
});

describe("the folder that holds a state directory of another's making", () => {
  const killed = async (stateDir: string, at: number): Promise<MemoryFileSystem> => {
    const fs = createMemoryFileSystem();
    fs.cutAt(at);
    await openStore({ fs, stateDir }).catch(() => {});
    return fs.takeOver();
  };

  // The first was killed after its first mkdir, of `/a`, and the second after that of the state directory.
  test.each([
    ["/a/b", "state.parent.sync", 2],
    ["/state", "parent.sync", 2],
  ])("may be one that can be entered, but not read: %s", async (stateDir, label, at) => {
    for (const errno of ["EACCES", "EPERM"]) {
      const fs = await killed(stateDir, at);
      let failures = 0;
      fs.failWhen((operation) => {
        if (operation.label !== label || failures > 0) return undefined;
        failures += 1;
        return errno;
      });
      const logger = createRecordingLogger();
      const store = await openStore({ fs, stateDir, logger });
      await store.commit({ puts: [claim("first")] });
      await store.close();
      expect(failures).toBe(1);
      const warning = `warn the parent of a folder could not be synced ${JSON.stringify({ path: "/", errno })}`;
      expect(logger.lines).toContain(warning);
    }
  });

  test("is refused for any other failure of it, also above the parents that a killed process made", async () => {
    const fs = await killed("/a/b", 2);
    fs.failWhen((operation) => (operation.label === "state.parent.sync" ? "EIO" : undefined));
    await expect(openStore({ fs, stateDir: "/a/b" })).rejects.toMatchObject({
      code: "store_write_failed",
      message:
        "the state directory could not be opened: state.parent.sync failed at /: EIO; check its disk and start again; nothing in it is lost",
    });
  });

  test("need not be synced for the root of a disk, which has no name to lose, but for what a link leads to", async () => {
    const memory = createMemoryFileSystem();
    await (await openStore({ fs: memory })).close();
    memory.failWhen((operation) => (operation.label === "parent.sync" ? "EINVAL" : undefined));
    const below = (kind: "directory" | "symlink"): FileSystem => ({
      ...memory,
      lstat(path, label) {
        const stat = memory.lstat(path, label);
        return path === "/" && stat !== undefined ? { ...stat, kind, device: 2 } : stat;
      },
    });
    await (await openStore({ fs: below("directory") })).close();
    await expect(openStore({ fs: below("symlink") })).rejects.toThrow("parent.sync failed at /: EINVAL");
  });
});

describe("temporaries that can't be removed", () => {
  test("stop neither the opening nor any later write, whatever their names", async () => {
    const fs = diskOf(LEFT);
    const targets = [
      "continuation-transaction-v3.json",
      "continuation-store-v3.json",
      "continuation-secret",
      `records-v3/${recordFileName("new")}`,
    ];
    for (const target of targets) {
      const cut = target.lastIndexOf("/") + 1;
      for (let number = 1; number < 40; number += 1) {
        fs.seed(at(`${target.slice(0, cut)}.${target.slice(cut)}.${number}.tmp`), "");
      }
    }
    fs.failWhen((operation) => (operation.label === "temporary.unlink" ? "EIO" : undefined));
    const store = await openStore({ fs });
    await store.commit({ puts: [claim("later")] });
    expect(store.fault()).toBeUndefined();
    await store.close();
  });
});
