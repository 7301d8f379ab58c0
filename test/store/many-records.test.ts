import { describe, expect, test } from "bun:test";
import { chmodSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { ContinuationStore } from "../../src/core/ports/store.ts";
import { recordFileName } from "../../src/core/record.ts";
import { STORE_ENTRIES } from "../../src/core/store-files.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { READ_AHEAD_FROM, readAhead, serveReadAhead } from "../../src/platform/read-ahead.ts";
import { openReal, refusalOf } from "../support/store-directory.ts";
import { claim, recordsOf, withFolder } from "../support/store-harness.ts";

/** A start with so many records that a thread helps to read them (platform/read-ahead.ts). */

const RECORDS = READ_AHEAD_FROM + 500;

/** The thread has read all that it can hold before the start takes the first. */
const ahead = () => ({
  ...createFileSystem(),
  readAhead: (files: Parameters<typeof readAhead>[0]) =>
    readAhead(
      files,
      (message) => {
        serveReadAhead(message, 0);
        return () => {};
      },
      0,
    ),
});
const alone = () => ({ ...createFileSystem(), readAhead: undefined });

async function seed(folder: string): Promise<void> {
  const store = await openReal(folder);
  await store.commit({ puts: Array.from({ length: RECORDS }, (_, index) => claim(`many-${index}`)) });
  await store.close();
}

async function close<T>(store: ContinuationStore, result: T): Promise<T> {
  await store.close();
  return result;
}

describe("a start with thousands of records", () => {
  test("reads the same with a thread's help as without", () =>
    withFolder(async (folder) => {
      await seed(folder);
      const read = async (fs = createFileSystem()) => {
        const store = await openReal(folder, fs);
        return close(store, recordsOf(store));
      };
      const records = await read(alone());
      expect(Object.keys(records)).toHaveLength(RECORDS);
      expect(await read(ahead())).toEqual(records);
      expect(await read()).toEqual(records);
    }));

  for (const [what, spoil] of [
    ["is damaged", (path: string) => writeFileSync(path, '{"schemaVersion":', { mode: 0o600 })],
    ["is open to the group", (path: string) => chmodSync(path, 0o640)],
  ] as const) {
    test(`is refused when one of them ${what}, which is named`, () =>
      withFolder(async (folder) => {
        await seed(folder);
        const path = join(folder, STORE_ENTRIES.records, recordFileName("many-77"));
        spoil(path);
        for (const fs of [alone(), ahead(), createFileSystem()]) {
          expect((await refusalOf(openReal(folder, fs))).message).toContain(path);
        }
      }));
  }
});
