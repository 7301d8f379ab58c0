import { expect, test } from "bun:test";
import { mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { STATE_PART } from "../../src/core/backup.ts";
import type { FileSystem } from "../../src/core/ports/platform.ts";
import { writeBackup } from "../../src/host/backup.ts";
import { restoreBackup } from "../../src/host/restore.ts";
import { createClock } from "../../src/platform/clock.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { createIds } from "../../src/platform/ids.ts";
import { openReal } from "../support/store-directory.ts";
import { claim, withFolder } from "../support/store-harness.ts";

/** Files that others replace while they are copied, and names that are none of ours. */

const deps = { clock: createClock(), ids: createIds() };
const write = (path: string, text: string) => writeFileSync(path, text, { mode: 0o600 });
const MANIFEST = "continuation-store-v3.json";

/** The file is renamed over between the look at it and its opening, so many times. */
function replacing(path: string, times: number): FileSystem {
  const fs = createFileSystem();
  let left = times;
  return {
    ...fs,
    open(at, label) {
      if (at === path && left > 0) {
        left -= 1;
        write(`${path}.new`, readFileSync(path, "utf8"));
        renameSync(`${path}.new`, path);
      }
      return fs.open(at, label);
    },
  };
}

async function withState(use: (folder: string, stateDir: string) => Promise<void>): Promise<void> {
  await withFolder(async (folder) => {
    const stateDir = join(folder, "continuations");
    const store = await openReal(stateDir);
    await store.commit({ puts: [claim("one")] });
    await store.close();
    mkdirSync(join(folder, "mcp-login"), { mode: 0o700 });
    write(join(folder, "mcp-login/files.json"), "{}");
    await use(folder, stateDir);
  });
}

for (const name of [`continuations/${MANIFEST}`, "mcp-login/files.json"]) {
  test(`${name} may be replaced while it is read, but not for ever`, () =>
    withState(async (folder, stateDir) => {
      const backup = (times: number) =>
        writeBackup(
          { fs: replacing(join(folder, name), times), hostDir: folder, stateDir },
          join(folder, `copy-${times}`),
          deps,
        );
      expect((await backup(2)).records).toBe(1);
      await expect(backup(3)).rejects.toMatchObject({ code: "backup_failed" });
    }));
}

test("what opening ignores in the state is neither copied nor a reason to fail", () =>
  withState(async (folder, stateDir) => {
    const junk = [
      "origin-context-v1/a:b",
      "origin-context-v1/c\\d",
      "records-v2/e:f",
      "records-v2/notes.txt",
    ];
    for (const name of junk) write(join(stateDir, name), "");
    for (const name of ["origin-context-v1/folder", "records-v2/folder"]) mkdirSync(join(stateDir, name));
    write(join(folder, "mcp-login/g:h"), "");
    mkdirSync(join(folder, "mcp-login/folder"));
    await (await openReal(stateDir)).close();
    for (const name of ["copy", "copy.tar"]) {
      const report = await writeBackup(
        { fs: createFileSystem(), hostDir: folder, stateDir },
        join(folder, name),
        deps,
      );
      expect([report.records, report.warnings]).toEqual([1, []]);
      const to = join(folder, `restored-${name}`);
      await restoreBackup(join(folder, name), { hostDir: to, stateDir: join(to, "continuations") });
      await (await openReal(join(to, "continuations"))).close();
    }
    const { files } = JSON.parse(readFileSync(join(folder, "copy/backup.json"), "utf8"));
    const paths: string[] = files.map(({ path }: { path: string }) => path);
    expect(paths.filter((path) => path.startsWith(`${STATE_PART}/records-v2/`))).toEqual([
      `${STATE_PART}/records-v2/UPGRADED-TO-RECORDS-V3`,
    ]);
    expect(paths).toContain("host/mcp-login/files.json");
  }));
