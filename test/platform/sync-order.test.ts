import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, posix } from "node:path";
import type { Recorded } from "../support/recorded-disk-entry.ts";

/**
 * What the real filesystem is told, call by call: no test of what lies in the files afterwards would notice that
 * nothing was ever synced.
 */

const ENTRY = join(import.meta.dir, "../support/recorded-disk-entry.ts");
const LINUX = process.platform === "linux";
const SWAPS = LINUX;

let folder = "";
let recorded: Recorded;
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), "sync-order-test-"));
  const child = Bun.spawn([process.execPath, "test", ENTRY], {
    cwd: join(import.meta.dir, "../.."),
    env: { ...process.env, RECORDED_FOLDER: folder },
    stdout: "ignore",
    stderr: "pipe",
  });
  const output = await new Response(child.stderr).text();
  if ((await child.exited) !== 0) throw new Error(output);
  recorded = JSON.parse(readFileSync(join(folder, "trace.json"), "utf8"));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const without = (calls: readonly string[], what: string) => calls.filter((call) => !call.startsWith(what));
const steps = (name: keyof Recorded["steps"]) => without(recorded.steps[name], "open ");

describe("on the real disk", () => {
  test("a file is written, synced through its descriptor and renamed, and then its folder is synced", () => {
    expect(steps("a new file")).toEqual(["write a.tmp", "fsync a.tmp", "rename a.tmp a", "fsync ."]);
    expect(steps("a file in pieces")).toEqual(["write pieces", "write pieces", "fsync pieces"]);
    expect(steps("a file that is there")).toEqual(["fsync a"]);
    expect(steps("a folder")).toEqual(["mkdir f", "fsync ."]);
  });

  test("a file that is written over is synced too, its data alone where its length and mode stay", () => {
    expect(steps("the same length")).toEqual([
      "write a",
      LINUX ? "fdatasync a" : "fsync a",
      "write b.tmp",
      "fsync b.tmp",
      SWAPS ? "swap b.tmp a" : "rename b.tmp a",
      "fsync .",
    ]);
    expect(steps("another length")).toEqual(["write a", "fsync a"]);
    expect(steps("ended after the data")).toEqual(["write a", "truncate a", "fsync a"]);
    expect(steps("another mode")).toEqual(["write a", "fsync a"]);
  });

  const names = (prefix: string, count: number) =>
    Array.from({ length: count }, (_, index) => `${prefix}-${index}`);
  const all = (what: string, files: readonly string[]) => files.map((file) => `${what} ${file}.tmp`);
  const named = (files: readonly string[]) => [
    ...files.map((file) => `rename ${file}.tmp ${file}`),
    "fsync .",
  ];

  test("of fewer than eight files each is synced before the first of them gets its name", () => {
    const files = names("few", 7);
    expect(steps("few files")).toEqual([...all("write", files), ...all("fsync", files), ...named(files)]);
  });

  test("eight files are synced together before the first of them gets its name, where the system can", () => {
    const files = names("many", 8);
    const synced = recorded.together ? ["syncfs ."] : all("fsync", files);
    expect(steps("many files")).toEqual([...all("write", files), ...synced, ...named(files)]);
    // Opened later, its descriptor would not be told of a write that failed before.
    if (recorded.together) expect(recorded.steps["many files"][0]).toBe("open .");
  });
});

const STATE = "above/state";
const TRANSACTION = `${STATE}/continuation-transaction-v3.json`;
const RECORDS = `${STATE}/records-v3`;

/** The first thing that is relied on in a store's life and not durable then. */
function firstBroken(calls: readonly string[]): string | undefined {
  const files = new Set<string>();
  const data = new Set<string>();
  const folders = new Set<string>();
  const inRecords = (path: string) => path === RECORDS || path.startsWith(`${RECORDS}/`);
  const entry = (path: string) => folders.add(posix.dirname(path));
  for (const [index, call] of calls.entries()) {
    const [what, path = "", to = ""] = call.split(" ");
    const broken = (why: string) => `${index}: ${call}: ${why}`;
    switch (what) {
      case "write":
      case "truncate":
        if (!files.has(path)) entry(path);
        files.add(path);
        data.add(path);
        break;
      case "fsync":
      case "fdatasync":
        data.delete(path);
        folders.delete(path);
        break;
      case "syncfs":
        data.clear();
        break;
      case "mkdir":
        entry(path);
        break;
      case "rename":
      case "swap":
        if (data.has(path)) return broken("its data is not durable");
        if (what === "swap" && data.has(to)) data.add(path);
        data.delete(to);
        if (what === "rename") files.delete(path);
        files.add(to);
        entry(path);
        entry(to);
        break;
      case "unlink":
        if (path === TRANSACTION) {
          const lost = [...data, ...folders].filter(inRecords);
          if (lost.length > 0) return broken(`${lost} could be lost with it`);
        }
        files.delete(path);
        data.delete(path);
        // A temporary that comes back is taken away again.
        if (!path.endsWith(".tmp")) entry(path);
        break;
      case "acknowledged": {
        const lost = [...data, ...folders].filter((name) => !inRecords(name));
        if (lost.length > 0) return broken(`${lost} not durable`);
        break;
      }
    }
  }
  const left = [...data, ...folders];
  return left.length > 0 ? `at the end ${left} not durable` : undefined;
}

describe("a store on the real disk", () => {
  test("acknowledges, names and lets go of nothing before what it relies on is durable", () => {
    const calls = without(recorded.store, "open ");
    expect(firstBroken(calls)).toBeUndefined();
    const count = (what: string) => calls.filter((call) => call.startsWith(what)).length;
    expect(count("acknowledged")).toBe(10);
    if (recorded.together) expect(count("syncfs")).toBe(1);
    if (LINUX) expect(count("fdatasync")).toBeGreaterThan(0);
  });

  test("relies on every sync of data and of the records, and on the last before each acknowledgement", () => {
    const calls = without(recorded.store, "open ");
    const syncs = calls.flatMap((call, index) => (/^(fsync|fdatasync|syncfs) /.test(call) ? [index] : []));
    const spared = syncs.filter((index) => firstBroken(calls.toSpliced(index, 1)) === undefined);
    // The state folder is synced more often; what only an opening repeats is for one that was killed in front of it.
    const repeated = ["fsync ..", `fsync ${STATE}`, `fsync ${STATE}/origin-context-groups-v1`];
    expect(spared.map((index) => calls[index]).filter((call) => !repeated.includes(call ?? ""))).toEqual([]);
    expect(spared.filter((index) => calls[index + 1] === "acknowledged")).toEqual([]);
  });
});
