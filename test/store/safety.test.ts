import { describe, expect, test } from "bun:test";
import {
  chmodSync,
  chownSync,
  copyFileSync,
  linkSync,
  mkdirSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import type { FileSystem } from "../../src/core/ports/platform.ts";
import { recordFileName } from "../../src/core/record.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { claim, openStore, snapshotOf, withFolder } from "../support/store-harness.ts";

/** Real files in every wrong shape: the opening stops, names the path, and touches nothing. */

async function written(stateDir: string): Promise<string> {
  const store = await openStore({ fs: createFileSystem(), stateDir });
  await store.commit({ puts: [claim("kept")] });
  await store.close();
  return join(stateDir, "records-v3", recordFileName("kept"));
}

const refusal = (stateDir: string, fs: FileSystem = createFileSystem()) =>
  openStore({ fs, stateDir }).then(
    () => undefined,
    (error: { code: string; message: string }) => error,
  );

const listing = (folder: string) =>
  readdirSync(folder, { recursive: true })
    .map((name) => String(name))
    .sort()
    .map((name) => `${name} ${statSync(join(folder, name), { throwIfNoEntry: false })?.mode}`);

const spoils: Record<string, (file: string, stateDir: string) => void> = {
  "a symlink": (file, stateDir) => {
    renameSync(file, join(stateDir, "elsewhere"));
    symlinkSync(join(stateDir, "elsewhere"), file);
  },
  "a second hard link": (file, stateDir) => linkSync(file, join(stateDir, "second")),
  "a mode that lets the group read": (file) => chmodSync(file, 0o640),
  "a mode that lets others write": (file) => chmodSync(file, 0o602),
  "a pipe": (file) => {
    rmSync(file);
    Bun.spawnSync(["mkfifo", "-m", "600", file]);
  },
  "a folder": (file) => {
    rmSync(file);
    mkdirSync(file, { mode: 0o700 });
  },
  "more than 2 MiB": (file) => truncateSync(file, 2 * 1024 * 1024 + 1),
  "half of its content": (file) => truncateSync(file, 200),
};

describe("a record file", () => {
  for (const [what, spoil] of Object.entries(spoils)) {
    test(`with ${what} stops the opening, named, and nothing is changed`, () =>
      withFolder(async (stateDir) => {
        const file = await written(stateDir);
        spoil(file, stateDir);
        const before = listing(stateDir);
        const error = await refusal(stateDir);
        expect(error?.code).toBe(what === "half of its content" ? "store_corrupt" : "store_unsafe_file");
        expect(error?.message).toContain(file);
        expect(listing(stateDir)).toEqual(before);
      }));
  }

  test.if(process.getuid?.() === 0)("of another owner stops the opening", () =>
    withFolder(async (stateDir) => {
      const file = await written(stateDir);
      chownSync(file, 12_345, 12_345);
      expect((await refusal(stateDir))?.message).toContain(`${file} must belong to user`);
    }),
  );

  test("that is replaced between lstat and open is refused", () =>
    withFolder(async (stateDir) => {
      const file = await written(stateDir);
      const real = createFileSystem();
      const fs: FileSystem = {
        ...real,
        lstat(path, label) {
          const stat = real.lstat(path, label);
          if (path === file && stat !== undefined) {
            copyFileSync(file, `${file}.copy`);
            renameSync(`${file}.copy`, file);
          }
          return stat;
        },
      };
      expect((await refusal(stateDir, fs))?.message).toContain("replaced");
    }));

  test("that grows while it is read is refused", () =>
    withFolder(async (stateDir) => {
      const file = await written(stateDir);
      const real = createFileSystem();
      const fs: FileSystem = {
        ...real,
        open(path, label) {
          const handle = real.open(path, label);
          if (handle === undefined || path !== file) return handle;
          return {
            ...handle,
            read(length) {
              const data = handle.read(length);
              writeFileSync(file, "\n", { flag: "a" });
              return data;
            },
          };
        },
      };
      expect((await refusal(stateDir, fs))?.message).toContain("changed while it was read");
    }));
});

describe("other entries", () => {
  for (const name of [
    "continuation-secret",
    "continuation-store-v3.json",
    "records-v2/UPGRADED-TO-RECORDS-V3",
  ]) {
    test(`${name} must not be a symlink`, () =>
      withFolder(async (stateDir) => {
        await written(stateDir);
        const file = join(stateDir, name);
        renameSync(file, join(stateDir, "elsewhere"));
        symlinkSync(join(stateDir, "elsewhere"), file);
        const error = await refusal(stateDir);
        expect(error?.code).toBe("store_unsafe_file");
        expect(error?.message).toContain(file);
      }));
  }

  for (const name of ["", "records-v3", "origin-context-v1", "origin-context-groups-v1", "records-v2"]) {
    test(`the folder ${name || "itself"} must not be a symlink`, () =>
      withFolder(async (stateDir) => {
        await written(stateDir);
        const folder = join(stateDir, name);
        renameSync(folder, `${stateDir}-elsewhere`);
        symlinkSync(`${stateDir}-elsewhere`, folder);
        const error = await refusal(stateDir);
        expect(error?.code).toBe("store_unsafe_file");
        expect(error?.message).toContain(folder);
      }));
  }

  test("a snapshot in a wrong shape harms only who refers to it", () =>
    withFolder(async (stateDir) => {
      const store = await openStore({ fs: createFileSystem(), stateDir });
      const stored = await store.snapshots.put(snapshotOf());
      if (!stored.ok) throw new Error("refused");
      const { ref } = stored.value;
      await store.commit({ puts: [claim("a", { originContextState: "pinned", originContextRef: ref })] });
      await store.close();
      chmodSync(join(stateDir, "origin-context-v1", `${ref.digest}.json`), 0o644);
      const again = await openStore({ fs: createFileSystem(), stateDir });
      expect(again.snapshots.read(ref)).toEqual({ ok: false, damage: "unreadable" });
      await again.close();
    }));

  for (const mask of [0o000, 0o077, 0o777]) {
    test(`modes are 0600 and 0700 under umask ${mask.toString(8)}`, () =>
      withFolder(async (stateDir) => {
        const before = process.umask(mask);
        try {
          await written(stateDir);
        } finally {
          process.umask(before);
        }
        expect(statSync(stateDir).mode & 0o7777).toBe(0o700);
        for (const entry of readdirSync(stateDir, { recursive: true, withFileTypes: true })) {
          const mode = statSync(join(entry.parentPath, entry.name)).mode & 0o7777;
          expect(`${entry.name} ${mode.toString(8)}`).toBe(
            `${entry.name} ${entry.isDirectory() ? "700" : "600"}`,
          );
        }
      }));
  }
});
