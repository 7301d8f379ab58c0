import { afterEach, describe, expect, test } from "bun:test";
import { directFetch } from "../../src/mcp/direct-fetch.ts";
import { capability, never, sessionRequest, toolHost } from "../support/mcp-host.ts";

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

interface Seen {
  readonly path: string;
  readonly method: string;
  readonly body: string;
  readonly headers: Headers;
}

/** A loopback server that keeps what it sees; `answer` may redirect. */
function listen(answer: (seen: Seen) => Response) {
  const seen: Seen[] = [];
  const http = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    development: false,
    async fetch(request) {
      const { method, url } = request;
      const headers = new Headers(request.headers.toJSON());
      const entry = { path: new URL(url).pathname, method, body: await request.text(), headers };
      seen.push(entry);
      return answer(entry);
    },
  });
  cleanups.push(() => http.stop(true));
  return { origin: `http://127.0.0.1:${http.port}`, seen };
}

const redirect = (status: number, location: string) => new Response(null, { status, headers: { location } });

/** A server without a session: it answers the handshake, a list and every call. */
function mcpAnswer({ method, body }: Seen): Response {
  if (method !== "POST") return new Response(null, { status: 405 });
  const { id, method: what } = JSON.parse(body) as { id?: number; method: string };
  if (id === undefined) return new Response(null, { status: 202 });
  const results: Record<string, unknown> = {
    initialize: {
      protocolVersion: "2025-11-25",
      capabilities: { tools: {} },
      serverInfo: { name: "web", version: "1" },
    },
    "tools/list": { tools: [{ name: "hello", inputSchema: { type: "object" } }] },
    "tools/call": { content: [{ type: "text", text: "hello" }] },
  };
  return Response.json({ jsonrpc: "2.0", id, result: results[what] });
}

function open(url: string, selected: boolean) {
  const host = toolHost(
    { web: { url, headers: { "x-api-key": "key-canary" } } },
    { continuationServers: selected ? ["web"] : [] },
  );
  cleanups.push(() => host.close());
  return host.open(sessionRequest({ web: capability }));
}

describe("a redirect", () => {
  test("within the server's origin is followed, with message and headers", async () => {
    const server = listen((seen) => (seen.path === "/mcp" ? redirect(307, "/mcp/") : mcpAnswer(seen)));
    const session = await open(`${server.origin}/mcp`, true);
    expect(session.warnings).toEqual([]);
    expect((await session.call("hello", {}, never)).text).toBe("hello");
    const arrived = server.seen.filter(({ path }) => path === "/mcp/");
    expect(arrived.length).toBeGreaterThan(2);
    for (const { headers } of arrived) expect(headers.get("x-api-key")).toBe("key-canary");
  });

  test.each([
    ["one run's own client, with claim values", true],
    ["a shared client", false],
  ])("to another origin gets nothing of %s", async (_whose, selected) => {
    const other = listen(mcpAnswer);
    const server = listen(() => redirect(307, `${other.origin}/mcp`));
    const { warnings } = await open(`${server.origin}/mcp`, selected);
    expect(warnings.map(({ message }) => message)).toEqual([
      "web: it redirects elsewhere (HTTP 307); its url in mcp.json must be that place",
    ]);
    expect(other.seen).toEqual([]);
  });

  test("to another origin in answer to a call is an outcome: it was not taken up", async () => {
    const other = listen(mcpAnswer);
    const server = listen((seen) =>
      seen.body.includes("tools/call") ? redirect(308, `${other.origin}/mcp`) : mcpAnswer(seen),
    );
    const session = await open(`${server.origin}/mcp`, true);
    expect(await session.call("hello", {}, never)).toEqual({
      isError: true,
      text: "The server web refused the call with HTTP 308.",
    });
    expect(other.seen).toEqual([]);
  });

  test("that would turn a message into a GET is not followed", async () => {
    const server = listen((seen) => (seen.path === "/mcp" ? redirect(302, "/page") : new Response("page")));
    expect((await directFetch(`${server.origin}/mcp`, { method: "POST", body: "x" })).status).toBe(302);
    expect(server.seen.length).toBe(1);
  });

  test("to another origin is followed by a GET that carries nothing, such as one of OAuth metadata", async () => {
    const other = listen(() => new Response("metadata"));
    const server = listen(() => redirect(302, `${other.origin}/x`));
    const get = (headers: Record<string, string>) => directFetch(server.origin, { headers });
    expect(await (await get({ Accept: "application/json", "MCP-Protocol-Version": "1" })).text()).toBe(
      "metadata",
    );
    for (const name of ["authorization", "x-api-key", "mcp-session-id", "cookie"]) {
      expect((await get({ [name]: "canary" })).status).toBe(302);
    }
    expect(other.seen.length).toBe(1);
  });

  test("by the endpoint that an SSE server names is not followed to another origin", async () => {
    const other = listen(() => new Response(null, { status: 202 }));
    const server = listen(
      () =>
        new Response(`event: endpoint\ndata: ${other.origin}/messages\n\n`, {
          headers: { "content-type": "text/event-stream" },
        }),
    );
    const host = toolHost({
      web: { type: "sse", url: `${server.origin}/sse`, headers: { "x-api-key": "key-canary" } },
    });
    cleanups.push(() => host.close());
    const { tools, warnings } = await host.open(sessionRequest());
    expect([tools.length, warnings.length]).toEqual([0, 1]);
    expect(other.seen).toEqual([]);
  });

  test("in a circle ends", async () => {
    const server = listen(() => redirect(307, "/again"));
    expect((await directFetch(server.origin)).status).toBe(307);
    expect(server.seen.length).toBe(6);
  });
});
