import { describe, expect, test } from "bun:test";
import type { FileStep, FileSystem } from "../../src/core/ports/platform.ts";
import { readSecureFile } from "../../src/core/secure-files.ts";
import { createMemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { checkContinuationStore } from "../../src/store/check.ts";
import { liveReads } from "../../src/store/live-reads.ts";
import { storePaths } from "../../src/store/paths.ts";
import { verifyContinuation } from "../../src/store/verify.ts";
import { claim, openStore, STATE_DIR } from "../support/store-harness.ts";

const paths = storePaths(STATE_DIR);
const SPARE = `${paths.transaction}.spare`;

/** What a host does to the file while it is being read: the names are swapped, and the one out of use is written over. */
function replacing(fs: FileSystem, path: string, contents: string[]): FileSystem {
  const write = (data: string): FileStep => ({
    op: "write",
    path: SPARE,
    data,
    mode: 0o600,
    sync: true,
    reuse: "whole",
    label: "test",
  });
  return {
    ...fs,
    open(opened, label) {
      const handle = fs.open(opened, label);
      if (handle === undefined || opened !== path) return handle;
      return {
        ...handle,
        read(length) {
          const next = contents.shift();
          if (next !== undefined) {
            fs.runSync([write(next), { op: "rename", from: SPARE, to: path, swap: true, label: "test" }]);
            fs.runSync([write("half of something else".slice(0, handle.stat().size))]);
          }
          return handle.read(length);
        },
      };
    },
  };
}

describe("reading a directory that a host has open", () => {
  test("gives a version that was there as a whole, however often it is replaced meanwhile", () => {
    const fs = createMemoryFileSystem();
    fs.seed(paths.transaction, "the first");
    const reads = liveReads(replacing(fs, paths.transaction, ["the second", "the third"]), paths);
    const data = readSecureFile(reads, paths.transaction, 1_000, "test");
    expect(Buffer.from(data ?? []).toString()).toBe("the third");
    const plain = replacing(fs, paths.transaction, ["the fourth"]);
    const torn = readSecureFile(plain, paths.transaction, 1_000, "test");
    expect(Buffer.from(torn ?? []).toString()).toBe("half of s");
  });

  test("gives up on a file that never stands still, and still refuses what is unsafe", () => {
    const fs = createMemoryFileSystem();
    fs.seed(paths.transaction, "x".repeat(40));
    const restless = replacing(
      fs,
      paths.transaction,
      Array.from({ length: 100 }, (_, at) => "y".repeat(40 + at)),
    );
    expect(() => readSecureFile(liveReads(restless, paths), paths.transaction, 1_000, "test")).toThrow(
      "while it was read",
    );
    fs.seed(paths.transaction, "loose", 0o644);
    const reads = liveReads(fs, paths);
    expect(() => readSecureFile(reads, paths.transaction, 1_000, "test")).toThrow(
      "must not be open to group",
    );
    expect(() => readSecureFile(reads, paths.transaction, 2, "test")).toThrow();
  });

  test("the check finds nothing in a store whose transaction is written over while it is read", async () => {
    const fs = createMemoryFileSystem();
    const store = await openStore({ fs });
    await store.commit({ puts: [claim("a")] });
    const versions: string[] = [];
    for (const id of ["b", "c", "d", "e"]) {
      await store.commit({ puts: [claim(id)] });
      versions.push(fs.files()[paths.transaction] ?? "");
    }
    const check = checkContinuationStore({
      fs: replacing(fs, paths.transaction, versions),
      stateDir: STATE_DIR,
    });
    expect(check.findings).toEqual([]);
    expect(check.records).toBe(5);
    await store.close();
  });

  test("verify waits for a record that is half written while the transaction that carries it is already there", async () => {
    const fs = createMemoryFileSystem();
    const store = await openStore({ fs });
    await store.commit({ puts: [claim("a")] });
    const before = fs.files()[paths.transaction] ?? "";
    await store.commit({ puts: [claim("b")] });
    const after = fs.files()[paths.transaction] ?? "";
    fs.erase(paths.transaction);
    fs.seed(paths.transaction, before);
    const record = paths.record("b");
    let looks = 0;
    // Committed, and its file begun under its own name, after verify has read the transaction.
    const host: FileSystem = {
      ...fs,
      lstat(path, label) {
        if (path === record) looks += 1;
        if (path === record && looks === 1) {
          fs.seed(paths.transaction, after);
          fs.seed(record, '{"half');
        }
        return fs.lstat(path, label);
      },
    };
    const verified = verifyContinuation({ fs: host, stateDir: STATE_DIR, continuationId: "b" });
    expect(verified?.state).toBe("claimed");
    expect(looks).toBeGreaterThan(1);
    // With nothing that carries it, half a record is what it looks like.
    fs.seed(paths.transaction, before);
    expect(() => verifyContinuation({ fs, stateDir: STATE_DIR, continuationId: "b" })).toThrow(
      "not valid JSON",
    );
    await store.close();
  });
});
