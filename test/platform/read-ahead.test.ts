import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { linkSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { KIB } from "../../src/core/limits.ts";
import type { FileAhead, FilesToRead } from "../../src/core/ports/platform.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { startReader } from "../../src/platform/filesystem-threads.ts";
import {
  READ_AHEAD_FROM,
  type ReadAheadMessage,
  readAhead,
  serveReadAhead,
} from "../../src/platform/read-ahead.ts";
import { createReadRing } from "../../src/platform/read-ring.ts";

const FILES = 3 * READ_AHEAD_FROM;
/** What a thread reads before it needs the caller: sixteen slots of 32 files. */
const RING_FILES = 16 * 32;

let folder = "";
const nameOf = (index: number) => `file-${`${index}`.padStart(5, "0")}`;
const contentOf = (index: number) => `content ${index} ${"é".repeat(index % 50)}`;
const names = Array.from({ length: FILES }, (_, index) => nameOf(index));
const filesToRead = (): FilesToRead => ({ folder, names, maxBytes: 64 * KIB, label: "test.read" });

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "read-ahead-test-"));
  for (const [index, name] of names.entries()) {
    writeFileSync(join(folder, name), contentOf(index), { mode: 0o600 });
  }
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** What was given, each file's bytes copied at once: they are good only until the next. */
function taken(given: Iterable<FileAhead>): Map<string, string | undefined> {
  const all = new Map<string, string | undefined>();
  for (const { name, data } of given) {
    if (all.has(name)) throw new Error(`${name} came twice`);
    all.set(name, data === undefined ? undefined : Buffer.from(data).toString("utf8"));
  }
  return all;
}

/** In the place of a thread: reads all that it can before the caller takes anything, and ends. */
const atOnce = (message: ReadAheadMessage) => {
  serveReadAhead(message, 0);
  return () => {};
};

describe("reading ahead", () => {
  test("gives every name once, and true bytes with each that a real thread has read", () => {
    const startAndWait = (message: ReadAheadMessage) => {
      const end = startReader(message);
      expect(createReadRing(FILES, message.read.ring).waitForBlock(30_000)).toBe(true);
      return end;
    };
    const all = taken(readAhead(filesToRead(), startAndWait));
    expect([...all.keys()].sort()).toEqual(names);
    const read = [...all].filter(([, data]) => data !== undefined);
    expect(read.length).toBeGreaterThanOrEqual(32);
    for (const [name, data] of read) expect(data).toBe(contentOf(names.indexOf(name)));
  });

  test("is what the filesystem of a machine with more than one processor does", () => {
    const given = createFileSystem().readAhead?.(filesToRead());
    if (availableParallelism() === 1) expect(given).toBeUndefined();
    else expect([...taken(given ?? []).keys()].sort()).toEqual(names);
  });

  test("takes from the thread what it has read, and gives the rest without bytes", () => {
    const all = taken(readAhead(filesToRead(), atOnce, 0));
    expect(all.size).toBe(FILES);
    const read = [...all].filter(([, data]) => data !== undefined);
    expect(read).toEqual(names.slice(0, RING_FILES).map((name, index) => [name, contentOf(index)]));
  });

  test("gives what a thread has claimed and never read", () => {
    const dying = ({ read }: ReadAheadMessage) => {
      const ring = createReadRing(FILES, read.ring);
      ring.claim();
      ring.claim();
      return () => {};
    };
    const all = taken(readAhead(filesToRead(), dying, 0));
    expect([...all.keys()].sort()).toEqual(names);
    expect([...all.values()].every((data) => data === undefined)).toBe(true);
  });

  test("needs no thread for few files", () => {
    const few = { ...filesToRead(), names: names.slice(0, READ_AHEAD_FROM - 1) };
    const none = () => {
      throw new Error("a thread was started");
    };
    expect(taken(readAhead(few, none)).size).toBe(READ_AHEAD_FROM - 1);
  });

  test("ends the thread when the caller goes away", () => {
    let ended = 0;
    const start = (message: ReadAheadMessage) => {
      serveReadAhead(message, 0);
      return () => {
        ended += 1;
      };
    };
    for (const { name } of readAhead(filesToRead(), start, 0)) if (name === nameOf(40)) break;
    expect(ended).toBe(1);
  });

  test("a thread goes on when the caller has taken a block, and stops for one who has gone", async () => {
    const ring = createReadRing(FILES);
    const block = () => ring.claim() ?? { number: -1, from: 0, to: 0 };
    const publish = () => ring.publish(block(), 0, () => 0);
    for (let slot = 0; slot < 16; slot += 1) expect(publish()).toBe(true);
    expect(publish()).toBe(false);
    expect(ring.published()?.block.number).toBe(0);
    ring.release();
    expect(publish()).toBe(true);
    ring.stop();
    expect(publish()).toBe(true);
    expect(ring.claim()).toBeUndefined();
  });

  test("leaves to the caller whatever is out of the ordinary, and what is too large for the shared memory", () => {
    const odd = join(folder, "odd");
    mkdirSync(odd, { mode: 0o700 });
    const write = (name: string, content: string, mode = 0o600) =>
      writeFileSync(join(odd, name), content, { mode });
    write("plain", "plain");
    write("loose", "loose", 0o640);
    write("linked", "linked");
    linkSync(join(odd, "linked"), join(odd, "second-name"));
    symlinkSync("plain", join(odd, "symlink"));
    mkdirSync(join(odd, "directory"));
    Bun.spawnSync(["mkfifo", "-m", "600", join(odd, "pipe")]);
    write("large", "x".repeat(129 * KIB));
    write("empty", "");
    const present = ["plain", "loose", "linked", "symlink", "directory", "pipe", "large", "missing", "empty"];
    const padding = Array.from({ length: READ_AHEAD_FROM }, (_, index) => `missing-${index}`);
    const request = { folder: odd, names: [...present, ...padding], maxBytes: 1 << 20, label: "test.read" };
    const all = taken(readAhead(request, atOnce, 0));
    const read = [...all].filter(([, data]) => data !== undefined);
    expect(read).toEqual([
      ["plain", "plain"],
      ["empty", ""],
    ]);
  });
});
