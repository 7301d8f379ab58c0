import { describe, expect, test } from "bun:test";
import { readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { openReal } from "../support/store-directory.ts";
import { claim, withFolder } from "../support/store-harness.ts";

describe("what the store writes", () => {
  for (const mask of [0o000, 0o077, 0o777]) {
    test(`modes are 0600 and 0700 under umask ${mask.toString(8)}`, () =>
      withFolder(async (stateDir) => {
        const before = process.umask(mask);
        try {
          const store = await openReal(stateDir);
          await store.commit({ puts: [claim("kept")] });
          await store.close();
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
