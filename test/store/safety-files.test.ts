import { describe, expect, test } from "bun:test";
import {
  chmodSync,
  chownSync,
  copyFileSync,
  linkSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import {
  GUARD_MAX_BYTES,
  MANIFEST_MAX_BYTES,
  MARKER_MAX_BYTES,
  RECORD_MAX_BYTES,
  TRANSACTION_MAX_BYTES,
} from "../../src/core/limits.ts";
import type { FileSystem, ReadHandle } from "../../src/core/ports/platform.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import {
  type FileKind,
  FULL_IDS,
  openReal,
  refusalOf,
  tree,
  writeFullDirectory,
} from "../support/store-directory.ts";
import { recordsOf, withFolder } from "../support/store-harness.ts";

/** Row 73 on the real disk: every kind of file in every wrong shape stops the opening, named, and nothing is changed. */

const isRoot = process.getuid?.() === 0;

type Spoil = (file: string, outside: string) => void;
const inPlaceOf = (make: Spoil): Spoil => {
  return (file, outside) => {
    rmSync(file);
    make(file, outside);
  };
};

const SHAPES: Record<string, Spoil> = {
  "a symlink to the same content": (file, outside) => {
    renameSync(file, outside);
    symlinkSync(outside, file);
  },
  "a symlink to nothing": inPlaceOf((file) => symlinkSync("nowhere", file)),
  "a second hard link": (file, outside) => linkSync(file, outside),
  "a mode that lets the group read": (file) => chmodSync(file, 0o640),
  "a mode that lets others write": (file) => chmodSync(file, 0o602),
  "a pipe in its place": inPlaceOf((file) => Bun.spawnSync(["mkfifo", "-m", "600", file])),
  "a folder in its place": inPlaceOf((file) => mkdirSync(file, { mode: 0o700 })),
  "a socket in its place": inPlaceOf((file, outside) => {
    const listener = Bun.listen({ unix: outside, socket: { data: () => {} } });
    renameSync(outside, file);
    chmodSync(file, 0o600);
    listener.stop(true);
  }),
  ...(isRoot ? { "another owner": (file: string) => chownSync(file, 12_345, 12_345) } : {}),
};

const READ_KINDS: readonly FileKind[] = ["secret", "manifest", "transaction", "record", "marker", "guard"];

describe("a file in a wrong shape", () => {
  for (const kind of [...READ_KINDS, "owner database"] as const) {
    for (const [what, spoil] of Object.entries(SHAPES)) {
      test(`${kind} with ${what}`, () =>
        withFolder(async (stateDir) => {
          const { files } = await writeFullDirectory(stateDir);
          spoil(files[kind], join(dirname(stateDir), "outside"));
          const owner = kind === "owner database";
          const before = tree(stateDir, { owner });
          const error = await refusalOf(openReal(stateDir));
          expect(error.code).toBe("store_unsafe_file");
          expect(error.message).toContain(files[kind]);
          expect(tree(stateDir, { owner })).toEqual(before);
        }));
    }
  }

  for (const [what, spoil] of Object.entries(SHAPES)) {
    test(`blob with ${what} harms only its own continuation`, () =>
      withFolder(async (stateDir) => {
        const { files, ref } = await writeFullDirectory(stateDir);
        spoil(files.blob, join(dirname(stateDir), "outside"));
        const store = await openReal(stateDir);
        expect(Object.keys(recordsOf(store))).toEqual(FULL_IDS);
        expect(store.snapshots.read(ref)).toEqual({ ok: false, damage: "unreadable" });
        await store.close();
      }));
  }
});

/** A filesystem whose handle of one file is wrapped. */
function withHandle(file: string, wrap: (handle: ReadHandle) => ReadHandle): FileSystem {
  const real = createFileSystem();
  return {
    ...real,
    open(path, label) {
      const handle = real.open(path, label);
      return handle === undefined || path !== file ? handle : wrap(handle);
    },
  };
}

/** A filesystem on which something happens to one file between `lstat` and `open`. */
function afterLstat(file: string, act: () => void): FileSystem {
  const real = createFileSystem();
  let done = false;
  return {
    ...real,
    lstat(path, label) {
      const stat = real.lstat(path, label);
      if (path === file && !done) {
        done = true;
        act();
      }
      return stat;
    },
  };
}

const RACES: Record<string, { fs: (file: string, outside: string) => FileSystem; says: string }> = {
  "replaced by a copy between lstat and open": {
    fs: (file, outside) =>
      afterLstat(file, () => {
        copyFileSync(file, outside);
        renameSync(outside, file);
      }),
    says: "was replaced",
  },
  "replaced by a symlink between lstat and open": {
    fs: (file, outside) =>
      afterLstat(file, () => {
        renameSync(file, outside);
        symlinkSync(outside, file);
      }),
    says: "ELOOP",
  },
  "removed between lstat and open": {
    fs: (file) => afterLstat(file, () => rmSync(file)),
    says: "disappeared",
  },
  "given a second link between lstat and open": {
    fs: (file, outside) => afterLstat(file, () => linkSync(file, outside)),
    says: "hard link",
  },
  "on another device when it is opened": {
    fs: (file) =>
      withHandle(file, (handle) => ({
        ...handle,
        stat: () => ({ ...handle.stat(), device: Number(handle.stat().device) + 1 }),
      })),
    says: "was replaced",
  },
  "grown while it is read": {
    fs: (file) =>
      withHandle(file, (handle) => ({
        ...handle,
        read(length) {
          const data = handle.read(length);
          writeFileSync(file, "\n", { flag: "a" });
          return data;
        },
      })),
    says: "changed while it was read",
  },
  "cut while it is read": {
    fs: (file) =>
      withHandle(file, (handle) => ({
        ...handle,
        read(length) {
          truncateSync(file, 3);
          return handle.read(length);
        },
      })),
    says: "changed while it was read",
  },
  "unreadable by a fault of the disk": {
    fs: (file) =>
      withHandle(file, (handle) => ({
        ...handle,
        read: () => createFileSystem().open(dirname(file), "test")?.read(1) ?? new Uint8Array(),
      })),
    says: "EISDIR",
  },
};

describe("a file that changes under the reader", () => {
  for (const kind of READ_KINDS) {
    for (const [what, race] of Object.entries(RACES)) {
      test(`${kind} ${what}`, () =>
        withFolder(async (stateDir) => {
          const { files } = await writeFullDirectory(stateDir);
          const file = files[kind];
          const others = () => {
            const all = tree(stateDir);
            delete all[`.${file.slice(stateDir.length)}`];
            return all;
          };
          const before = others();
          const error = await refusalOf(
            openReal(stateDir, race.fs(file, join(dirname(stateDir), "outside"))),
          );
          expect(error.code).toBe("store_unsafe_file");
          expect(error.message).toContain(race.says === "EISDIR" ? dirname(file) : file);
          expect(error.message).toContain(race.says);
          expect(others()).toEqual(before);
        }));
    }
  }
});

const LIMITS: Partial<Record<FileKind, number>> = {
  secret: 4096,
  manifest: MANIFEST_MAX_BYTES,
  transaction: TRANSACTION_MAX_BYTES,
  record: RECORD_MAX_BYTES,
  marker: MARKER_MAX_BYTES,
  guard: GUARD_MAX_BYTES,
};

describe("the size of a file", () => {
  for (const [kind, limit] of Object.entries(LIMITS) as [FileKind, number][]) {
    test(`${kind} one byte over ${limit} is refused by its size, unread`, () =>
      withFolder(async (stateDir) => {
        const { files } = await writeFullDirectory(stateDir);
        const file = files[kind];
        writeFileSync(file, " ".repeat(limit + 1 - statSync(file).size), { flag: "a" });
        const before = tree(stateDir);
        const error = await refusalOf(openReal(stateDir));
        expect(error.message).toBe(`${file} must be at most ${limit} bytes, but it has ${limit + 1}`);
        expect(tree(stateDir)).toEqual(before);
      }));

    test(`${kind} of exactly ${limit} is read`, () =>
      withFolder(async (stateDir) => {
        const { files } = await writeFullDirectory(stateDir);
        const file = files[kind];
        writeFileSync(file, " ".repeat(limit - statSync(file).size), { flag: "a" });
        if (kind === "guard") {
          // Its whole content is one fixed line, so anything more is another guard than ours.
          expect((await refusalOf(openReal(stateDir))).code).toBe("store_guard_invalid");
          return;
        }
        const store = await openReal(stateDir);
        expect(Object.keys(recordsOf(store))).toEqual(FULL_IDS);
        await store.close();
      }));

    test(`${kind} cut anywhere is refused, or, for a manifest and a transaction, never half believed`, () =>
      withFolder(async (stateDir) => {
        const { files } = await writeFullDirectory(stateDir);
        const file = files[kind];
        const { size } = statSync(file);
        const whole = readFileSync(file);
        for (const length of [0, 1, Math.floor(size / 2), size - 2]) {
          writeFileSync(file, whole.subarray(0, length), { mode: 0o600 });
          const before = tree(stateDir);
          const error = await refusalOf(openReal(stateDir));
          expect(["store_corrupt", "store_secret_invalid", "store_guard_invalid"]).toContain(error.code);
          expect(error.message).toContain(file);
          expect(tree(stateDir)).toEqual(before);
        }
      }));
  }
});

const FOLDERS = ["", "records-v3", "origin-context-v1", "origin-context-groups-v1", "records-v2"];
const FOLDER_SHAPES: Record<string, Spoil> = {
  "a symlink": (folder, outside) => {
    renameSync(folder, outside);
    symlinkSync(outside, folder);
  },
  "a symlink to nothing": (folder, outside) => {
    renameSync(folder, outside);
    symlinkSync("nowhere", folder);
  },
  "a file": (folder, outside) => {
    renameSync(folder, outside);
    writeFileSync(folder, "", { mode: 0o600 });
  },
  "a pipe": (folder, outside) => {
    renameSync(folder, outside);
    Bun.spawnSync(["mkfifo", "-m", "700", folder]);
  },
  ...(isRoot ? { "another owner's": (folder: string) => chownSync(folder, 12_345, 12_345) } : {}),
};

describe("a folder", () => {
  for (const name of FOLDERS) {
    for (const [what, spoil] of Object.entries(FOLDER_SHAPES)) {
      test(`${name || "the state directory itself"} as ${what} stops the opening`, () =>
        withFolder(async (stateDir) => {
          await writeFullDirectory(stateDir);
          const folder = join(stateDir, name);
          spoil(folder, `${stateDir}-outside`);
          const parent = dirname(stateDir);
          const before = tree(parent);
          const error = await refusalOf(openReal(stateDir));
          expect(error.code).toBe("store_unsafe_file");
          expect(error.message).toContain(folder);
          expect(tree(parent)).toEqual(before);
        }));
    }

    test(`${name || "the state directory itself"} with a loose mode is repaired to 0700`, () =>
      withFolder(async (stateDir) => {
        await writeFullDirectory(stateDir);
        chmodSync(join(stateDir, name), 0o777);
        const store = await openReal(stateDir);
        expect(statSync(join(stateDir, name)).mode & 0o7777).toBe(0o700);
        await store.close();
      }));
  }
});
