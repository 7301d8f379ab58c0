import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { linkSync, mkdtempSync, readFileSync, rmSync, statSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { FileFault, type FileStep, type FileSystem } from "../../src/core/ports/platform.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { errnoOf as errorCode } from "../../src/platform/filesystem-steps.ts";
import { createMemoryFileSystem, memoryDisk } from "../../src/platform/memory-filesystem.ts";
import { swapNames } from "../../src/platform/swap-names.ts";

/** One suite for the real filesystem and for the one in memory, so that tests on the latter mean something. */

let folder = "";
let count = 0;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "filesystem-test-"));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

type Write = Extract<FileStep, { op: "write" }>;
const write = (path: string, data: string | Uint8Array): Write => ({
  op: "write",
  path,
  data,
  mode: 0o600,
  sync: true,
  label: "w",
});
const text = (fs: FileSystem, path: string): string | undefined => {
  const handle = fs.open(path, "r");
  if (handle === undefined) return undefined;
  const data = handle.read(1 << 20);
  handle.close();
  return Buffer.from(data).toString("utf8");
};
/** Only Linux can; the disk in memory behaves like it unless told otherwise. */
const SWAPS = process.platform === "linux";
const errnoOf = (error: unknown) => (error instanceof FileFault ? `${error.label}:${error.errno}` : error);

for (const [name, create] of [
  ["real", createFileSystem],
  ["in memory", () => createMemoryFileSystem(memoryDisk({ swaps: SWAPS }))],
] as const) {
  for (const [how, run] of [
    ["run", (fs: FileSystem, steps: FileStep[]) => fs.run(steps)],
    ["runSync", async (fs: FileSystem, steps: FileStep[]) => fs.runSync(steps)],
  ] as const) {
    describe(`${name}, ${how}`, () => {
      async function fresh(): Promise<{ fs: FileSystem; at: string }> {
        const fs = create();
        count += 1;
        const at = name === "real" ? join(folder, String(count)) : `/${count}`;
        await run(fs, [{ op: "mkdir", path: at, mode: 0o700, existsOk: false, label: "mk" }]);
        return { fs, at };
      }

      test("writes, renames, lists, reads and removes", async () => {
        const { fs, at } = await fresh();
        const [from, to] = [join(at, ".a.tmp"), join(at, "a")];
        await run(fs, [
          write(from, "first"),
          { op: "rename", from, to, label: "mv" },
          write(join(at, "b"), Buffer.from("ü")),
          { op: "sync", path: to, label: "s" },
          { op: "syncDir", path: at, label: "sd" },
        ]);
        expect(fs.list(at, "ls")?.sort()).toEqual(["a", "b"]);
        expect([text(fs, to), text(fs, join(at, "b"))]).toEqual(["first", "ü"]);
        expect(fs.lstat(to, "st")).toMatchObject({ kind: "file", size: 5, mode: 0o600, links: 1 });
        expect(fs.lstat(at, "st")).toMatchObject({ kind: "directory", mode: 0o700 });
        await run(fs, [write(from, "second"), { op: "rename", from, to, label: "mv" }]);
        expect(text(fs, to)).toBe("second");
        await run(fs, [{ op: "unlink", path: to, missingOk: false, label: "rm" }]);
        expect(fs.lstat(to, "st")).toBeUndefined();
        expect(fs.open(to, "r")).toBeUndefined();
        expect(fs.list(join(at, "none"), "ls")).toBeUndefined();
      });

      test("stops at the first step that fails and names it", async () => {
        const { fs, at } = await fresh();
        const steps: FileStep[] = [
          write(join(at, "a"), "1"),
          { op: "unlink", path: join(at, "x"), missingOk: true, label: "fine" },
          { op: "unlink", path: join(at, "x"), missingOk: false, label: "rm" },
          write(join(at, "b"), "1"),
        ];
        expect(await run(fs, steps).catch(errnoOf)).toBe("rm:ENOENT");
        expect(fs.list(at, "ls")).toEqual(["a"]);
        expect(await run(fs, [write(join(at, "a"), "2")]).catch(errnoOf)).toBe("w:EEXIST");
        expect(text(fs, join(at, "a"))).toBe("1");
        const again: FileStep = { op: "mkdir", path: at, mode: 0o700, existsOk: false, label: "mk" };
        expect(await run(fs, [again]).catch(errnoOf)).toBe("mk:EEXIST");
        await run(fs, [{ ...again, existsOk: true }]);
        expect(await run(fs, [write(join(at, "none", "c"), "1")]).catch(errnoOf)).toBe("w:ENOENT");
      });

      test("writes over a file in place where that is asked for, shorter or longer, and creates a missing one", async () => {
        const { fs, at } = await fresh();
        const path = join(at, "a");
        const over = (data: string | Uint8Array): Write => ({
          op: "write",
          path,
          data,
          mode: 0o600,
          sync: true,
          reuse: "whole",
          label: "w",
        });
        await run(fs, [over("created")]);
        const { inode } = fs.lstat(path, "st") ?? {};
        const shared = new Uint8Array(new SharedArrayBuffer(64), 8, 12);
        shared.set(Buffer.from("longer, here"));
        for (const data of ["short", "", "as long", shared, "end"]) {
          await run(fs, [{ op: "chmod", path, mode: 0o644, label: "ch" }, over(data)]);
          expect(text(fs, path)).toBe(Buffer.from(data).toString("utf8"));
          expect(fs.lstat(path, "st")).toMatchObject({ inode, mode: 0o600 });
        }
        await run(fs, [over("0123456789"), { ...over("abc"), reuse: "start" }]);
        expect(text(fs, path)).toBe("abc3456789");
        await run(fs, [{ ...over("longer than that"), reuse: "start" }]);
        expect(text(fs, path)).toBe("longer than that");
        await run(fs, [{ op: "mkdir", path: join(at, "d"), mode: 0o700, existsOk: false, label: "mk" }]);
        const folder = { ...over("x"), path: join(at, "d") };
        expect(await run(fs, [folder]).catch(errnoOf)).toMatch(/^w:E(ISDIR|EXIST)$/);
      });

      test("swaps names where that is asked for and both are there, and else renames", async () => {
        const { fs, at } = await fresh();
        const [from, to] = [join(at, ".spare.tmp"), join(at, "a")];
        const swap: FileStep = { op: "rename", from, to, swap: true, label: "sw" };
        await run(fs, [write(from, "first"), swap]);
        expect([text(fs, to), text(fs, from)]).toEqual(["first", undefined]);
        await run(fs, [write(from, "second"), swap]);
        expect([text(fs, to), text(fs, from)]).toEqual(["second", SWAPS ? "first" : undefined]);
        await run(fs, [{ ...swap, from: to, to: from, swap: false }]);
        expect([text(fs, to), text(fs, from)]).toEqual([undefined, "second"]);
        const missing = { ...swap, from: join(at, "none") };
        expect(await run(fs, [missing]).catch(errnoOf)).toBe("sw:ENOENT");
        await run(fs, [{ ...missing, missingOk: true }]);
        expect(fs.list(at, "ls")).toEqual([".spare.tmp"]);
      });

      test("reads on from where it stopped, and sees the mode change", async () => {
        const { fs, at } = await fresh();
        const path = join(at, "a");
        await run(fs, [write(path, "abcdef"), { op: "chmod", path, mode: 0o640, label: "ch" }]);
        const handle = fs.open(path, "r");
        if (handle === undefined) throw new Error("not there");
        expect(Buffer.from(handle.read(4)).toString()).toBe("abcd");
        expect(Buffer.from(handle.read(4)).toString()).toBe("ef");
        expect(handle.read(4)).toHaveLength(0);
        expect(handle.stat()).toMatchObject({ size: 6, mode: 0o640, inode: fs.lstat(path, "st")?.inode });
        handle.close();
      });
    });
  }
}

describe("the filesystem in memory", () => {
  const chmod = (path: string, mode: number): FileStep => ({ op: "chmod", path, mode, label: "ch" });

  test("loses a changed mode with the power until its file or folder is synced, and never the first one", async () => {
    const fs = createMemoryFileSystem();
    const reused: Write = { ...write("/d/b", "new"), reuse: "whole", sync: false };
    await fs.run([
      { op: "mkdir", path: "/d", mode: 0o755, existsOk: false, label: "mk" },
      { ...write("/d/a", "1"), mode: 0o644 },
      { ...write("/d/b", "old"), mode: 0o644 },
      { op: "syncDir", path: "/d", label: "sd" },
      { op: "syncDir", path: "/", label: "sd" },
      chmod("/d", 0o700),
      chmod("/d/a", 0o600),
      reused,
    ]);
    const [now, before] = [
      { "/d": 0o700, "/d/a": 0o600, "/d/b": 0o600 },
      { "/d": 0o755, "/d/a": 0o644, "/d/b": 0o644 },
    ];
    expect(fs.modes()).toEqual(now);
    expect(fs.unsynced().map(({ kind, path }) => `${kind} ${path}`)).toEqual([
      "mode /d",
      "mode /d/a",
      "mode /d/b",
      "data /d/b",
    ]);
    expect(fs.afterPowerCut("all").modes()).toEqual(now);
    expect(fs.afterPowerCut("none").modes()).toEqual(before);
    const alone = fs.afterPowerCut(({ path }) => path === "/d/a");
    expect(alone.modes()).toEqual({ ...before, "/d/a": 0o600 });
    expect(alone.unsynced()).toEqual([]);
    await fs.run(["/d/a", "/d/b"].map((path): FileStep => ({ op: "sync", path, label: "s" })));
    await fs.run([{ op: "syncDir", path: "/d", label: "sd" }, chmod("/d", 0o700)]);
    expect([fs.unsynced(), fs.afterPowerCut("none").modes()]).toEqual([[], now]);
  });

  test("fails before an operation or after it, whichever a test wants", async () => {
    const steps: FileStep[] = [
      { op: "mkdir", path: "/d", mode: 0o700, existsOk: false, label: "mk" },
      write("/d/a", "1"),
      { op: "rename", from: "/d/a", to: "/d/b", label: "mv" },
      { op: "unlink", path: "/d/b", missingOk: false, label: "rm" },
      { op: "unlink", path: "/d/b", missingOk: true, label: "rm" },
    ];
    // After so many operations: mkdir, create, data, sync, rename, unlink, unlink of what is gone.
    const after = [
      [],
      ["/d"],
      ["/d", "/d/a: "],
      ["/d", "/d/a: 1"],
      ["/d", "/d/a: 1"],
      ["/d", "/d/b: 1"],
      ["/d"],
      ["/d"],
    ];
    for (let number = 1; number <= 7; number += 1) {
      for (const done of [false, true]) {
        const fs = createMemoryFileSystem();
        const injected = done ? ({ errno: "EIO", done } as const) : "EIO";
        fs.failWhen((_, current) => (current === number ? injected : undefined));
        expect(await fs.run(steps).catch(errnoOf)).toMatch(/^(mk|w|mv|rm):EIO$/);
        expect(fs.counts.operations).toBe(number);
        const files = fs.files();
        const found = Object.keys(fs.modes()).map((path) =>
          files[path] === undefined ? path : `${path}: ${files[path]}`,
        );
        expect([number, done, found]).toEqual([number, done, after[done ? number : number - 1] ?? []]);
      }
    }
  });
});

describe("the real filesystem", () => {
  test("does not follow a symlink, neither to read nor to create", async () => {
    const fs = createFileSystem();
    const target = join(folder, "target");
    const link = join(folder, "link");
    await fs.run([write(target, "secret")]);
    symlinkSync(target, link);
    expect(fs.lstat(link, "st")?.kind).toBe("symlink");
    expect(() => fs.open(link, "r")).toThrow(FileFault);
    expect(await fs.run([write(link, "x")]).catch(errnoOf)).toBe("w:EEXIST");
    expect(readFileSync(target, "utf8")).toBe("secret");
  });

  test("writes over nothing that is not a file of one name: that is replaced", async () => {
    const fs = createFileSystem();
    const outside = join(folder, "outside");
    await fs.run([write(outside, "theirs")]);
    const places: Record<string, (path: string) => void> = {
      symlink: (path) => symlinkSync(outside, path),
      "second link": (path) => linkSync(outside, path),
      pipe: (path) => void Bun.spawnSync(["mkfifo", path]),
    };
    for (const [name, put] of Object.entries(places)) {
      for (const reuse of ["whole", "start"] as const) {
        const path = join(folder, `${name} ${reuse}`);
        put(path);
        await fs.run([{ ...write(path, "ours"), reuse }]);
        expect(fs.lstat(path, "st")).toMatchObject({ kind: "file", links: 1, size: 4, mode: 0o600 });
        expect(readFileSync(outside, "utf8")).toBe("theirs");
      }
    }
  });

  test("sets the modes that were asked for, whatever the umask", async () => {
    const fs = createFileSystem();
    const at = join(folder, "masked");
    const before = process.umask(0o777);
    try {
      await fs.run([
        { op: "mkdir", path: at, mode: 0o700, existsOk: false, label: "mk" },
        write(join(at, "a"), "1"),
      ]);
      fs.runSync([write(join(at, "b"), "1")]);
    } finally {
      process.umask(before);
    }
    expect(statSync(at).mode & 0o7777).toBe(0o700);
    for (const name of ["a", "b"]) expect(statSync(join(at, name)).mode & 0o7777).toBe(0o600);
  });

  test.if(process.platform === "linux")(
    "a swap says no when nothing was done, and throws when that is unclear",
    async () => {
      const fs = createFileSystem();
      const [a, b] = [join(folder, "swap a"), join(folder, "swap b")];
      await fs.run([write(a, "a")]);
      expect(swapNames(a, b)).toBe(false);
      await fs.run([write(b, "b")]);
      expect(swapNames(a, b)).toBe(true);
      expect([readFileSync(a, "utf8"), readFileSync(b, "utf8")]).toEqual(["b", "a"]);
      const codeOf = (act: () => unknown) => {
        try {
          return act();
        } catch (error) {
          return errorCode(error);
        }
      };
      expect(codeOf(() => swapNames(join(a, "below a file"), b))).toBe("ENOTDIR");
      expect(codeOf(() => swapNames(join(folder, "x".repeat(300)), b))).toBe("ENAMETOOLONG");
      expect([readFileSync(a, "utf8"), readFileSync(b, "utf8")]).toEqual(["b", "a"]);
    },
  );

  test("does not hang on a pipe", () => {
    const path = join(folder, "pipe");
    Bun.spawnSync(["mkfifo", path]);
    const fs = createFileSystem();
    expect(fs.lstat(path, "st")?.kind).toBe("other");
    const handle = fs.open(path, "r");
    expect(handle?.stat().kind).toBe("other");
    handle?.close();
  });
});
