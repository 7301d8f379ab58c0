import { resolve } from "node:path";
import type { Client } from "@modelcontextprotocol/sdk/client/index.js";
import type { Transport } from "@modelcontextprotocol/sdk/shared/transport.js";
import { BugError, McpError } from "../core/errors.ts";
import { isJsonObject, type JsonObject, type JsonValue } from "../core/json.ts";
import { MINUTE_MS, SECOND_MS } from "../core/limits.ts";
import { isLoopbackUrl, type McpServerSpec, serverTransport } from "../core/mcp-servers.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";
import type { ToolOutcome } from "../core/ports/tools.ts";
import type { ListedTool, SessionWarning } from "./catalogue.ts";
import { type ClaimGrant, childEnvironment, requestHeaders } from "./claim-injection.ts";
import { callFailure, connectFailure } from "./failures.ts";
import { capText, resultText } from "./result-text.ts";
import { environmentSecrets, type Redact, redactor } from "./stderr-lines.ts";
import { createStdioTransport, type StdioTransport } from "./stdio.ts";

/**
 * Owns: one client of one server for one run: connect, list, call, close.
 *
 * I1. `connect` never rejects: what went wrong becomes a warning, and the run goes on without the server.
 * I2. A call rejects only when its outcome is unknown; an answer of the server, even a protocol error, is an outcome.
 * I3. The claim token never appears in a result, a warning or a log line, whatever the server prints.
 */

/** Starting a server (a package runner may have to download it first) and its handshake. */
const CONNECT_TIMEOUT_MS = MINUTE_MS;
const LIST_TIMEOUT_MS = 30 * SECOND_MS;
const CLOSE_TIMEOUT_MS = 5 * SECOND_MS;
/** A server whose cursor never ends is cut off here. */
const LIST_MAX_PAGES = 64;
const LIST_MAX_TOOLS = 1024;
/** Names this client to servers. The version is that of its behaviour, not of the release. */
const CLIENT_INFO = { name: "mono-agent", version: "1" };

export interface RequestTimeouts {
  /** Without an answer or a progress notification for so long, a call is given up (`mcpCallTimeoutMs`). */
  readonly inactivityMs: number;
  /** The bound that no progress moves (`mcpCallMaxTotalTimeoutMs`). */
  readonly totalMs: number;
}

export interface ConnectionOptions {
  readonly server: string;
  readonly spec: McpServerSpec;
  readonly grant: ClaimGrant;
  readonly baseEnv: Readonly<Record<string, string | undefined>>;
  readonly cwd: string;
  readonly timeouts: RequestTimeouts;
  readonly clock: Clock;
  readonly logger: Logger;
}

export interface Connection {
  readonly server: string;
  connect(signal: AbortSignal): Promise<{
    readonly tools: readonly ListedTool[];
    readonly warnings: readonly SessionWarning[];
  }>;
  call(tool: string, input: JsonValue, signal: AbortSignal): Promise<ToolOutcome>;
  /** Bounded in time, idempotent; a `connect` under way fails. */
  close(): Promise<void>;
}

interface Opened {
  readonly transport: Transport;
  readonly stdio?: StdioTransport;
  /** Tells an HTTP server that its session is over. */
  readonly farewell?: () => Promise<void>;
}

export function createConnection(options: ConnectionOptions): Connection {
  const { server, grant, clock, timeouts } = options;
  const token = typeof grant === "string" ? [] : [grant.token];
  const redactToken = redactor(token);
  let client: Client | undefined;
  let opened: Opened | undefined;
  let lost = false;
  let closing: Promise<void> | undefined;

  const shut = async () => {
    if (opened === undefined) return;
    if (!lost && opened.farewell !== undefined) await bounded(clock, opened.farewell());
    // The client closes its transport, but only when it was connected to it.
    await bounded(clock, client?.close());
    await opened.transport.close();
  };

  return {
    server,
    async connect(signal) {
      const failed = (code: string, message: string) => ({
        tools: [],
        warnings: [{ server, code, message }],
      });
      try {
        const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
        const ready = await openTransport(options, token);
        // From here to the start of the process nothing waits, so a close can't slip between.
        if (closing !== undefined)
          return failed("mcp_init_failed", `${server}: closed before it was reached`);
        opened = ready;
        client = new Client(CLIENT_INFO, { capabilities: {} });
        client.onclose = () => {
          lost = true;
        };
        client.onerror = () => options.logger.debug("mcp transport error", { server });
        await client.connect(opened.transport, { signal, timeout: CONNECT_TIMEOUT_MS });
      } catch (error) {
        const text = connectFailure(error, opened?.stdio?.exitText());
        await opened?.transport.close().catch(() => {});
        return failed("mcp_init_failed", `${server}: ${text}`);
      }
      try {
        return await listTools(client, server, signal);
      } catch (error) {
        return failed(
          "mcp_list_tools_failed",
          `${server}: ${connectFailure(error, opened.stdio?.exitText())}`,
        );
      }
    },

    async call(tool, input, signal) {
      if (!isJsonObject(input)) {
        return { isError: true, text: `The arguments of ${tool} must be one valid JSON object.` };
      }
      if (client === undefined || lost || closing !== undefined) {
        return {
          isError: true,
          text: `The server ${server} is no longer connected; nothing was sent to it.`,
        };
      }
      if (signal.aborted)
        throw new McpError("mcp_failed", `${server}: the call was aborted before it was sent`);
      const { CallToolResultSchema } = await import("@modelcontextprotocol/sdk/types.js");
      const limit = new AbortController();
      const cancelTotal = clock.timer(timeouts.totalMs, () => limit.abort("total time-out"));
      try {
        // Not client.callTool: its check of the output schema would turn a call that ran into a failed one.
        const result = await client.request(
          { method: "tools/call", params: { name: tool, arguments: input } },
          CallToolResultSchema,
          {
            signal: AbortSignal.any([signal, limit.signal]),
            timeout: Math.min(timeouts.inactivityMs, timeouts.totalMs),
            // Without a progress callback no progress token is sent, and nothing re-arms the time-out.
            onprogress: () => {},
            resetTimeoutOnProgress: true,
          },
        );
        return { text: redactToken(resultText(result)), isError: result.isError === true };
      } catch (error) {
        const outcome = await callFailure(error, {
          server,
          aborted: signal.aborted,
          timedOut: limit.signal.aborted,
          lost,
        });
        return { ...outcome, text: capText(redactToken(outcome.text)) };
      } finally {
        cancelTotal();
      }
    },

    close() {
      closing ??= shut();
      return closing;
    },
  };
}

async function listTools(client: Client, server: string, signal: AbortSignal) {
  const tools: ListedTool[] = [];
  const warnings: SessionWarning[] = [];
  if (client.getServerCapabilities()?.tools === undefined) return { tools, warnings };
  const { ListToolsResultSchema } = await import("@modelcontextprotocol/sdk/types.js");
  const seen = new Set<string>();
  let cursor: string | undefined;
  for (let page = 1; ; page += 1) {
    const params = cursor === undefined ? {} : { cursor };
    const answer = await client.request({ method: "tools/list", params }, ListToolsResultSchema, {
      signal,
      timeout: LIST_TIMEOUT_MS,
    });
    for (const tool of answer.tools) {
      tools.push({
        name: tool.name,
        description: tool.description ?? "",
        inputSchema: tool.inputSchema as JsonObject,
      });
    }
    cursor = answer.nextCursor;
    if (cursor === undefined || cursor === "") return { tools, warnings };
    if (page >= LIST_MAX_PAGES || tools.length >= LIST_MAX_TOOLS || seen.has(cursor)) {
      const message = `${server}: the list of tools does not end; its first ${tools.length} are used`;
      return { tools, warnings: [{ server, code: "mcp_list_tools_failed", message }] };
    }
    seen.add(cursor);
  }
}

async function openTransport(options: ConnectionOptions, token: readonly string[]): Promise<Opened> {
  const { server, grant, baseEnv, cwd, clock, logger } = options;
  const target = serverTransport(options.spec);
  switch (target.kind) {
    case "contradictory":
      throw new McpError("mcp_failed", `its entry is contradictory: ${target.reason}`);
    case "stdio": {
      const codec = await import("@modelcontextprotocol/sdk/shared/stdio.js");
      const env = childEnvironment(baseEnv, target.env, grant);
      const redact: Redact = redactor([...token, ...environmentSecrets(env, target.env)]);
      const stdio = createStdioTransport(
        {
          command: target.command,
          args: target.args,
          env,
          cwd: resolve(cwd, target.cwd ?? "."),
          clock,
          logger,
          server,
          redact,
        },
        codec,
      );
      return { transport: stdio, stdio };
    }
    case "http": {
      const { StreamableHTTPClientTransport } = await import(
        "@modelcontextprotocol/sdk/client/streamableHttp.js"
      );
      const transport = new StreamableHTTPClientTransport(new URL(target.url), {
        requestInit: { headers: requestHeaders(target.headers, grant) },
        fetch: directFetch,
      });
      return { transport, farewell: () => transport.terminateSession() };
    }
    case "sse": {
      if (grant !== "unselected") throw new BugError("an SSE server holds no continuation authority");
      const { SSEClientTransport } = await import("@modelcontextprotocol/sdk/client/sse.js");
      const transport = new SSEClientTransport(new URL(target.url), {
        requestInit: { headers: requestHeaders(target.headers, grant) },
        fetch: directFetch,
      });
      return { transport };
    }
  }
}

/** A loopback server is reached directly: its claim token must not pass a proxy that the environment names. */
function directFetch(url: string | URL, init?: RequestInit): Promise<Response> {
  return fetch(url, isLoopbackUrl(String(url)) ? { ...init, proxy: false } : init);
}

/** Waits for a courtesy at most 5 seconds, and for its failure not at all. */
async function bounded(clock: Clock, work: Promise<void> | undefined): Promise<void> {
  if (work === undefined) return;
  const late = Promise.withResolvers<void>();
  const cancel = clock.timer(CLOSE_TIMEOUT_MS, () => late.resolve());
  await Promise.race([work.catch(() => {}), late.promise]);
  cancel();
}
