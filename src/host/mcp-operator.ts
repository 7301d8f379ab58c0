import type { LoadedConfig } from "../config/load.ts";
import { errorText, McpError } from "../core/errors.ts";
import type { JsonValue } from "../core/json.ts";
import { isEnabled, type McpServerSpec, type ServerTransport, serverTransport } from "../core/mcp-servers.ts";
import type { ToolOutcome } from "../core/ports/tools.ts";
import { publicEnvironment, valuesOf } from "../mcp/claim-injection.ts";
import { type Connection, createConnection } from "../mcp/connection.ts";
import type { Listing } from "../mcp/listing.ts";
import { logIn } from "../mcp/oauth-login.ts";
import type { OAuthStore } from "../mcp/oauth-store.ts";
import { loginStore, type McpDeps, mcpOptions } from "./mcp-tools.ts";

/** What people who connect servers ask of them, beside a running host or without one. */

export interface McpServerRow {
  readonly name: string;
  readonly transport: "stdio" | "http" | "sse" | "contradictory";
  /** The command, or the origin of the URL; never arguments, which may hold secrets. */
  readonly target: string;
  readonly enabled: boolean;
  readonly trusted: boolean;
  readonly continuations: boolean;
  readonly requestContext: boolean;
  /** Whether somebody logged in with `mcp login`; absent where that is not possible. */
  readonly login?: boolean;
  /** Why the file of its login can't be used; `login` is false then. */
  readonly loginProblem?: string;
}

/** Every configured server, in the order of the file. Nothing is started or sent. */
export function mcpServerRows(config: LoadedConfig, deps: McpDeps): McpServerRow[] {
  return [...config.mcpServers].map(([name, spec]) => {
    const transport = serverTransport(spec);
    return {
      name,
      transport: transport.kind,
      target: targetOf(transport),
      enabled: isEnabled(spec),
      trusted: spec.trusted === true,
      continuations: config.tools.continuationServers.includes(name),
      requestContext: config.tools.mcpRequestContextServers.includes(name),
      ...("url" in transport ? loginState(loginStore(config, deps, name, transport.url)) : {}),
    };
  });
}

function loginState(store: OAuthStore): Pick<McpServerRow, "login" | "loginProblem"> {
  try {
    return { login: store.read()?.tokens !== undefined };
  } catch (error) {
    return { login: false, loginProblem: errorText(error) };
  }
}

function targetOf(transport: ServerTransport): string {
  switch (transport.kind) {
    case "stdio":
      return transport.command;
    case "contradictory":
      return transport.reason;
    default:
      return new URL(transport.url).origin;
  }
}

export interface McpServerReport {
  readonly server: string;
  readonly version: string;
  readonly protocol: string | undefined;
  /** From the start to the list of tools, in milliseconds. */
  readonly connectMs: number;
  readonly tools: readonly { readonly name: string; readonly description: string; readonly digest: string }[];
  readonly warnings: readonly string[];
}

/** Starts or reaches a server and reads its list. Rejects with `mcp_failed` when that is not possible. */
export async function testMcpServer(
  config: LoadedConfig,
  deps: McpDeps,
  name: string,
  signal: AbortSignal,
): Promise<McpServerReport> {
  const started = deps.clock.now();
  return withServer(config, deps, name, signal, async (connection, listing) => {
    const about = connection.about();
    return {
      server: name,
      version: about?.version ?? "unknown",
      protocol: about?.protocol,
      connectMs: deps.clock.now() - started,
      tools: listing.tools.map(({ name: tool, description, digest }) => ({
        name: tool,
        description,
        digest,
      })),
      warnings: listing.warnings.map(({ message }) => message),
    };
  });
}

/** Calls one tool. Rejects with `mcp_failed` when the server can't be reached or the outcome is unknown. */
export async function callMcpTool(
  config: LoadedConfig,
  deps: McpDeps,
  request: {
    readonly server: string;
    readonly tool: string;
    readonly input: JsonValue;
    readonly signal: AbortSignal;
  },
): Promise<ToolOutcome> {
  const { server, tool, input, signal } = request;
  return withServer(config, deps, server, signal, async (connection, listing) => {
    if (!listing.tools.some(({ name }) => name === tool)) {
      // The server's own words, for a terminal.
      const names = listing.tools.map(({ name }) => name.replace(/\p{Cc}/gu, " ")).join(", ");
      throw new McpError("mcp_failed", `${server} offers no tool "${tool}"; it offers: ${names || "none"}`);
    }
    return connection.call(tool, input, signal);
  });
}

/** Logs a person in to a remote server. Resolves with the path of the file that keeps the login. */
export async function loginMcpServer(
  config: LoadedConfig,
  deps: McpDeps,
  request: { readonly server: string; readonly signal: AbortSignal; readonly show: (url: string) => void },
): Promise<string> {
  const spec = specOf(config, request.server);
  const transport = serverTransport(spec);
  if (transport.kind !== "http" && transport.kind !== "sse") {
    throw new McpError("mcp_failed", `${request.server}: only a remote server has a login`);
  }
  const store = loginStore(config, deps, request.server, transport.url);
  const { signal, show } = request;
  await logIn({ spec, store, ids: deps.ids, clock: deps.clock, signal, show });
  return store.path;
}

async function withServer<T>(
  config: LoadedConfig,
  deps: McpDeps,
  server: string,
  signal: AbortSignal,
  work: (connection: Connection, listing: Listing) => Promise<T>,
): Promise<T> {
  const spec = specOf(config, server);
  const options = mcpOptions(config, deps);
  const { tools } = config;
  const selected = tools.continuationServers.includes(server);
  const connection = createConnection({
    server,
    spec,
    // There is no run that could give authority or context: a selected server sees the names empty.
    grant: selected ? "empty" : "unselected",
    context: tools.mcpRequestContextServers.includes(server)
      ? { conversationId: "", runId: "", outputDir: "" }
      : "unselected",
    baseEnv: selected ? options.baseEnv : publicEnvironment(options.baseEnv, options.withheldEnv),
    authority: valuesOf(options.baseEnv, options.withheldEnv),
    cwd: options.cwd,
    timeouts: options.requestTimeouts,
    clock: deps.clock,
    logger: deps.logger,
    guard: options.guard,
    oauth: spec.url === undefined ? undefined : options.oauthStore?.(server, spec.url),
  });
  try {
    const listing = await connection.connect(signal);
    if (listing.failed) {
      throw new McpError("mcp_failed", listing.warnings.map(({ message }) => message).join("; "));
    }
    return await work(connection, listing);
  } finally {
    await connection.close();
    options.guard?.close();
  }
}

function specOf(config: LoadedConfig, server: string): McpServerSpec {
  const spec = config.mcpServers.get(server);
  if (spec !== undefined) return spec;
  const names = [...config.mcpServers.keys()].join(", ");
  throw new McpError("mcp_failed", `there is no server "${server}"; mcp.json declares: ${names || "none"}`);
}
