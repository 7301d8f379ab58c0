import { CString, type FFIFunction, type Pointer } from "bun:ffi";
import { mock, test } from "bun:test";
import * as nodeFs from "node:fs";
import { join, relative } from "node:path";
import type { FileStep } from "../../src/core/ports/platform.ts";
import * as cLibrary from "../../src/platform/c-library.ts";

/**
 * Not a test by itself: test/platform/sync-order.test.ts runs it with `bun test` in a process of its own, because the
 * module mocks below must not reach other tests. Every call is made, and recorded when it did what it says: the disk
 * is real. What was recorded is in `trace.json` of the folder that RECORDED_FOLDER names.
 */

const folder = process.env.RECORDED_FOLDER ?? "";
const real = { ...nodeFs };
const opened = new Map<number, string>();
let calls: string[] = [];

const name = (path: unknown): string => relative(folder, String(path)) || ".";
const note = (call: string, ...names: string[]) => void calls.push([call, ...names].join(" "));
const nameOf = (descriptor: number): string => opened.get(descriptor) ?? `descriptor ${descriptor}`;

mock.module("node:fs", () => {
  const recorded = {
    ...real,
    openSync(path: string, flags: number, mode?: number) {
      const descriptor = real.openSync(path, flags, mode);
      opened.set(descriptor, name(path));
      note("open", name(path));
      return descriptor;
    },
    closeSync(descriptor: number) {
      opened.delete(descriptor);
      real.closeSync(descriptor);
    },
    writeSync(descriptor: number, data: Uint8Array, offset: number, length: number) {
      const written = real.writeSync(descriptor, data, offset, length);
      note("write", nameOf(descriptor));
      return written;
    },
    ftruncateSync(descriptor: number, length: number) {
      real.ftruncateSync(descriptor, length);
      note("truncate", nameOf(descriptor));
    },
    fsyncSync(descriptor: number) {
      real.fsyncSync(descriptor);
      note("fsync", nameOf(descriptor));
    },
    fdatasyncSync(descriptor: number) {
      real.fdatasyncSync(descriptor);
      note("fdatasync", nameOf(descriptor));
    },
    renameSync(from: string, to: string) {
      real.renameSync(from, to);
      note("rename", name(from), name(to));
    },
    unlinkSync(path: string) {
      real.unlinkSync(path);
      note("unlink", name(path));
    },
    mkdirSync(path: string, options: { mode: number }) {
      real.mkdirSync(path, options);
      note("mkdir", name(path));
    },
  };
  return { ...recorded, default: recorded };
});

const textAt = (address: unknown) => String(new CString(address as Pointer));
const realFromCLibrary = cLibrary.fromCLibrary;
mock.module("../../src/platform/c-library.ts", () => ({
  fromCLibrary(functions: Record<string, FFIFunction>) {
    const library = realFromCLibrary(functions) as Record<string, (...args: unknown[]) => number> | undefined;
    if (library === undefined) return undefined;
    return {
      ...library,
      syncfs(descriptor: number) {
        const answer = library.syncfs?.(descriptor) ?? -1;
        if (answer === 0) note("syncfs", nameOf(descriptor));
        return answer;
      },
      renameat2(...args: unknown[]) {
        const answer = library.renameat2?.(...args) ?? -1;
        if (answer === 0) note("swap", name(textAt(args[1])), name(textAt(args[3])));
        return answer;
      },
    };
  },
}));

// Only now: what these import gets the recording modules.
const { createFileSystem } = await import("../../src/platform/filesystem.ts");
const { performSteps } = await import("../../src/platform/filesystem-steps.ts");
const { openForSyncfs } = await import("../../src/platform/syncfs.ts");
const { createSequentialFile } = await import("../../src/platform/sequential-file.ts");
const { claim, openStore } = await import("./store-harness.ts");

const at = (path: string) => join(folder, path);

/** What was called since the last time. */
function taken(): string[] {
  const all = calls;
  calls = [];
  return all;
}

function performed(steps: readonly FileStep[]): string[] {
  const failure = performSteps(steps);
  if (failure !== undefined) throw failure.cause;
  return taken();
}

type Write = Extract<FileStep, { op: "write" }>;
const write = (path: string, rest: Partial<Write> = {}): Write => ({
  op: "write",
  path: at(path),
  data: "x".repeat(10),
  mode: 0o600,
  sync: true,
  label: "w",
  ...rest,
});

function checkpoint(prefix: string, count: number): FileStep[] {
  const names = Array.from({ length: count }, (_, index) => `${prefix}-${index}`);
  return [
    ...names.map((name) => write(`${name}.tmp`, { sync: false })),
    { op: "syncFiles", folder, paths: names.map((name) => at(`${name}.tmp`)), label: "s" },
    ...names.map((name): FileStep => ({ op: "rename", from: at(`${name}.tmp`), to: at(name), label: "r" })),
    { op: "syncDir", path: folder, label: "d" },
  ];
}

function steps() {
  const named = (from: string, to: string, swap = false): FileStep[] => [
    { op: "rename", from: at(from), to: at(to), swap, label: "r" },
    { op: "syncDir", path: folder, label: "d" },
  ];
  const sequential = () => {
    const file = createSequentialFile(at("pieces"), 0o600, "p");
    file.write(Buffer.from("first"));
    file.write(Buffer.from("second"));
    file.sync();
    file.close();
    return taken();
  };
  return {
    "a new file": performed([write("a.tmp"), ...named("a.tmp", "a")]),
    "the same length": performed([
      write("a", { reuse: "start", data: "y" }),
      write("b.tmp"),
      ...named("b.tmp", "a", true),
    ]),
    "another length": performed([write("a", { reuse: "start", data: "longer than before" })]),
    "ended after the data": performed([write("a", { reuse: "whole", data: "y" })]),
    "another mode": performed([
      { op: "chmod", path: at("a"), mode: 0o640, label: "c" },
      write("a", { reuse: "start", data: "z" }),
    ]),
    "a file that is there": performed([{ op: "sync", path: at("a"), label: "s" }]),
    "a folder": performed([
      { op: "mkdir", path: at("f"), mode: 0o700, existsOk: false, label: "m" },
      { op: "syncDir", path: folder, label: "d" },
    ]),
    "few files": performed(checkpoint("few", 7)),
    "many files": performed(checkpoint("many", 8)),
    "a file in pieces": sequential(),
  };
}

/** The life of a store on this disk; `acknowledged` stands where a commit was. */
async function lifeOfAStore(): Promise<string[]> {
  const disk = createFileSystem();
  // In this thread, where the calls are recorded: the threads of `run` do the same with each list of steps.
  const fs = { ...disk, run: async (all: readonly FileStep[]) => disk.runSync(all) };
  const stateDir = at("above/state");
  const commit = async (store: Awaited<ReturnType<typeof openStore>>, ...ids: string[]) => {
    await store.commit({ puts: ids.map((id) => claim(id)) });
    note("acknowledged");
  };
  const first = await openStore({ fs, stateDir });
  await commit(first, "a", "b", "c");
  await commit(first, "a");
  // Both files of the transaction have their length by then, and keep it.
  for (let again = 0; again < 4; again += 1) await commit(first, "a", "d");
  await first.close();
  const second = await openStore({ fs, stateDir });
  await commit(second, ...Array.from({ length: 12 }, (_, index) => `many-${index}`));
  await commit(second, "a", "many-3");
  await second.commit({ puts: ["b", "c"].map((id) => claim(id, { state: "delivered" })) });
  note("acknowledged");
  await second.close();
  // Opening deletes one of the two that are finished.
  const third = await openStore({ fs, stateDir, retention: { terminalMaxRecords: 1 } });
  await commit(third, "a");
  await third.close();
  return taken();
}

export interface Recorded {
  /** Whether syncfs can be relied on in this folder. */
  readonly together: boolean;
  readonly steps: ReturnType<typeof steps>;
  readonly store: readonly string[];
}

test("records", async () => {
  const probe = openForSyncfs(folder);
  probe?.close();
  taken();
  const recorded: Recorded = { together: probe !== undefined, steps: steps(), store: await lifeOfAStore() };
  real.writeFileSync(at("trace.json"), JSON.stringify(recorded));
});
