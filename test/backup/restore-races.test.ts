import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { FileFault, type FileStep, type FileSystem } from "../../src/core/ports/platform.ts";
import { backupStoppedHost } from "../../src/host/backup-offline.ts";
import { restoreBackup } from "../../src/host/restore.ts";
import { readRestored } from "../../src/host/restored.ts";
import { loadConfig, startMonoAgent } from "../../src/index.ts";
import { createClock } from "../../src/platform/clock.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { ownershipLock } from "../../src/store/ownership.ts";
import { freePort } from "../support/binary.ts";
import { writeDemoFolder } from "../support/demo-folder.ts";
import { silentLogger } from "../support/silent-logger.ts";

/** A restore beside others that want the same folders, and one that dies while it takes away what it had done. */

const real = createFileSystem();
const take = ownershipLock(real, createClock(), process.pid);
let path: string;
let source: string;

beforeEach(async () => {
  path = mkdtempSync(join(tmpdir(), "mono-agent-restore-"));
  writeDemoFolder(path, {
    continuations: { port: freePort() },
    terminal: { port: freePort() },
  });
  const app = await startMonoAgent({ config: loadConfig({ cwd: path, env: {} }), logger: silentLogger });
  await app.stop();
  source = join(path, "copy");
  await backupStoppedHost(places("."), source);
});
afterEach(() => rmSync(path, { recursive: true, force: true }));

const places = (name: string) => ({
  hostDir: join(path, name, ".mono-agent"),
  stateDir: join(path, name, ".mono-agent/continuations"),
});
const apart = (name: string) => ({ hostDir: join(path, name, "host"), stateDir: join(path, name, "state") });

/** `act` happens once, just before the folder is made or its lock file is written. */
function meanwhile(at: (step: FileStep) => boolean, act: () => void): FileSystem {
  let done = false;
  return {
    ...real,
    runSync(steps) {
      if (!done && steps.some(at)) {
        done = true;
        act();
      }
      real.runSync(steps);
    },
  };
}
const writes = (file: string) => (step: FileStep) => step.op === "write" && step.path === file;

test("what a killed restore made before this one is durable before this one says that it is done", async () => {
  // Killed after the folder above, and after the one for the continuations.
  const target = apart("n");
  mkdirSync(target.stateDir, { recursive: true, mode: 0o700 });
  const synced: string[] = [];
  const note = (steps: readonly FileStep[]) =>
    synced.push(...steps.flatMap((step) => (step.op === "syncDir" ? [step.path] : [])));
  const fs: FileSystem = {
    ...real,
    async run(steps) {
      await real.run(steps);
      note(steps);
    },
    runSync(steps) {
      real.runSync(steps);
      note(steps);
    },
  };
  await restoreBackup(source, target, fs);
  // The name of `n` is in `path`; those of both folders are in `n`.
  expect(synced.filter((folder) => folder === path)).toHaveLength(1);
  expect(synced.filter((folder) => folder === join(path, "n"))).toHaveLength(2);
});

describe("a folder that another takes after it was seen empty", () => {
  for (const [what, target, part, lock] of [
    ["the host's", apart, "hostDir", "host-owner.sqlite"],
    ["the continuations'", apart, "stateDir", "continuations-owner.sqlite"],
    ["the continuations' inside the host's", places, "stateDir", "continuations-owner.sqlite"],
  ] as const) {
    test(`keeps all that is in it, with its lock: ${what}`, async () => {
      const to = target("other");
      const folder = to[part];
      let owner: { release(): void } | undefined;
      const fs = meanwhile(
        (step) => step.op === "mkdir" && step.path === folder,
        () => {
          mkdirSync(folder, { recursive: true, mode: 0o700 });
          owner = take(join(folder, lock));
          writeFileSync(join(folder, "theirs"), "kept");
        },
      );
      // The folder is there by then, which a folder that we make may be as well.
      const lenient: FileSystem = {
        ...fs,
        runSync: (steps) =>
          fs.runSync(steps.map((step) => (step.op === "mkdir" ? { ...step, existsOk: true } : step))),
      };
      await expect(restoreBackup(source, to, lenient)).rejects.toMatchObject({ code: "restore_refused" });
      expect(readFileSync(join(folder, "theirs"), "utf8")).toBe("kept");
      expect(existsSync(join(folder, lock))).toBe(true);
      expect(() => take(join(folder, lock))).toThrow("is held");
      owner?.release();
    });
  }

  test("is left alone when the other came and went between our look and our lock", async () => {
    const to = apart("other");
    const file = join(to.hostDir, "host-owner.sqlite");
    const fs = meanwhile(writes(file), () => writeFileSync(join(to.hostDir, "host.sqlite"), "theirs"));
    await expect(restoreBackup(source, to, fs)).rejects.toThrow("is not empty");
    expect(readFileSync(join(to.hostDir, "host.sqlite"), "utf8")).toBe("theirs");
  });
});

test("a restore that fails and then dies while it cleans up leaves nothing that starts, at any step", async () => {
  let died = 0;
  for (let at = 0; ; at += 1) {
    const to = places(`other-${at}`);
    let left: number | undefined;
    const perform = (steps: readonly FileStep[]) => {
      for (const step of steps) {
        if (left === undefined && step.op === "write" && step.label === "restored.write") {
          if (String(step.data).includes('"complete": true')) {
            left = at;
            throw new FileFault("test", step.path, "ENOSPC");
          }
        }
        if (left === 0) {
          died += 1;
          throw new Error("killed");
        }
        if (left !== undefined) left -= 1;
        real.runSync([step]);
      }
    };
    // A folder may list its names in any order.
    const list: FileSystem["list"] = (folder, label) =>
      real
        .list(folder, label)
        ?.toSorted((a, b) => Number(b === "restored.json") - Number(a === "restored.json"));
    const fs: FileSystem = { ...real, list, runSync: perform, run: async (steps) => perform(steps) };
    const before = died;
    await expect(restoreBackup(source, to, fs)).rejects.toThrow();
    const startable = ["host.sqlite", "continuations/continuation-secret"].some((name) =>
      existsSync(join(to.hostDir, name)),
    );
    if (startable) expect([at, existsSync(join(to.hostDir, "restored.json"))]).toEqual([at, true]);
    if (died === before) {
      expect(readdirSync(path).filter((name) => name === `other-${at}`)).toEqual([]);
      break;
    }
  }
  expect(died).toBeGreaterThan(8);
  // On a real disk, which may be slow for seconds.
}, 60_000);

test("a restore that dies at any step leaves nothing that starts, and one that ends has its hold", async () => {
  let refused = 0;
  let whole: number | undefined;
  for (let at = 0; ; at += 1) {
    const to = places(`dying-${at}`);
    let left = at;
    const perform = (steps: readonly FileStep[]) => {
      for (const step of steps) {
        // The dead do not clean up either.
        if (left === 0) throw new Error("killed");
        left -= 1;
        real.runSync([step]);
      }
    };
    const fs: FileSystem = { ...real, runSync: perform, run: async (steps) => perform(steps) };
    const outcome = await restoreBackup(source, to, fs).catch((error: Error) => error.message);
    if (typeof outcome !== "string") {
      expect(readRestored(real, to.hostDir)?.complete).toBe(true);
      expect(whole).toBe(at - 1);
      break;
    }
    expect(outcome).toContain("killed");
    const startable = ["host.sqlite", "continuations/continuation-secret"].some((name) =>
      existsSync(join(to.hostDir, name)),
    );
    if (!startable) continue;
    if (readFileSync(join(to.hostDir, "restored.json"), "utf8").includes('"complete": true')) {
      // Nothing but the fsync of the mark's name was left to do: the state is whole, and has its hold.
      whole = at;
      continue;
    }
    refused += 1;
    expect(() => readRestored(real, to.hostDir)).toThrow("was interrupted");
    await expect(restoreBackup(source, to)).rejects.toMatchObject({ code: "restore_refused" });
  }
  expect(refused).toBeGreaterThan(4);
  // On a real disk, which may be slow for seconds.
}, 60_000);
