import { afterEach, describe, expect, spyOn, test } from "bun:test";
import { createServer, type IncomingHttpHeaders } from "node:http";
import type { AddressInfo } from "node:net";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { SSEServerTransport } from "@modelcontextprotocol/sdk/server/sse.js";
import { WebStandardStreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/webStandardStreamableHttp.js";
import { McpError } from "../../src/core/errors.ts";
import { boundedBody, HTTP_MESSAGE_MAX_BYTES } from "../../src/mcp/bounded-body.ts";
import { createConnection } from "../../src/mcp/connection.ts";
import { directFetch } from "../../src/mcp/direct-fetch.ts";
import { REFUSAL_WAIT_MS } from "../../src/mcp/transport.ts";
import { until } from "../support/binary.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { capability, never, sessionRequest, toolHost } from "../support/mcp-host.ts";
import { createRecordingLogger, silentLogger } from "../support/silent-logger.ts";

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

function mcpServer(): McpServer {
  const server = new McpServer({ name: "web", version: "1" });
  server.registerTool("hello", { description: "Says hello." }, () => ({
    content: [{ type: "text", text: "hello" }],
  }));
  return server;
}

/** A streamable HTTP server with sessions; `reply` may answer a tools/call in another way. */
async function streamable(
  reply?: (request: { json(): Promise<unknown> }) => Response | Promise<Response> | undefined,
  other?: (request: { readonly method: string; readonly headers: Headers }) => Response | undefined,
) {
  const requests: { method: string; headers: Record<string, string> }[] = [];
  const transport = new WebStandardStreamableHTTPServerTransport({ sessionIdGenerator: () => "session-1" });
  const server = mcpServer();
  await server.connect(transport);
  const http = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    development: false,
    async fetch(request) {
      requests.push({ method: request.method, headers: request.headers.toJSON() });
      const isCall = (await request.clone().text()).includes("tools/call");
      return (isCall ? await reply?.(request.clone()) : other?.(request)) ?? transport.handleRequest(request);
    },
  });
  cleanups.push(
    () => http.stop(true),
    () => server.close(),
  );
  return { url: `http://127.0.0.1:${http.port}/mcp`, requests, stop: () => http.stop(true) };
}

function open(url: string, type: "http" | "sse", selected: boolean) {
  const host = toolHost(
    { web: { type, url, headers: { "x-own": "kept", "X-Mono-Agent-Continuation-Claim-Url": "fake" } } },
    { continuationServers: selected ? ["web"] : [] },
  );
  cleanups.push(() => host.close());
  return host.open(sessionRequest({ web: capability }));
}

const claimHeaders = (headers: Record<string, unknown> | IncomingHttpHeaders | undefined) =>
  Object.fromEntries(Object.entries(headers ?? {}).filter(([name]) => name.startsWith("x-mono-agent")));

describe("a streamable HTTP server", () => {
  test("gets the four headers with every request of a run that selects it, and a farewell at its end", async () => {
    const { url, requests } = await streamable();
    const session = await open(url, "http", true);
    expect(await session.call("hello", {}, never)).toEqual({ isError: false, text: "hello" });
    await session.close();
    expect(requests.length).toBeGreaterThan(3);
    for (const { headers } of requests) {
      expect(headers["x-own"]).toBe("kept");
      expect(claimHeaders(headers)).toEqual({
        "x-mono-agent-continuation-claim-url": capability.url,
        "x-mono-agent-continuation-claim-token": capability.token,
        "x-mono-agent-continuation-claim-fingerprint": capability.fingerprint,
        "x-mono-agent-continuation-claim-mode": capability.mode,
      });
    }
    expect(requests.some(({ method }) => method === "DELETE")).toBe(true);
  });

  test("that is not selected gets none of them", async () => {
    const { url, requests } = await streamable();
    const session = await open(url, "http", false);
    await session.call("hello", {}, never);
    for (const { headers } of requests) expect(claimHeaders(headers)).toEqual({});
  });

  test("on loopback is never asked through a proxy of the environment", async () => {
    const { url } = await streamable();
    const seen: string[] = [];
    const proxy = Bun.serve({
      port: 0,
      hostname: "127.0.0.1",
      fetch(request) {
        seen.push(request.url);
        return new Response("proxied", { status: 502 });
      },
    });
    const before = { HTTP_PROXY: process.env.HTTP_PROXY, http_proxy: process.env.http_proxy };
    cleanups.push(() => {
      for (const [name, value] of Object.entries(before)) {
        if (value === undefined) delete process.env[name];
        else process.env[name] = value;
      }
      return proxy.stop(true);
    });
    process.env.HTTP_PROXY = process.env.http_proxy = `http://127.0.0.1:${proxy.port}`;
    const session = await open(url, "http", true);
    expect((await session.call("hello", {}, never)).text).toBe("hello");
    await session.close();
    expect(seen).toEqual([]);
  });

  test("that is gone before a call was not reached: an outcome, not an unknown one", async () => {
    const { url, stop } = await streamable();
    const session = await open(url, "http", false);
    await stop();
    const outcome = await session.call("hello", {}, never);
    expect(outcome.isError).toBe(true);
    expect(outcome.text).toContain("nothing was sent");
  });

  test("that refuses a call with 4xx gives an outcome, a 5xx an unknown one, and neither repeats its body", async () => {
    const refusing = await streamable(() => new Response(`secret ${capability.token}`, { status: 403 }));
    const outcome = await (await open(refusing.url, "http", true)).call("hello", {}, never);
    expect(outcome).toEqual({ isError: true, text: "The server web refused the call with HTTP 403." });
    const failing = await streamable(() => new Response(`secret ${capability.token}`, { status: 500 }));
    const error = await (await open(failing.url, "http", true))
      .call("hello", {}, never)
      .catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(McpError);
    expect(String(error)).not.toContain("secret");
  });
});

test("no error text of a server over HTTP carries its configured headers", async () => {
  const { url } = await streamable(async (request) => {
    const { id } = (await request.json()) as { id: number };
    const message = "Bearer header-canary is bad, so is header-canary";
    return Response.json({ jsonrpc: "2.0", id, error: { code: -32602, message } });
  });
  const host = toolHost({ web: { url, headers: { authorization: "Bearer header-canary" } } });
  cleanups.push(() => host.close());
  const { text } = await (await host.open(sessionRequest())).call("hello", {}, never);
  expect(text).toBe("MCP error -32602: [redacted] is bad, so is [redacted]");
});

describe("a JSON-RPC error whose code looks like an HTTP status", () => {
  test("in answer to a call is an outcome and ends no session", async () => {
    let calls = 0;
    const { url, requests } = await streamable(async (request) => {
      calls += 1;
      const { id } = (await request.json()) as { id: number };
      return Response.json({ jsonrpc: "2.0", id, error: { code: 404, message: "no such page" } });
    });
    const session = await open(url, "http", false);
    const outcome = { isError: true, text: "MCP error 404: no such page" };
    expect(await session.call("hello", {}, never)).toEqual(outcome);
    expect(await session.call("hello", {}, never)).toEqual(outcome);
    expect(calls).toBe(2);
    expect(requests.filter(({ method }) => method === "GET").length).toBeLessThan(2);
  });

  test.each([401, 404])("in answer to the first request is said to be of the protocol: %d", async (code) => {
    const http = Bun.serve({
      port: 0,
      hostname: "127.0.0.1",
      development: false,
      async fetch(request) {
        const { id } = (await request.json()) as { id: number };
        return Response.json({ jsonrpc: "2.0", id, error: { code, message: "no" } });
      },
    });
    cleanups.push(() => http.stop(true));
    const { warnings } = await open(`http://127.0.0.1:${http.port}/mcp`, "http", false);
    expect(warnings.map(({ message }) => message)).toEqual([`web: it answered with protocol error ${code}`]);
  });
});

describe("a refusal whose body does not end", () => {
  const stalled = (status: number) =>
    new Response(new ReadableStream({ start: (body) => body.enqueue(Buffer.from("no ")) }), { status });

  async function calling(url: string, type: "http" | "sse") {
    const clock = createFakeClock();
    const connection = createConnection({
      server: "web",
      spec: { type, url },
      grant: "unselected",
      context: "unselected",
      baseEnv: {},
      authority: [],
      cwd: "/",
      timeouts: { inactivityMs: 60_000, totalMs: 60_000 },
      clock,
      logger: silentLogger,
    });
    cleanups.push(() => connection.close());
    expect((await connection.connect(never)).failed).toBe(false);
    const idle = clock.pending();
    const call = connection.call("hello", {}, never);
    // The total time-out of the call, and the wait for the body.
    await until("the refusal", async () => clock.pending() === idle + 2);
    clock.advance(REFUSAL_WAIT_MS);
    return call;
  }
  const refused = { isError: true, text: "The server web refused the call with HTTP 400." };

  test("is not waited for: streamable HTTP", async () => {
    const { url } = await streamable(() => stalled(400));
    expect(await calling(url, "http")).toEqual(refused);
  });

  test("is not waited for: SSE", async () => {
    // initialize, initialized and tools/list are taken.
    let posts = 0;
    const url = await sse([], () => (++posts > 3 ? 400 : undefined), "no ", true);
    expect(await calling(url, "sse")).toEqual(refused);
  });
});

describe("a stream of events that ends before the answer", () => {
  const stream = (start: (body: ReadableStreamDefaultController<Uint8Array>) => void) =>
    new Response(new ReadableStream({ start }), { headers: { "content-type": "text/event-stream" } });
  const bytes = (text: string) => new TextEncoder().encode(text);
  const lost = "McpError: web: the connection was closed during the call; the outcome is unknown";

  test.each([
    ["closed by the server", ": hi\n\n"],
    ["in the middle of an event", 'data: {"jsonrpc":"2.0","id":2,"resu'],
    ["with a message beyond the bound", `data: ${"x".repeat(HTTP_MESSAGE_MAX_BYTES)}`],
  ])("%s leaves an unknown outcome at once", async (_how, text) => {
    const { url } = await streamable(() =>
      stream((body) => {
        body.enqueue(bytes(text));
        body.close();
      }),
    );
    const session = await open(url, "http", false);
    expect(String(await session.call("hello", {}, never).catch((thrown: unknown) => thrown))).toBe(lost);
  });

  test("but not after it leaves no line in the log", async () => {
    const logger = createRecordingLogger();
    const host = toolHost({ web: { url: (await streamable()).url } }, { logger });
    cleanups.push(() => host.close());
    const session = await host.open(sessionRequest());
    for (let calls = 0; calls < 3; calls += 1)
      expect((await session.call("hello", {}, never)).text).toBe("hello");
    expect(logger.lines).toEqual([]);
  });

  test("with event ids is taken up again where it ended", async () => {
    let id = 0;
    let resumed: string | null = null;
    const { url } = await streamable(
      async (request) => {
        ({ id } = (await request.json()) as { id: number });
        return stream((body) => {
          for (const part of ["retry: 1\ni", "d: 7\ndata: \n\n"]) body.enqueue(bytes(part));
          body.close();
        });
      },
      (request) => {
        if (request.method !== "GET" || !request.headers.has("last-event-id")) return undefined;
        resumed = request.headers.get("last-event-id");
        const result = { content: [{ type: "text", text: "late" }] };
        return stream((body) => {
          body.enqueue(bytes(`data: ${JSON.stringify({ jsonrpc: "2.0", id, result })}\n\n`));
          body.close();
        });
      },
    );
    expect((await (await open(url, "http", false)).call("hello", {}, never)).text).toBe("late");
    expect(String(resumed)).toBe("7");
  });
});

describe("HTTP 400 for a call", () => {
  const answers = [
    ["that says nothing of a session leaves the session as it is", "no such argument", false],
    ["that speaks of the session ends it", '{"error":"No transport found for sessionId"}', true],
  ] as const;
  const refused = { isError: true, text: "The server web refused the call with HTTP 400." };
  const welcome = { isError: false, text: "hello" };

  test.each(answers)("%s: one run's own client", async (_what, body, gone) => {
    let refusals = 1;
    const { url } = await streamable(() =>
      refusals-- > 0 ? new Response(body, { status: 400 }) : undefined,
    );
    const session = await open(url, "http", true);
    // The one session of this server can't be begun again.
    const unreachable = {
      isError: true,
      text: "The server web can't be reached now. Nothing was sent to it.",
    };
    expect(await session.call("hello", {}, never)).toEqual(gone ? unreachable : refused);
    expect(await session.call("hello", {}, never)).toEqual(gone ? unreachable : welcome);
  });

  test.each(answers)("%s: a shared client over SSE", async (_what, body, gone) => {
    let refusals = 0;
    const seen: IncomingHttpHeaders[] = [];
    const url = await sse(seen, () => (refusals-- > 0 ? 400 : undefined), body);
    const streams = () => seen.filter(({ accept }) => accept === "text/event-stream").length;
    const session = await open(url, "sse", false);
    refusals = 1;
    expect(await session.call("hello", {}, never)).toEqual(gone ? welcome : refused);
    expect(await session.call("hello", {}, never)).toEqual(welcome);
    expect(streams()).toBe(gone ? 2 : 1);
  });

  test("over SSE is understood by the beginning of an answer that never ends", async () => {
    let refusals = 0;
    const url = await sse([], () => (refusals-- > 0 ? 400 : undefined), "x".repeat(100_000), true);
    const session = await open(url, "sse", false);
    refusals = 1;
    expect(await session.call("hello", {}, never)).toEqual(refused);
  });
});

describe("a server over HTTP", () => {
  /** Starts a server with sessions on a port; a later one on the same port knows none of its sessions. */
  function sessions(port: number) {
    const transports = new Map<string, WebStandardStreamableHTTPServerTransport>();
    let calls = 0;
    const http = Bun.serve({
      port,
      hostname: "127.0.0.1",
      development: false,
      async fetch(request) {
        if ((await request.clone().text()).includes("tools/call")) calls += 1;
        const known = transports.get(request.headers.get("mcp-session-id") ?? "");
        if (known !== undefined) return known.handleRequest(request);
        if (request.headers.has("mcp-session-id")) return new Response("no such session", { status: 404 });
        const transport: WebStandardStreamableHTTPServerTransport =
          new WebStandardStreamableHTTPServerTransport({
            sessionIdGenerator: () => crypto.randomUUID(),
            onsessioninitialized: (id) => void transports.set(id, transport),
          });
        await mcpServer().connect(transport);
        return transport.handleRequest(request);
      },
    });
    cleanups.push(() => http.stop(true));
    return { port: http.port ?? 0, stop: () => http.stop(true), calls: () => calls, ids: transports };
  }

  test("that is one run's own, and that it was restarted the run does not notice", async () => {
    const first = sessions(0);
    const run = await open(`http://127.0.0.1:${first.port}/mcp`, "http", true);
    await first.stop();
    const second = sessions(first.port);
    expect(await run.call("hello", {}, never)).toEqual({ isError: false, text: "hello" });
    expect([second.ids.size, second.calls()]).toEqual([1, 2]);
  });

  test("has one session for all runs, and that it was restarted no run notices", async () => {
    const first = sessions(0);
    const host = toolHost({ web: { url: `http://127.0.0.1:${first.port}/mcp` } });
    cleanups.push(() => host.close());
    const runs = await Promise.all([host.open(sessionRequest()), host.open(sessionRequest())]);
    for (const run of runs) expect((await run.call("hello", {}, never)).text).toBe("hello");
    expect(first.ids.size).toBe(1);
    await first.stop();
    const second = sessions(first.port);
    const outcomes = await Promise.all(runs.map((run) => run.call("hello", {}, never)));
    expect(outcomes).toEqual(Array(2).fill({ isError: false, text: "hello" }));
    expect((await (await host.open(sessionRequest())).call("hello", {}, never)).text).toBe("hello");
    expect(second.ids.size).toBe(1);
  });
});

test("a message beyond the bound is not taken, a long stream of small ones is", async () => {
  const of = (type: string, chunks: string[]) =>
    boundedBody(
      new Response(
        new ReadableStream({
          start(controller) {
            for (const chunk of chunks) controller.enqueue(new TextEncoder().encode(chunk));
            controller.close();
          },
        }),
        { headers: { "content-type": type } },
      ),
      10,
    );
  for (const event of ["data: x\n\n", "data: x\r\r", "d: x\r\n\r\n"]) {
    const events = event.repeat(10);
    expect(await of("text/event-stream; charset=utf-8", Array(10).fill(event)).text()).toBe(events);
    expect(await of("text/event-stream", [...events]).text()).toBe(events);
  }
  expect(await of("application/json", ["12345", "67890"]).text()).toBe("1234567890");
  for (const [type, chunks] of [
    ["application/json", ["12345\n", "67890\n"]],
    ["text/event-stream", ["data: x\n\ndata: ", "yyyyy"]],
    ["text/event-stream", Array(10).fill("data: x\n")],
    ["text/event-stream", Array(10).fill("d: x\r\n")],
  ] as const) {
    const error = await of(type, [...chunks])
      .text()
      .catch((thrown: unknown) => thrown);
    expect(String(error)).toContain("too big");
  }
});

describe("a list of tools", () => {
  async function listing(tools: unknown) {
    const http = Bun.serve({
      port: 0,
      hostname: "127.0.0.1",
      development: false,
      async fetch(request) {
        if (request.method !== "POST") return new Response(null, { status: 405 });
        const { id, method } = (await request.json()) as { id?: number; method: string };
        if (id === undefined) return new Response(null, { status: 202 });
        const about = { protocolVersion: "2025-11-25", capabilities: { tools: {} } };
        const result =
          method === "initialize" ? { ...about, serverInfo: { name: "web", version: "1" } } : { tools };
        return Response.json({ jsonrpc: "2.0", id, result });
      },
    });
    cleanups.push(() => http.stop(true));
    const { tools: offered, warnings } = await open(`http://127.0.0.1:${http.port}/mcp`, "http", false);
    return [offered.map(({ name }) => name), warnings.map(({ message }) => message)];
  }
  const good = { name: "good", inputSchema: { type: "object" } };

  test("loses only the tool that can't be read", async () => {
    expect(await listing([{ name: "bad", inputSchema: { type: 5 } }, good, null])).toEqual([
      ["good"],
      ["web: 2 of its tools can't be read and are left out"],
    ]);
  });

  test("that is a web page, as any answer, is said to be unreadable", async () => {
    const page = () => new Response("<html>", { headers: { "content-type": "text/html" } });
    const http = Bun.serve({ port: 0, hostname: "127.0.0.1", development: false, fetch: page });
    cleanups.push(() => http.stop(true));
    const { warnings } = await open(`http://127.0.0.1:${http.port}/mcp`, "http", false);
    expect(warnings.map(({ message }) => message)).toEqual(["web: it answered in a form that can't be read"]);
  });

  test("that is none is said to be unreadable, not the server to be unreachable", async () => {
    expect(await listing("no tools")).toEqual([[], ["web: it answered in a form that can't be read"]]);
  });
});

test("only our own limits end what is silent, not Bun's five minutes", async () => {
  const fetching = spyOn(globalThis, "fetch").mockImplementation((() =>
    Promise.resolve(new Response("ok"))) as never);
  cleanups.push(() => fetching.mockRestore());
  for (const url of ["http://127.0.0.1:9/mcp", "https://example.com/mcp"]) await directFetch(url);
  expect(fetching.mock.calls.map(([, init]) => init)).toEqual([
    expect.objectContaining({ timeout: false, proxy: false }),
    expect.objectContaining({ timeout: false }),
  ]);
});

/** An SSE server; `refuse` may answer a message in another way, with a body that may stay unfinished. */
async function sse(
  seen: IncomingHttpHeaders[],
  refuse: () => number | undefined = () => undefined,
  body = `secret ${capability.token}`,
  unfinished = false,
) {
  let transport: SSEServerTransport | undefined;
  const http = createServer((request, response) => {
    seen.push(request.headers);
    const status = request.method === "GET" ? undefined : refuse();
    if (status !== undefined) {
      response.writeHead(status).write(body);
      if (!unfinished) response.end();
    } else if (request.method === "GET") {
      transport = new SSEServerTransport("/messages", response);
      void mcpServer().connect(transport);
    } else {
      void transport?.handlePostMessage(request, response);
    }
  });
  await new Promise<void>((resolve) => http.listen(0, "127.0.0.1", resolve));
  cleanups.push(() => {
    http.closeAllConnections();
    http.close();
  });
  const { port } = http.address() as AddressInfo;
  return `http://127.0.0.1:${port}/sse`;
}

test("an SSE server that refuses a call with 4xx gives an outcome, a 5xx an unknown one", async () => {
  let status: number | undefined;
  const session = await open(await sse([], () => status), "sse", false);
  status = 403;
  const outcome = await session.call("hello", {}, never);
  expect(outcome).toEqual({ isError: true, text: "The server web refused the call with HTTP 403." });
  status = 500;
  const error = await session.call("hello", {}, never).catch((thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(McpError);
  expect(String(error)).not.toContain("secret");
});

test("an SSE server and we agree on a protocol", async () => {
  const connection = createConnection({
    server: "web",
    spec: { type: "sse", url: await sse([]) },
    grant: "unselected",
    context: "unselected",
    baseEnv: {},
    authority: [],
    cwd: "/",
    timeouts: { inactivityMs: 5_000, totalMs: 5_000 },
    clock: createFakeClock(),
    logger: silentLogger,
  });
  cleanups.push(() => connection.close());
  await connection.connect(never);
  expect(connection.about()).toEqual({ version: "web@1", protocol: "2025-11-25" });
});

test("an SSE server that is not selected serves its tools, without claim values", async () => {
  const seen: IncomingHttpHeaders[] = [];
  const session = await open(await sse(seen), "sse", false);
  expect(session.warnings).toEqual([]);
  expect((await session.call("hello", {}, never)).text).toBe("hello");
  expect(seen.length).toBeGreaterThan(2);
  for (const headers of seen) {
    expect(headers["x-own"]).toBe("kept");
    expect(claimHeaders(headers)).toEqual({});
  }
});

describe("an SSE server that never names its endpoint", () => {
  async function connecting(clock = createFakeClock()) {
    const asked = Promise.withResolvers<void>();
    const http = Bun.serve({
      port: 0,
      hostname: "127.0.0.1",
      idleTimeout: 0,
      fetch() {
        asked.resolve();
        return new Response(new ReadableStream({ start: (body) => body.enqueue(": hello\n\n") }), {
          headers: { "content-type": "text/event-stream" },
        });
      },
    });
    cleanups.push(() => http.stop(true));
    const connection = createConnection({
      server: "web",
      spec: { type: "sse", url: `http://127.0.0.1:${http.port}/sse` },
      grant: "unselected",
      context: "unselected",
      baseEnv: {},
      authority: [],
      cwd: "/",
      timeouts: { inactivityMs: 5_000, totalMs: 5_000 },
      clock,
      logger: silentLogger,
    });
    cleanups.push(() => connection.close());
    const stop = new AbortController();
    const listing = connection.connect(stop.signal);
    await asked.promise;
    return { clock, connection, stop, listing };
  }

  test.each([
    ["after a minute", ({ clock }) => clock.advance(60_000)],
    ["when the run is aborted", ({ stop }) => stop.abort()],
    ["when it is closed", ({ connection }) => connection.close()],
  ] satisfies [string, (it: Awaited<ReturnType<typeof connecting>>) => unknown][])(
    "is given up %s",
    async (_when, end) => {
      const it = await connecting();
      await end(it);
      const { failed, warnings } = await it.listing;
      expect(failed).toBe(true);
      expect(warnings[0]?.message).toBe("web: it did not answer in time, or the run was aborted");
      expect(it.clock.pending()).toBe(0);
    },
  );
});
