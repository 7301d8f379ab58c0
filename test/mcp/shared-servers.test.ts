import { afterEach, describe, expect, test } from "bun:test";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { McpError } from "../../src/core/errors.ts";
import type { McpServerSpec } from "../../src/core/mcp-servers.ts";
import type { ToolHost, ToolSession } from "../../src/core/ports/tools.ts";
import { createConnection } from "../../src/mcp/connection.ts";
import type { ToolHostOptions } from "../../src/mcp/tool-host.ts";
import { createClock } from "../../src/platform/clock.ts";
import { createRunFolders } from "../../src/platform/run-folders.ts";
import {
  alive,
  capability,
  children,
  never,
  PROBE,
  script,
  sessionRequest,
  toolHost,
} from "../support/mcp-host.ts";
import { silentLogger } from "../support/silent-logger.ts";

const hosts: ToolHost[] = [];
const folders: string[] = [];
afterEach(async () => {
  await Promise.all(hosts.splice(0).map((host) => host.close()));
  for (const folder of folders.splice(0)) rmSync(folder, { recursive: true, force: true });
});

function start(servers: Record<string, McpServerSpec>, over: Partial<ToolHostOptions> = {}): ToolHost {
  const host = toolHost(servers, over);
  hosts.push(host);
  return host;
}

const more = (env: Record<string, string> = {}) => script(PROBE, [], { MORE: "1", ...env });
const pidOf = async (session: ToolSession) =>
  (JSON.parse((await session.call("env", {}, never)).text) as { pid: number }).pid;
const digestOf = (session: ToolSession, name: string) =>
  session.tools.find((tool) => tool.name === name)?.digest;

describe("a server that no run needs for itself", () => {
  test("is one process for all runs, also for those after it", async () => {
    const host = start({ a: script(PROBE) });
    const [one, two] = await Promise.all([host.open(sessionRequest()), host.open(sessionRequest())]);
    const pid = await pidOf(one);
    expect(await pidOf(two)).toBe(pid);
    await Promise.all([one.close(), two.close()]);
    expect(await pidOf(await host.open(sessionRequest()))).toBe(pid);
    expect(children()).toEqual([pid]);
  });

  test("is started again within the run when it crashed, and after the crash the call goes through", async () => {
    const session = await start({ a: script(PROBE) }).open(sessionRequest());
    const pid = await pidOf(session);
    const error = await session.call("crash", {}, never).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(McpError);
    expect((await session.call("echo", { a: 1 }, never)).text).toBe('{"a":1}');
    expect(await pidOf(session)).not.toBe(pid);
    await session.close();
    expect(children().length).toBe(1);
  });

  test("that is switched off is not started, and its tools are not offered", async () => {
    const host = start({ a: { ...script(PROBE), enabled: false }, b: { ...script(PROBE), disabled: true } });
    expect((await host.open(sessionRequest())).tools).toEqual([]);
    expect(children()).toEqual([]);
  });
});

describe("a rotation under load", () => {
  test("fails no call, gives later runs the new entry, and leaves no process of the old one", async () => {
    const host = start({ a: more({ VERSION: "1" }) });
    const before = await host.open(sessionRequest());
    const oldPid = await pidOf(before);
    const calls = Array.from({ length: 3 }, () => before.call("steady", {}, never));
    host.rotate({ a: more({ VERSION: "2" }) });
    const after = await host.open(sessionRequest());
    const newPid = await pidOf(after);
    expect(newPid).not.toBe(oldPid);
    expect(digestOf(after, "echo")).not.toBe(digestOf(before, "echo"));
    expect(await Promise.all(calls)).toEqual(Array(3).fill({ isError: false, text: "finished" }));
    expect(await pidOf(before)).toBe(oldPid);
    await before.close();
    while (alive(oldPid)) await new Promise((resolve) => setImmediate(resolve));
    await after.close();
    expect(children()).toEqual([newPid]);
  }, 15_000);

  test("in many rounds never loses a call", async () => {
    const host = start({ a: script(PROBE) });
    const outcomes: boolean[] = [];
    const runs = Array.from({ length: 12 }, async (_, at) => {
      for (let turn = 0; turn < 3; turn += 1) {
        const session = await host.open(sessionRequest());
        outcomes.push((await session.call("echo", { at }, never)).isError);
        if (at % 3 === turn) host.rotate({ a: script(PROBE) });
        outcomes.push((await session.call("echo", { at }, never)).isError);
        await session.close();
      }
    });
    await Promise.all(runs);
    expect(outcomes).toEqual(Array(72).fill(false));
    await host.close();
    expect(children()).toEqual([]);
  }, 60_000);

  test("that would leave a selected server without a way to hold authority changes nothing", async () => {
    const host = start({ a: script(PROBE) }, { continuationServers: ["a"] });
    expect(() => host.rotate({ a: { url: "https://example.com/mcp" } })).toThrow(McpError);
    expect((await (await host.open(sessionRequest())).call("echo", {}, never)).isError).toBe(false);
  });

  test("that takes a server away is felt by later runs only", async () => {
    const host = start({ a: script(PROBE) });
    const session = await host.open(sessionRequest());
    host.rotate({});
    expect((await session.call("echo", {}, never)).isError).toBe(false);
    expect((await host.open(sessionRequest())).tools).toEqual([]);
  });
});

describe("what a run was offered stays as it was", () => {
  test("a tool whose schema changes is not called in its new form by a run that saw the old one", async () => {
    const host = start({ a: more() });
    const session = await host.open(sessionRequest());
    const frozen = digestOf(session, "echo");
    expect(frozen).toMatch(/^[0-9a-f]{64}$/);
    await session.call("evolve", {}, never);
    const outcome = await session.call("echo", { a: 1 }, never);
    expect(outcome).toEqual({
      isError: true,
      text: "The tool echo of a has changed since this turn began. Nothing was sent to it.",
    });
    expect(digestOf(session, "echo")).toBe(frozen as string);
    expect((await session.call("refuse", {}, never)).text).toBe("it can't be done");
    const next = await host.open(sessionRequest());
    expect(digestOf(next, "echo")).not.toBe(frozen);
    expect((await next.call("echo", { a: 1 }, never)).text).toBe('{"a":1}');
  });

  test("a server that comes back in another version does not get the call", async () => {
    const folder = mkdtempSync(join(tmpdir(), "mono-agent-versions-"));
    folders.push(folder);
    const wrapper = join(folder, "server.sh");
    const run = (version: number) => `#!/bin/sh\nVERSION=${version} exec '${process.execPath}' '${PROBE}'\n`;
    writeFileSync(wrapper, run(1));
    const session = await start({ a: { command: "/bin/sh", args: [wrapper] } }).open(sessionRequest());
    writeFileSync(wrapper, run(2));
    await session.call("crash", {}, never).catch(() => {});
    expect((await session.call("echo", {}, never)).text).toContain("has changed since this turn began");
  });

  test("a server whose entry leads elsewhere meanwhile does not get the call", async () => {
    const host = start({ a: script(PROBE) });
    const session = await host.open(sessionRequest());
    host.rotate({ a: script(PROBE, ["plain"]) });
    await session.call("crash", {}, never).catch(() => {});
    expect((await session.call("echo", {}, never)).text).toContain("has changed since this turn began");
    const next = await host.open(sessionRequest());
    expect((await next.call("echo", {}, never)).isError).toBe(false);
  });
});

describe("that a tool changes nothing", () => {
  test("is believed of a trusted server alone, and only where the server says so", async () => {
    const host = start({ a: script(PROBE), b: { ...script(PROBE), trusted: true } });
    const session = await host.open(sessionRequest());
    const believed = session.tools.filter(({ readOnly }) => readOnly).map(({ name }) => name);
    expect(believed).toEqual(["mcp__b__echo"]);
  });

  test("binds: a tool that does not say it any more is not called by a run that relies on it", async () => {
    const host = start({ a: { ...more(), trusted: true }, b: more() });
    const before = await host.open(sessionRequest());
    for (const name of ["evolve", "mcp__b__evolve"]) await before.call(name, {}, never);
    const session = await host.open(sessionRequest());
    for (const name of ["evolve", "mcp__b__evolve"]) await session.call(name, {}, never);
    expect((await session.call("echo", {}, never)).text).toContain("has changed since this turn began");
    expect((await session.call("mcp__b__echo", {}, never)).isError).toBe(false);
  });
});

describe("the context of a run", () => {
  const context = (outputDir: string) => ({
    MONO_AGENT_MCP_PRODUCING_CONVERSATION_ID: "terminal:main",
    MONO_AGENT_MCP_PRODUCING_RUN_ID: "run-test-000001",
    MONO_AGENT_MCP_RUN_OUTPUT_DIR: outputDir,
    MONO_AGENT_INTERACTION_BRIDGE_URL: "",
    MONO_AGENT_INTERACTION_BRIDGE_TOKEN: "",
  });
  const fakes = {
    MONO_AGENT_MCP_PRODUCING_RUN_ID: "fake",
    MONO_AGENT_MCP_ATTACHMENTS_ROOT: "/fake",
    MONO_AGENT_INTERACTION_BRIDGE_TOKEN: "fake",
  };

  test.each([
    ["with", ["a"]],
    ["without", []],
  ])("reaches a server that is selected for it, %s selection for continuations", async (_what, selected) => {
    const root = mkdtempSync(join(tmpdir(), "mono-agent-output-"));
    folders.push(root);
    const host = start(
      { a: more(fakes), b: more() },
      {
        requestContextServers: ["a"],
        continuationServers: selected,
        outputFolders: createRunFolders(join(root, "runs")),
      },
    );
    const session = await host.open(sessionRequest({ a: capability }));
    const outputDir = join(root, "runs", "run-test-000001");
    expect(JSON.parse((await session.call("context", {}, never)).text)).toEqual({
      ...context(outputDir),
      MONO_AGENT_MCP_PROCESS: undefined,
    });
    expect(JSON.parse((await session.call("mcp__b__context", {}, never)).text)).toEqual({});
    // The claim values depend on the other selection alone.
    const { seen } = JSON.parse((await session.call("env", {}, never)).text) as { seen: object };
    expect(Object.keys(seen).length).toBe(selected.length === 0 ? 0 : 4);
    writeFileSync(join(outputDir, "made.txt"), "x");
    await session.close();
    expect(existsSync(outputDir)).toBe(false);
    expect(children().length).toBe(1);
  });
});

describe("a server", () => {
  test("that asks a person is declined, and the model is told", async () => {
    const session = await start({ a: more() }).open(sessionRequest());
    const { text, isError } = await session.call("ask", {}, never);
    expect(isError).toBe(false);
    expect(text).toStartWith("the answer: decline\n[While this call ran, the server asked a question");
    expect((await session.call("echo", {}, never)).text).toBe("{}");
  });

  test("has its own time-out", async () => {
    const session = await start({ a: { ...script(PROBE), timeoutMs: 100 } }).open(sessionRequest());
    const error = await session.call("slow", {}, never).catch((thrown: unknown) => thrown);
    expect(String(error)).toContain("timed out");
  });

  test.each([
    ["plain", "2025-11-25"],
    ["old", "2024-10-07"],
  ])("(%s) and we agree on protocol %s", async (mode, protocol) => {
    const connection = createConnection({
      server: "a",
      spec: script(PROBE, [mode]),
      grant: "unselected",
      context: "unselected",
      baseEnv: process.env,
      authority: [],
      cwd: process.cwd(),
      timeouts: { inactivityMs: 5_000, totalMs: 5_000 },
      clock: createClock(),
      logger: silentLogger,
    });
    try {
      expect((await connection.connect(never)).failed).toBe(false);
      expect(connection.about()?.protocol).toBe(protocol);
      expect((await connection.call("echo", {}, never)).text).toBe("{}");
    } finally {
      await connection.close();
    }
  });
});
