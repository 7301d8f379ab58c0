import { Database } from "bun:sqlite";
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { type AgentFolder, agentFolder, processesIn, until } from "../support/binary.ts";
import { PROBE } from "../support/mcp-host.ts";

/** MCP servers under the built binary: what a SIGKILL leaves of a call and of processes, and a SIGHUP. */

let folder: AgentFolder;
const CANARY = "credential-canary-0123456789";
const declare = (version: string, mode = "plain") =>
  folder.write("mcp.json", {
    mcpServers: {
      probe: { command: process.execPath, args: [PROBE, mode], env: { VERSION: version, KEY: CANARY } },
    },
  });
beforeEach(() => {
  folder = agentFolder({
    runtime: { model: "demo:assistant" },
    tools: { mcpConfigPath: "mcp.json" },
    continuations: { enabled: false },
  });
  declare("1");
});
afterEach(() => folder.remove());

const said = async (text: string) => (await folder.messages()).some(({ content }) => content.includes(text));
const log = () => readFileSync(join(folder.path, "serve.log"), "utf8");
const nobody = () => until("every process to end", async () => processesIn(folder.path).length === 0);
/** Tool calls in the ledger that have no outcome. */
const openCalls = (): unknown[] => {
  using ledger = new Database(join(folder.path, ".mono-agent/host.sqlite"), { readonly: true });
  using calls = ledger.query("SELECT server, tool, binding_digest FROM tool_calls WHERE finished_at IS NULL");
  return calls.all();
};
const servers = () => processesIn(folder.path).length;

describe("kill -9 of the host", () => {
  test("in the middle of a tool call: the turn has failed, visibly, and the server is gone", async () => {
    const host = await folder.serve();
    await folder.ask("slow {}");
    await until("the call to be under way", async () => openCalls().length === 1);
    expect(openCalls()).toEqual([
      { server: "probe", tool: "slow", binding_digest: expect.stringMatching(/^[0-9a-f]{64}$/) },
    ]);
    await host.kill();
    await nobody();

    await folder.serve();
    const notices = (await folder.messages()).filter(({ role }) => role === "notice");
    expect(notices.map(({ code }) => code)).toEqual(["interrupted"]);
    await folder.ask('echo {"still":"here"}');
    await until("the next turn", () => said("still"));
  }, 30_000);

  test("ends a server that ignores the end of its input, and its helper", async () => {
    declare("1", "stubborn");
    const host = await folder.serve();
    await folder.ask('echo {"a":1}');
    await until("the turn", async () => (await folder.messages()).length === 2);
    expect(servers()).toBeGreaterThan(2);
    await host.kill();
    await nobody();
  }, 30_000);
});

test("a SIGHUP reads mcp.json again: the call under way ends well, the next turn has the new server", async () => {
  const host = await folder.serve();
  await folder.ask('echo {"warm":"up"}');
  await until("the first turn", () => said("warm"));
  const before = processesIn(folder.path);
  await folder.ask("steady {}");
  declare("2");
  process.kill(host.pid, "SIGHUP");
  await until("the file to be read", async () => log().includes("mcp.json was read again"));
  await until("the call to end", () => said("finished"));
  await folder.ask('echo {"second":"server"}');
  await until("the next turn", () => said("second"));
  const left = processesIn(folder.path).filter((pid) => before.includes(pid));
  expect(left).toEqual([host.pid]);

  folder.write("mcp.json", "{");
  process.kill(host.pid, "SIGHUP");
  await until("the refusal", async () => log().includes("mcp.json was not read again"));
  await folder.ask('echo {"third":"turn"}');
  await until("the third turn", () => said("third"));
  expect(await host.kill("SIGTERM")).toBe(0);
  await nobody();
}, 30_000);

test("a server that dies in a call leaves an unknown outcome, and nothing on disk holds its credentials", async () => {
  const host = await folder.serve();
  await folder.ask("crash {}");
  await until("the turn", () => said("outcome of this call is unknown"));
  await folder.ask('echo {"next":"call"}');
  await until("the next turn", () => said("next"));
  expect(openCalls()).toEqual([]);
  await host.kill("SIGTERM");
  const state = join(folder.path, ".mono-agent");
  const files = readdirSync(state, { recursive: true, withFileTypes: true }).filter((file) => file.isFile());
  expect(files.length).toBeGreaterThan(0);
  for (const file of files) {
    expect(readFileSync(join(file.parentPath, file.name)).includes(CANARY)).toBe(false);
  }
  expect(log()).not.toContain(CANARY);
}, 30_000);

test("mcp test and mcp call work beside a host and leave no process", async () => {
  await folder.serve();
  const before = servers();
  const tested = await folder.run(["mcp", "test", "probe"]);
  expect([tested.code, tested.err]).toEqual([0, ""]);
  expect(tested.out).toContain("probe: probe@1, protocol 2025-11-25");
  const called = await folder.run(["mcp", "call", "probe", "echo", '{"a":1}']);
  expect(called).toEqual({ code: 0, out: '{"a":1}\n', err: "" });
  expect(servers()).toBe(before);
}, 30_000);
