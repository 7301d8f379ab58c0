import { afterEach, beforeEach, expect, test } from "bun:test";
import { existsSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { loadConfig } from "../../src/config/load.ts";
import { sweepRunFolders } from "../../src/host/mcp-tools.ts";
import { createRunFolders } from "../../src/platform/run-folders.ts";
import { writeDemoFolder } from "../support/demo-folder.ts";
import { tree, writeFullDirectory } from "../support/store-directory.ts";

/** Row 79: what runs left is taken away, and nothing of the continuations with it. */

let path: string;
let hostDir: string;
beforeEach(() => {
  path = mkdtempSync(join(tmpdir(), "mono-agent-runs-"));
  hostDir = join(path, ".mono-agent");
});
afterEach(() => rmSync(path, { recursive: true, force: true }));

// At its default place, beside the run folders by name, and elsewhere.
test.each([".mono-agent/continuations", ".mono-agent/run-output.store", "elsewhere"])(
  "sweeping run folders leaves every byte of the store at %s as it was, also what a run has links to",
  async (name) => {
    const stateDir = join(path, name);
    const { files } = await writeFullDirectory(stateDir);
    writeDemoFolder(path, { continuations: { stateDir: name } });
    const config = loadConfig({ cwd: path, env: {} });
    const runs = createRunFolders(join(hostDir, "run-output"));
    const fill = (run: string) => {
      writeFileSync(join(run, "report.md"), "done");
      mkdirSync(join(run, "deep/er"), { recursive: true });
      symlinkSync(stateDir, join(run, "deep/state"));
      symlinkSync(files.record, join(run, "record"));
    };
    const [ended, killed] = ["run-1", "run-2"].map((id) => runs.create(id));
    if (ended === undefined || killed === undefined) throw new Error("two runs");
    fill(ended);
    fill(killed);
    const before = tree(stateDir, { owner: true });

    runs.remove(ended);
    expect(existsSync(ended)).toBe(false);
    expect(tree(stateDir, { owner: true })).toEqual(before);
    sweepRunFolders(config);
    expect(existsSync(join(hostDir, "run-output"))).toBe(false);
    expect(tree(stateDir, { owner: true })).toEqual(before);
  },
);

test("run folders that somebody replaced by a link are let go of, and what it leads to stays", async () => {
  const stateDir = join(path, "elsewhere");
  await writeFullDirectory(stateDir);
  writeDemoFolder(path, { continuations: { enabled: false } });
  mkdirSync(hostDir, { recursive: true });
  symlinkSync(stateDir, join(hostDir, "run-output"));
  const before = tree(stateDir, { owner: true });
  sweepRunFolders(loadConfig({ cwd: path, env: {} }));
  expect(existsSync(join(hostDir, "run-output"))).toBe(false);
  expect(tree(stateDir, { owner: true })).toEqual(before);
});
