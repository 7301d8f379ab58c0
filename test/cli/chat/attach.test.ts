import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { readAttachment } from "../../../src/cli/chat/attach.ts";
import { CliError } from "../../../src/core/errors.ts";
import { createFileSystem } from "../../../src/platform/filesystem.ts";

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "mono-attach-"));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

const read = (name: string) => readAttachment(createFileSystem(), dir, name);

test.each([
  ["photo.PNG", "image/png", Buffer.from([137, 80, 78, 71, 0])],
  ["scan.jpeg", "image/jpeg", Buffer.from([255, 216, 255, 0])],
  ["paper.pdf", "application/pdf", Buffer.from("%PDF-1.7\0")],
  ["notes.md", "text/markdown", Buffer.from("# Grüße")],
  ["data.json", "text/plain", Buffer.from("{}")],
  ["Makefile", "text/plain", Buffer.from("all:\n")],
])("%s is read as %s", (name, mediaType, data) => {
  writeFileSync(join(dir, name), data);
  expect(read(name)).toEqual({ name, mediaType, data: data.toString("base64") });
  expect(read(join(dir, name)).name).toBe(name);
});

const wrong: [string, string, () => void][] = [
  ["a missing file", "there is no such file", () => {}],
  ["a folder", "no plain file", () => mkdirSync(join(dir, "it"))],
  [
    "a link",
    "links are not followed",
    () => {
      writeFileSync(join(dir, "real"), "x");
      symlinkSync(join(dir, "real"), join(dir, "it"));
    },
  ],
  ["an empty file", "it is empty", () => writeFileSync(join(dir, "it"), "")],
  [
    "a file that is too large",
    "more than 8 MiB",
    () => {
      writeFileSync(join(dir, "it"), "");
      truncateSync(join(dir, "it"), 8 * 1024 * 1024 + 1);
    },
  ],
  [
    "a program",
    "PNG, JPEG, GIF, WebP, PDF and text",
    () => writeFileSync(join(dir, "it"), Buffer.from([127, 69, 0])),
  ],
  [
    "text of another encoding",
    "PDF and text",
    () => writeFileSync(join(dir, "it"), Buffer.from([71, 114, 252, 223])),
  ],
];
test.each(wrong)("%s is refused by name", (_, why, prepare) => {
  prepare();
  expect(() => read("it")).toThrow(CliError);
  expect(() => read("it")).toThrow(why);
  expect(() => read("it")).toThrow(join(dir, "it"));
});
