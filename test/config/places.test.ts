import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdirSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { loadConfig } from "../../src/config/load.ts";
import { type ConfigFolder, configFolder, MINIMAL } from "../support/config-folder.ts";

/** A start empties one folder, and the stores take every file in theirs for their own: nothing else may lie there. */

let folder: ConfigFolder;
beforeAll(() => {
  folder = configFolder();
});
afterAll(() => folder.remove());

const at = (path: string) => join(folder.path, path);
const continuations = (stateDir: string) => ({ continuations: { stateDir } });
const host = (stateDir: string) => ({ host: { stateDir } });
const EMPTIED = "which every start empties: name another place, and move there what is in it";
const OF_HOST = "which is the host's alone: name another place";
const OF_STORE = "which is the continuation store's alone: name another place";

describe("a path that the start would empty is refused, with its key and the way out", () => {
  test.each([
    ".mono-agent/run-output",
    ".mono-agent/run-output/continuations",
    ".mono-agent/run-output/..hidden",
    ".mono-agent/x/../run-output/a/b",
  ])("the continuation state at %s", (stateDir) => {
    const lies = `${at(join(stateDir))} lies in ${at(".mono-agent/run-output")}, ${EMPTIED}`;
    expect(folder.problems(continuations(stateDir))).toEqual([`continuations.stateDir: ${lies}`]);
    // It would be lost as well while nobody uses it.
    const off = { continuations: { stateDir, enabled: false } };
    expect(folder.problems(off)).toEqual([`continuations.stateDir: ${lies}`]);
  });

  test("the state in the folder of a host that lies elsewhere, or above this one", () => {
    const problems = folder.problems({ ...host("state"), ...continuations(at("state/run-output")) });
    expect(problems).toEqual([
      `continuations.stateDir: ${at("state/run-output")} lies in ${at("state/run-output")}, ${EMPTIED}`,
    ]);
    expect(folder.problems({ ...host(".."), ...continuations("../run-output/x") })).toHaveLength(1);
  });

  test("the workspace and every file that is read", () => {
    const inside = (name: string) => `.mono-agent/run-output/${name}`;
    folder.write(inside("identity.md"), "You are a test.");
    folder.write(inside("mcp.json"), { mcpServers: {} });
    folder.write(inside("own.json"), MINIMAL);
    const lies = (name: string) => `${at(inside(name))} lies in ${at(inside(""))}`.replace(/\/$/, "");
    expect(folder.problems({ context: { identityPath: inside("identity.md") } })).toEqual([
      `context.identityPath: ${lies("identity.md")}, ${EMPTIED}`,
    ]);
    expect(folder.problems({ tools: { mcpConfigPath: inside("mcp.json") } })).toEqual([
      `tools.mcpConfigPath: ${lies("mcp.json")}, ${EMPTIED}`,
    ]);
    expect(folder.problems({ runtime: { ...MINIMAL.runtime, workspace: inside("work") } })).toEqual([
      `runtime.workspace: ${lies("work")}, ${EMPTIED}`,
    ]);
    const own = () => loadConfig({ cwd: folder.path, configPath: inside("own.json"), env: {} });
    expect(own).toThrow(`${lies("own.json")}, ${EMPTIED}`);
  });

  test("one that leads there by a link, whichever of the two names it", () => {
    mkdirSync(at("linked/run-output"), { recursive: true });
    symlinkSync(at("linked/run-output"), at("aside"));
    symlinkSync(at("linked"), at("host"));
    const refused = [
      { ...host("linked"), ...continuations("aside/deep/er") },
      { ...host("host"), ...continuations("linked/run-output/c") },
      { ...host("linked"), ...continuations("host/run-output/c") },
    ];
    for (const blocks of refused) {
      const [problem] = folder.problems(blocks);
      expect(problem).toStartWith("continuations.stateDir: ");
      expect(problem).toEndWith(EMPTIED);
    }
  });
});

describe("a path in the place of what the host or the store keeps is refused", () => {
  test.each([
    "host.sqlite",
    "host-owner.sqlite",
    "restored.json",
    "mcp-login",
    "mcp-login/x",
    "terminal-token",
  ])("the continuation state at the host's %s", (name) => {
    const [problem] = folder.problems(continuations(`.mono-agent/${name}`));
    expect(problem).toStartWith(`continuations.stateDir: ${at(`.mono-agent/${name}`)} lies in `);
    expect(problem).toEndWith(OF_HOST);
  });

  test.each([
    "records-v3/host",
    "records-v2",
    "origin-context-groups-v1/host",
    "origin-context-v1",
    "continuation-secret",
  ])("the host's folder at %s of the continuation state", (name) => {
    const stateDir = `.mono-agent/continuations/${name}`;
    const [problem] = folder.problems({ ...host(stateDir), ...continuations(".mono-agent/continuations") });
    expect(problem).toStartWith(`host.stateDir: ${at(stateDir)} lies in `);
    expect(problem).toEndWith(OF_STORE);
    const [workspace] = folder.problems({ runtime: { ...MINIMAL.runtime, workspace: stateDir } });
    expect(workspace).toStartWith(`runtime.workspace: ${at(stateDir)} lies in `);
  });
});

test("a link in the place of what is kept is no fault of the file that it leads to, but of a path through it", () => {
  folder.write("identity.md", "You are a test.");
  folder.write("links-elsewhere/mcp.json", { mcpServers: {} });
  mkdirSync(at("links/continuations"), { recursive: true });
  symlinkSync(at("identity.md"), at("links/continuations/continuation-secret"));
  symlinkSync(at("links-elsewhere"), at("links/run-output"));
  expect(folder.problems({ ...host("links"), ...continuations("links/continuations") })).toEqual([]);
  expect(folder.problems({ ...host("links"), tools: { mcpConfigPath: "links-elsewhere/mcp.json" } })).toEqual(
    [],
  );
  const [problem] = folder.problems({
    ...host("links"),
    tools: { mcpConfigPath: "links/run-output/mcp.json" },
  });
  expect(problem).toStartWith("tools.mcpConfigPath: ");
  expect(problem).toEndWith(EMPTIED);
});

test("places that harm nobody are taken, with names that resemble those", () => {
  const fine = [
    continuations(".mono-agent/run-output-old"),
    continuations(".mono-agent/..run-output/c"),
    continuations("run-output"),
    continuations(".mono-agent/backups/c"),
    { ...host("state"), ...continuations("state") },
    { ...host("state/host"), ...continuations("state") },
    { ...host("state"), ...continuations(".mono-agent/run-output") },
  ];
  for (const blocks of fine) expect(folder.problems(blocks)).toEqual([]);
});

test("beside another problem of a path, nothing is said of where it lies", () => {
  expect(folder.problems({ ...host(".mono-agent"), continuations: { stateDir: 7 } })).toHaveLength(1);
});
