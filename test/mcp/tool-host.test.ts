import { afterEach, describe, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { sha256Hex } from "../../src/core/digest.ts";
import { McpError } from "../../src/core/errors.ts";
import type { McpServerSpec } from "../../src/core/mcp-servers.ts";
import type { Clock } from "../../src/core/ports/platform.ts";
import type { ClaimCapability, ToolHost, ToolSession } from "../../src/core/ports/tools.ts";
import type { ToolHostOptions } from "../../src/mcp/tool-host.ts";
import { createClock } from "../../src/platform/clock.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import {
  alive,
  capability,
  children,
  groupAlive,
  never,
  PROBE,
  script,
  sessionRequest,
  toolHost,
} from "../support/mcp-host.ts";
import { createRecordingLogger } from "../support/silent-logger.ts";

/** The real clock with shorter waits, so that the steps of ending a stubborn child take moments. */
const hurriedClock: Clock = {
  now: () => 0,
  timer: (delayMs, fire) => createClock().timer(delayMs / 20, fire),
};

const hosts: ToolHost[] = [];
afterEach(async () => {
  await Promise.all(hosts.splice(0).map((host) => host.close()));
});

function start(servers: Record<string, McpServerSpec>, over: Partial<ToolHostOptions> = {}): ToolHost {
  const host = toolHost(servers, over);
  hosts.push(host);
  return host;
}

async function refusal(call: Promise<unknown>): Promise<McpError> {
  const error = await call.catch((thrown: unknown) => thrown);
  if (!(error instanceof McpError)) throw new Error(`expected an McpError, got ${String(error)}`);
  return error;
}

interface Seen {
  seen: Record<string, string>;
  own?: string;
  pid: number;
  cwd: string;
}
async function probe(session: ToolSession, name = "env"): Promise<Seen> {
  return JSON.parse((await session.call(name, {}, never)).text) as Seen;
}

const reserved = (value: (key: keyof ClaimCapability) => string) => ({
  MONO_AGENT_CONTINUATION_CLAIM_URL: value("url"),
  MONO_AGENT_CONTINUATION_CLAIM_TOKEN: value("token"),
  MONO_AGENT_CONTINUATION_CLAIM_FINGERPRINT: value("fingerprint"),
  MONO_AGENT_CONTINUATION_CLAIM_MODE: value("mode"),
});

test("a stdio server inherits the host's environment and starts in the host's folder, or as its entry says", async () => {
  const root = realpathSync(mkdtempSync(join(tmpdir(), "mono-agent-cwd-")));
  mkdirSync(join(root, "below"));
  try {
    const host = start(
      {
        a: script(PROBE),
        b: { ...script(PROBE, [], { OWN: "configured" }), cwd: "below" },
        c: { ...script(PROBE), cwd: "/" },
      },
      { cwd: root, baseEnv: { ...process.env, OWN: "inherited" } },
    );
    const session = await host.open(sessionRequest());
    const seen = await Promise.all(["env", "mcp__b__env", "mcp__c__env"].map((name) => probe(session, name)));
    expect(seen.map(({ own, cwd }) => [own, cwd])).toEqual([
      ["inherited", root],
      ["configured", join(root, "below")],
      ["inherited", "/"],
    ]);
  } finally {
    rmSync(root, { recursive: true });
  }
});

test("the token of a detached service is inherited by selected servers only", async () => {
  const name = "MONO_AGENT_CONTINUATION_OPS_TOKEN";
  const host = start(
    { work: script(PROBE), other: script(PROBE) },
    {
      continuationServers: ["work"],
      baseEnv: { ...process.env, [name]: "service-token-canary" },
      withheldEnv: [name],
    },
  );
  const session = await host.open(sessionRequest());
  expect((await probe(session)).seen[name]).toBe(sha256Hex("service-token-canary"));
  expect(Object.keys((await probe(session, "mcp__other__env")).seen)).not.toContain(name);
});

describe("trusted values over stdio", () => {
  const fakes = {
    ...reserved(() => "configured fake"),
    mono_agent_continuation_claim_token: "other case",
    OWN: "kept",
  };
  const baseEnv = { ...process.env, ...reserved(() => "inherited fake") };

  test("a selected server sees exactly the host's four values, whatever was configured or inherited", async () => {
    const servers = { work: script(PROBE, [], fakes) };
    const before = structuredClone(servers);
    const host = start(servers, { continuationServers: ["work"], baseEnv });
    const first = await probe(await host.open(sessionRequest({ work: capability })));
    expect(first.seen).toEqual(reserved((key) => sha256Hex(capability[key])));
    expect(first.own).toBe("kept");
    const other = { ...capability, token: "token-of-the-second-run-9876" };
    const second = await probe(await host.open(sessionRequest({ work: other })));
    expect(second.seen.MONO_AGENT_CONTINUATION_CLAIM_TOKEN).toBe(sha256Hex(other.token));
    expect(servers).toEqual(before);
  });

  test("a selected server without a capability sees the four empty, an unlisted one sees none", async () => {
    const host = start(
      { work: script(PROBE, [], fakes), other: script(PROBE, [], fakes) },
      { continuationServers: ["work"], baseEnv },
    );
    // A capability under an unlisted name must not reach that server either.
    const session = await host.open(sessionRequest({ other: capability }));
    expect((await probe(session)).seen).toEqual(reserved(() => ""));
    expect((await probe(session, "mcp__other__env")).seen).toEqual({});
  });

  test.each([
    ["selected or not: selected", ["a"]],
    ["selected or not: not selected", []],
  ])("what a reference stood for and a withheld token are in no log line, %s", async (_what, selected) => {
    const logger = createRecordingLogger();
    const args = ["plain", "--db=u:default-secret@h", "service-token-canary"];
    const host = start(
      { a: { ...script(PROBE, args, { MORE: "1" }), substituted: ["default-secret"] } },
      {
        continuationServers: selected,
        logger,
        baseEnv: { ...process.env, OPS: "service-token-canary" },
        withheldEnv: ["OPS"],
      },
    );
    const session = await host.open(sessionRequest());
    expect((await session.call("leak", { before: "service-token-canary " }, never)).text).toStartWith(
      "[redacted] token",
    );
    const failed = await session.call("fail", { message: "default-secret service-token-canary" }, never);
    expect(failed).toEqual({ isError: true, text: "MCP error -32602: [redacted] [redacted]" });
    await session.close();
    expect(logger.lines.join("\n")).toContain("my arguments are plain --db=u:[redacted]@h [redacted]");
  });

  test("neither results nor log lines carry the token or configured values", async () => {
    const logger = createRecordingLogger();
    const host = start(
      { work: script(PROBE, ["plain", "--db=u:inherited-value-2@h"], { OWN: "configured-secret-1" }) },
      {
        continuationServers: ["work"],
        logger,
        baseEnv: { ...process.env, PLAIN_NAME: "inherited-value-2" },
      },
    );
    const session = await host.open(sessionRequest({ work: capability }));
    expect((await session.call("leak", {}, never)).text).toBe("token [redacted]");
    // The token lies across the place of the cut.
    const note = "\n[cut: the result had 12003 characters]".length;
    const before = "x".repeat(12_000 - note - "token ".length - 12);
    const { text } = await session.call("leak", { before, after: "y".repeat(50) }, never);
    expect(text).toContain("[cut: the result had");
    expect(text).not.toContain(capability.token.slice(0, 5));
    await session.close();
    const log = logger.lines.join("\n");
    expect(log).toContain("my token is [redacted] and [redacted]");
    expect(log).toContain("my arguments are plain --db=u:[redacted]@h");
    expect(log).not.toContain(capability.token);
    expect(log).not.toContain("configured-secret-1");
  });
});

test.each([
  ["remote HTTP", { url: "https://example.com/mcp" }],
  ["SSE", { type: "sse" as const, url: "http://127.0.0.1:1/sse" }],
  ["a contradictory entry", { command: "x", url: "http://127.0.0.1:1/mcp" }],
])("a selected server with %s stops the run before any child starts", async (_what, spec) => {
  const host = start({ first: script(PROBE), bad: spec }, { continuationServers: ["bad"] });
  const error = await refusal(host.open(sessionRequest()));
  expect(error.code).toBe("unsupported_continuation_server");
  expect(error.message).toContain('"bad"');
  expect(children()).toEqual([]);
});

describe("servers that fail", () => {
  test("are warnings, and the run goes on with the others", async () => {
    const host = start({
      missing: { command: "/no/such/command" },
      nowhere: { url: "http://127.0.0.1:1/mcp" },
      dead: script(PROBE, ["dies"]),
      confused: { command: "x", type: "sse" },
      nolist: script(PROBE, ["nolist"]),
      good: script(PROBE),
    });
    const session = await host.open(sessionRequest());
    expect(session.warnings.map(({ server, code }) => [server, code])).toEqual([
      ["missing", "mcp_init_failed"],
      ["nowhere", "mcp_init_failed"],
      ["dead", "mcp_init_failed"],
      ["confused", "mcp_init_failed"],
      ["nolist", "mcp_list_tools_failed"],
    ]);
    expect(session.warnings[2]?.message).toContain("ended with exit code 3");
    expect((await session.call("echo", { a: 1 }, never)).text).toBe('{"a":1}');
  });

  test("an abort while a server does not answer ends the opening and the child", async () => {
    const host = start(
      { mute: script(PROBE, ["mute"]) },
      { clock: hurriedClock, continuationServers: ["mute"] },
    );
    const controller = new AbortController();
    const opening = host.open(sessionRequest({}, controller.signal));
    await untilChildren(1);
    controller.abort();
    expect((await refusal(opening)).code).toBe("mcp_failed");
    expect(children()).toEqual([]);
  });
});

async function untilChildren(count: number): Promise<void> {
  while (children().length < count) await new Promise((resolve) => setImmediate(resolve));
}

describe("the catalogue", () => {
  test("has every page, in order, under names that providers accept", async () => {
    const session = await start({ a: script(PROBE) }).open(sessionRequest());
    const names = session.tools.map((tool) => tool.name);
    expect(names).toEqual([
      "echo",
      "env",
      "slow",
      "steady",
      "stray_name",
      "picture",
      "refuse",
      "crash",
      "leak",
    ]);
    expect(session.tools[4]).toMatchObject({
      server: "a",
      tool: "stray.name",
      description: "does stray.name",
    });
  });

  test("prefixes a name only when an earlier server has it", async () => {
    const session = await start({ a: script(PROBE), b: script(PROBE) }).open(sessionRequest());
    expect(session.tools.slice(9, 11).map((tool) => tool.name)).toEqual(["mcp__b__echo", "mcp__b__env"]);
    expect((await probe(session)).pid).not.toBe((await probe(session, "mcp__b__env")).pid);
  });
});

describe("a call", () => {
  async function open(over: Partial<ToolHostOptions> = {}) {
    return await start({ a: script(PROBE) }, { continuationServers: ["a"], ...over }).open(sessionRequest());
  }

  test("honours isError, describes what is not text, and turns protocol errors into outcomes", async () => {
    const session = await open();
    expect(await session.call("refuse", {}, never)).toEqual({ isError: true, text: "it can't be done" });
    expect((await session.call("picture", {}, never)).text).toBe("see\n[image: image/png, 5 bytes]");
    const protocol = await session.call("stray_name", {}, never);
    expect(protocol.isError).toBe(true);
    expect(protocol.text).toContain("no such tool here");
    expect((await session.call("unknown", {}, never)).isError).toBe(true);
  });

  test("with arguments that are not an object is answered without the server, so that the model can mend them", async () => {
    const session = await open();
    const outcome = await session.call("echo", '{"text": "hi}', never);
    expect(outcome).toEqual({ isError: true, text: "The arguments of echo must be one valid JSON object." });
  });

  test("is given up when nothing is heard for the inactivity time", async () => {
    const session = await open({ requestTimeouts: { inactivityMs: 150, totalMs: 60_000 } });
    const error = await refusal(session.call("slow", {}, never));
    expect(error.code).toBe("mcp_failed");
    expect(error.message).toContain("timed out");
  });

  test("lives longer than the inactivity time while progress is heard", async () => {
    const session = await open({ requestTimeouts: { inactivityMs: 1_000, totalMs: 60_000 } });
    expect(await session.call("steady", {}, never)).toEqual({ isError: false, text: "finished" });
  });

  test("ends at the total time-out whatever progress is heard", async () => {
    const clock = createFakeClock();
    const session = await open({ clock, requestTimeouts: { inactivityMs: 60_000, totalMs: 45 * 60_000 } });
    const call = refusal(session.call("slow", {}, never));
    while (clock.pending() === 0) await new Promise((resolve) => setImmediate(resolve));
    clock.advance(45 * 60_000);
    expect((await call).message).toContain("total time-out");
  });

  test("is cancelled at the server when the caller aborts", async () => {
    const logger = createRecordingLogger();
    const session = await open({ logger });
    const controller = new AbortController();
    const call = refusal(session.call("slow", {}, controller.signal));
    // The pipe keeps order: once this is answered, the server has the slow call.
    await session.call("echo", {}, never);
    controller.abort();
    expect((await call).code).toBe("mcp_failed");
    await session.close();
    expect(logger.lines.join("\n")).toContain("slow was cancelled");
  });

  test("has an unknown outcome when the server dies in it; those after it go to one new process of the run", async () => {
    const session = await start({ a: script(PROBE) }, { continuationServers: ["a"] }).open(
      sessionRequest({ a: capability }),
    );
    const { pid, seen } = await probe(session);
    const error = await refusal(session.call("crash", {}, never));
    expect(error.message).toContain("outcome is unknown");
    const after = await Promise.all([1, 2, 3].map(() => probe(session)));
    expect(new Set(after.map((again) => again.pid)).size).toBe(1);
    expect(after[0]?.pid).not.toBe(pid);
    expect(after[0]?.seen).toEqual(seen);
    expect(children()).toEqual(after.slice(0, 1).map((again) => again.pid));
    await session.close();
    expect(children()).toEqual([]);
  });

  test("that was answered is not cancelled by what ends later", async () => {
    const methods: string[] = [];
    const http = Bun.serve({
      port: 0,
      hostname: "127.0.0.1",
      development: false,
      async fetch(request) {
        if (request.method !== "POST") return new Response(null, { status: 405 });
        const { id, method, params } = (await request.json()) as {
          id?: number;
          method: string;
          params?: { protocolVersion?: string };
        };
        methods.push(method);
        if (id === undefined) return new Response(null, { status: 202 });
        const results: Record<string, unknown> = {
          initialize: {
            protocolVersion: params?.protocolVersion,
            capabilities: { tools: {} },
            serverInfo: { name: "w", version: "1" },
          },
          "tools/list": { tools: [{ name: "echo", inputSchema: { type: "object" } }] },
        };
        return Response.json({ jsonrpc: "2.0", id, result: results[method] ?? { content: [] } });
      },
    });
    const run = new AbortController();
    const host = start({ a: { url: `http://127.0.0.1:${http.port}/mcp` } }, { continuationServers: ["a"] });
    const session = await host.open(sessionRequest({ a: capability }, run.signal));
    await session.call("echo", {}, run.signal);
    run.abort();
    await session.call("echo", {}, never);
    await session.close();
    await http.stop(false);
    expect(methods.filter((method) => method !== "tools/call")).toEqual([
      "initialize",
      "notifications/initialized",
      "tools/list",
    ]);
  });

  test("after the server died in several is not sent before the server has waited", async () => {
    const host = start({ a: script(PROBE) }, { continuationServers: ["a"] });
    const session = await host.open(sessionRequest({ a: capability }));
    for (let round = 0; round < 2; round += 1) await refusal(session.call("crash", {}, never));
    const { text } = await session.call("crash", {}, never);
    expect(text).toBe("The server a can't be reached now. Nothing was sent to it.");
    expect(children()).toEqual([]);
  });

  test("goes nowhere while the server can't be started again", async () => {
    const folder = mkdtempSync(join(tmpdir(), "mono-agent-once-"));
    const wrapper = join(folder, "server.sh");
    writeFileSync(wrapper, `exec '${process.execPath}' '${PROBE}'\n`);
    const host = start({ a: { command: "/bin/sh", args: [wrapper] } }, { continuationServers: ["a"] });
    const session = await host.open(sessionRequest({ a: capability }));
    rmSync(folder, { recursive: true });
    await refusal(session.call("crash", {}, never));
    for (let round = 0; round < 3; round += 1) {
      const { isError, text } = await session.call("echo", {}, never);
      expect([isError, text]).toEqual([true, "The server a can't be reached now. Nothing was sent to it."]);
    }
  });
});

describe("no child is left behind", () => {
  /** A selected server has a client for each run. */
  const own = { continuationServers: ["a"] };

  test("after fifty sessions, five at a time", async () => {
    const host = start({ a: script(PROBE) }, own);
    const pids: number[] = [];
    for (let round = 0; round < 10; round += 1) {
      const sessions = await Promise.all([1, 2, 3, 4, 5].map(() => host.open(sessionRequest())));
      for (const session of sessions) pids.push((await probe(session)).pid);
      expect(pids.slice(-5).every(alive)).toBe(true);
      await Promise.all(sessions.map((session) => session.close()));
    }
    expect(new Set(pids).size).toBe(50);
    expect(pids.filter(alive)).toEqual([]);
  }, 60_000);

  test.each([
    ["a server that ignores both the end of its input and SIGTERM", "stubborn"],
    ["a server that heeds SIGTERM when they do not", "wrapper"],
  ])("nor the helpers of %s", async (_what, mode) => {
    const host = start({ a: script(PROBE, [mode]) }, { clock: hurriedClock, ...own });
    const session = await host.open(sessionRequest());
    const { pid } = await probe(session);
    expect(groupAlive(pid)).toBe(true);
    await session.close();
    while (groupAlive(pid)) await new Promise((resolve) => setImmediate(resolve));
    expect(alive(pid)).toBe(false);
  });

  test("nor the helpers of a server that crashes", async () => {
    const session = await start({ a: script(PROBE, ["helped"]) }, own).open(sessionRequest());
    const { pid } = await probe(session);
    await refusal(session.call("crash", {}, never));
    while (groupAlive(pid)) await new Promise((resolve) => setImmediate(resolve));
  });

  test("nor one that was being started again when the run ended", async () => {
    const folder = mkdtempSync(join(tmpdir(), "mono-agent-again-"));
    const modeFile = join(folder, "mode");
    writeFileSync(modeFile, "plain");
    const starter = `exec '${process.execPath}' '${PROBE}' "$(cat '${modeFile}')" mcp-again`;
    const server = { command: "/bin/sh", args: ["-c", starter] };
    const host = start({ a: server }, { clock: hurriedClock, ...own });
    const session = await host.open(sessionRequest({ a: capability }));
    await refusal(session.call("crash", {}, never));
    writeFileSync(modeFile, "mute");
    const controller = new AbortController();
    const call = refusal(session.call("echo", {}, controller.signal));
    await untilChildren(1);
    controller.abort();
    await call;
    await session.close();
    expect(children()).toEqual([]);
    expect((await session.call("echo", {}, never)).text).toContain("nothing was sent to it");
    expect(children()).toEqual([]);
    rmSync(folder, { recursive: true });
  });

  test("nor is one started for a run that was aborted before", async () => {
    const host = start({ a: script(PROBE) });
    await refusal(host.open(sessionRequest({}, AbortSignal.abort())));
    expect(children()).toEqual([]);
  });

  test.each([
    ["of its own", own],
    ["shared", {}],
  ])("when the host closes with sessions (%s) open and one still opening", async (_what, over) => {
    const host = start({ a: script(PROBE) }, over);
    const session = await host.open(sessionRequest());
    const { pid } = await probe(session);
    const opening = refusal(host.open(sessionRequest()));
    await host.close();
    expect((await opening).code).toBe("mcp_failed");
    expect(alive(pid)).toBe(false);
    expect(children()).toEqual([]);
    expect((await refusal(host.open(sessionRequest()))).message).toContain("closed");
  });
});
