import { afterEach, beforeEach, expect, test } from "bun:test";
import { chmodSync, linkSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { readOwnerOnlyText } from "../../src/core/owner-only.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { createMemoryFileSystem } from "../../src/platform/memory-filesystem.ts";

let folder: string;
let path: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "mono-agent-secret-"));
  path = join(folder, "secret");
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const read = () => readOwnerOnlyText(createFileSystem(), path, 10, "test");
const write = (text: string, mode = 0o600) => {
  writeFileSync(path, text);
  chmodSync(path, mode);
};

test("the text of an owner-only file is read up to its bound, and one that is longer is too big", () => {
  expect(read()).toBeUndefined();
  write("0123456789");
  expect(read()).toEqual({ kind: "text", text: "0123456789" });
  write("0123456789\n");
  expect(read()).toEqual({ kind: "too_big" });
});

const SPOILED: readonly [string, () => void, string][] = [
  ["a mode that others can read by", () => write("secret", 0o644), "has mode 644, not 600"],
  ["a mode that is not exactly 0600", () => write("secret", 0o400), "has mode 400, not 600"],
  [
    "a second name",
    () => {
      write("secret");
      linkSync(path, `${path}.other`);
    },
    "has 2 names (hard links)",
  ],
  [
    "a link in its place",
    () => {
      writeFileSync(`${path}.real`, "secret", { mode: 0o600 });
      symlinkSync(`${path}.real`, path);
    },
    "is a symlink, not a regular file",
  ],
  ["a folder in its place", () => mkdirSync(path), "is a directory, not a regular file"],
];
test.each(SPOILED)("a file with %s is unsafe, and the problem is named", (_, spoil, problem) => {
  spoil();
  expect(read()).toEqual({ kind: "unsafe", problem });
});

test("a file that is replaced between the look and the open is judged by what was opened", () => {
  const disk = createMemoryFileSystem();
  disk.seed("/state/secret", "secret", 0o600);
  const safe = disk.lstat("/state/secret", "test");
  const readReplaced = (text: string, mode: number) => {
    disk.erase("/state/secret");
    disk.seed("/state/secret", text, mode);
    return readOwnerOnlyText({ ...disk, lstat: () => safe }, "/state/secret", 10, "test");
  };
  expect(readReplaced("theirs", 0o644)).toEqual({ kind: "unsafe", problem: "has mode 644, not 600" });
  expect(readReplaced("far too long", 0o600)).toEqual({ kind: "too_big" });
  expect(readReplaced("renewed", 0o600)).toEqual({ kind: "text", text: "renewed" });
});
