import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { WebStandardStreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/webStandardStreamableHttp.js";
import { MIB } from "../../core/limits.ts";
import { capabilityFromEnv, capabilityFromHeaders } from "./capability.ts";
import { createWorkControlServer, type WorkControlOptions } from "./work-control.ts";

const REQUEST_MAX_BYTES = MIB;

type Means = Omit<WorkControlOptions, "capability">;

/** Serves over standard input and output until the input ends or the signal fires. One process serves one run. */
export async function serveStdio(
  env: Readonly<Record<string, string | undefined>>,
  means: Means,
  signal: AbortSignal,
): Promise<void> {
  const server = createWorkControlServer({ capability: capabilityFromEnv(env), ...means });
  const ended = Promise.withResolvers<void>();
  process.stdin.once("end", ended.resolve);
  process.stdin.once("close", ended.resolve);
  if (signal.aborted) ended.resolve();
  signal.addEventListener("abort", () => ended.resolve(), { once: true });
  await server.connect(new StdioServerTransport());
  await ended.promise;
  await server.close();
}

/**
 * Serves streamable HTTP on loopback until the signal fires. Without sessions: each request brings the claim values
 * of its own run in its headers, and gets a server of its own.
 */
export async function serveHttp(
  port: number,
  means: Means,
  signal: AbortSignal,
  onListening: (url: string) => void,
): Promise<void> {
  const ended = Promise.withResolvers<void>();
  const http = Bun.serve({
    hostname: "127.0.0.1",
    port,
    maxRequestBodySize: REQUEST_MAX_BYTES,
    development: false,
    async fetch(request): Promise<Response> {
      const url = new URL(request.url);
      if (url.pathname !== "/mcp") return new Response("not found", { status: 404 });
      // A web page must not reach this port, neither directly nor by a name that was pointed at it.
      if (request.headers.has("origin") || !["127.0.0.1", "localhost"].includes(url.hostname)) {
        return new Response("forbidden", { status: 403 });
      }
      if (request.method !== "POST") {
        return new Response("method not allowed", { status: 405, headers: { allow: "POST" } });
      }
      const server = createWorkControlServer({
        capability: capabilityFromHeaders(request.headers),
        ...means,
      });
      const transport = new WebStandardStreamableHTTPServerTransport({ enableJsonResponse: true });
      await server.connect(transport);
      const response = await transport.handleRequest(request);
      const body = await response.text();
      await server.close();
      return new Response(body === "" ? null : body, { status: response.status, headers: response.headers });
    },
  });
  if (signal.aborted) ended.resolve();
  signal.addEventListener("abort", () => ended.resolve(), { once: true });
  onListening(`http://127.0.0.1:${http.port}/mcp`);
  await ended.promise;
  await http.stop(true);
}
