import { expect, test } from "bun:test";
import { join } from "node:path";
import type { FileSystem } from "../../src/core/ports/platform.ts";
import { writeBackup } from "../../src/host/backup.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { createIds } from "../../src/platform/ids.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { openReal } from "../support/store-directory.ts";
import { claim, withFolder } from "../support/store-harness.ts";

/** A host that is backed up goes on serving: nothing that grows with the state happens in one turn of its event loop. */

const RECORDS = 300;
/** Files that one turn may open, with some that come with each. */
const OPENED_MAX = 40;

for (const name of ["copy", "copy.tar"]) {
  test(`while a running host is backed up (${name}), others have their turn every few files`, () =>
    withFolder(async (folder) => {
      const stateDir = join(folder, "continuations");
      const real = createFileSystem();
      const store = await openReal(stateDir, real);
      await store.commit({ puts: Array.from({ length: RECORDS }, (_, index) => claim(`c-${index}`)) });
      let opened = 0;
      let most = 0;
      let looked = 0;
      let removed = 0;
      const fs: FileSystem = {
        ...real,
        open(path, label) {
          opened += 1;
          most = Math.max(most, opened);
          return real.open(path, label);
        },
        lstat(path, label) {
          looked += 1;
          return real.lstat(path, label);
        },
        run(steps) {
          removed = Math.max(removed, steps.filter(({ op }) => op === "unlink").length);
          return real.run(steps);
        },
      };
      let running = true;
      const turn = () => {
        opened = 0;
        if (running) setImmediate(turn);
      };
      turn();
      // Each look at the clock takes longer than a turn may.
      const clock = createFakeClock();
      const slow = {
        ...clock,
        now() {
          clock.advance(10);
          return clock.now();
        },
      };
      const target = join(folder, name);
      const report = await writeBackup({ fs, hostDir: folder, stateDir, store }, target, {
        clock: slow,
        ids: createIds(),
      });
      running = false;
      expect(report.records).toBe(RECORDS);
      expect(looked).toBeGreaterThan(RECORDS);
      expect(most).toBeLessThanOrEqual(OPENED_MAX);
      expect(removed).toBeLessThanOrEqual(256);
      await store.close();
      await real.close?.();
    }));
}
