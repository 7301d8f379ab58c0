import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { loadConfig } from "../../src/config/load.ts";
import { FileFault, type FileStep, type FileSystem } from "../../src/core/ports/platform.ts";
import { startMonoAgent } from "../../src/host/start.ts";
import { prepareStateFolder } from "../../src/host/state-folder.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { freePort } from "../support/binary.ts";
import { writeDemoFolder } from "../support/demo-folder.ts";
import { createRecordingLogger } from "../support/silent-logger.ts";

/** The folder that holds the host's database, lock and token, as a start finds it. */

let path: string;
let stateDir: string;
beforeEach(() => {
  path = mkdtempSync(join(tmpdir(), "mono-agent-folder-"));
  stateDir = join(path, ".mono-agent");
  writeDemoFolder(path, {
    continuations: { enabled: false },
    terminal: { enabled: false },
  });
});
afterEach(() => rmSync(path, { recursive: true, force: true }));

const start = async () => {
  const logger = createRecordingLogger();
  const app = await startMonoAgent({ config: loadConfig({ cwd: path, env: {} }), logger });
  await app.stop();
  return logger.lines.filter((line) => line.startsWith("warn"));
};
const mode = () => statSync(stateDir).mode & 0o777;

test("a missing folder is made owner-only, without a warning", async () => {
  expect(await start()).toEqual([]);
  expect(mode()).toBe(0o700);
});

test("a folder with another mode is repaired, once, and the log names it", async () => {
  mkdirSync(stateDir);
  chmodSync(stateDir, 0o755);
  expect(await start()).toEqual([
    `warn a folder did not have mode 0700; it is repaired ${JSON.stringify({ path: stateDir })}`,
  ]);
  expect(mode()).toBe(0o700);
  expect(await start()).toEqual([]);
});

test("a link to a folder is refused with its path and the way out, and nothing is written through it", async () => {
  mkdirSync(join(path, "elsewhere"), { mode: 0o755 });
  symlinkSync(join(path, "elsewhere"), stateDir);
  expect(start()).rejects.toMatchObject({ name: "StoreError", code: "store_unsafe_file" });
  await expect(start()).rejects.toThrow(`${stateDir} must be a folder, but it is a symlink; name a folder`);
  expect(existsSync(join(path, "elsewhere/host.sqlite"))).toBe(false);
});

test("a link above it is as good as a folder, also for a start after a kill before there was a ledger", async () => {
  symlinkSync(path, join(path, "link"));
  stateDir = join(path, "link/state");
  writeDemoFolder(path, {
    host: { stateDir },
    continuations: { stateDir: join(path, "link/apart"), port: freePort() },
    terminal: { enabled: false },
  });
  expect(await start()).toEqual([]);
  rmSync(join(stateDir, "host.sqlite"));
  expect(await start()).toEqual([]);
});

test("a file in its place is refused with its path and the way out", async () => {
  writeFileSync(stateDir, "");
  await expect(start()).rejects.toThrow(/\.mono-agent must be a folder, but it is a file; name a folder/);
});

describe("the name of a new folder", () => {
  const real = createFileSystem();
  /** Prepares the folder and gives what was done, as operation and path. */
  const prepare = (failing?: FileStep["op"], errno = "EACCES") => {
    const steps: string[] = [];
    const logger = createRecordingLogger();
    const fs: FileSystem = {
      ...real,
      runSync(all) {
        for (const step of all) {
          if (step.op === failing) throw new FileFault(step.label, path, errno);
          steps.push(`${step.op} ${"path" in step ? step.path : ""}`);
          real.runSync([step]);
        }
      },
    };
    prepareStateFolder(fs, stateDir, logger);
    return { steps, logger };
  };

  test("is durable before anything is acknowledged in it", () => {
    expect(prepare().steps).toEqual([`mkdir ${stateDir}`, `syncDir ${path}`]);
  });

  test("is made durable again until there is a ledger, because the one who made it may have been killed before", () => {
    mkdirSync(stateDir, { mode: 0o700 });
    mkdirSync(join(stateDir, "continuations"), { mode: 0o700 });
    expect(prepare().steps).toEqual([`syncDir ${path}`]);
    writeFileSync(join(stateDir, "host.sqlite"), "");
    expect(prepare().steps).toEqual([]);
  });

  test.each(["EACCES", "EPERM"])(
    "of another's making is used also where its parent may be entered, but not read (%s)",
    (errno) => {
      mkdirSync(stateDir, { mode: 0o700 });
      expect(prepare("syncDir", errno).logger.lines).toEqual([
        `warn the parent of a folder could not be synced ${JSON.stringify({ path, errno })}`,
      ]);
    },
  );

  test.each([
    ["EIO", "check its disk"],
    ["ENOSPC", "free space on its disk"],
  ])("is not relied on where the disk refuses to make it durable (%s)", (errno, remedy) => {
    const refused = { code: "store_write_failed", message: expect.stringContaining(`(${errno}); ${remedy}`) };
    for (const made of [false, true]) {
      if (made) mkdirSync(stateDir, { mode: 0o700, recursive: true });
      const caught = (() => {
        try {
          return prepare("syncDir", errno).steps;
        } catch (error) {
          return error;
        }
      })();
      expect(caught).toMatchObject(refused);
    }
  });
});
