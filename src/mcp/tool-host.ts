import { McpError } from "../core/errors.ts";
import { continuationEligibility, type McpServerSpec } from "../core/mcp-servers.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";
import type { ToolHost, ToolSession, ToolSessionRequest } from "../core/ports/tools.ts";
import { buildCatalogue } from "./catalogue.ts";
import { createConnection, type RequestTimeouts } from "./connection.ts";

export type { RequestTimeouts } from "./connection.ts";

export interface ToolHostOptions {
  /** By name, in the order of the configuration. Never changed here. */
  readonly servers: Readonly<Record<string, McpServerSpec>>;
  /** Names of the servers that may hold continuation authority (`tools.continuationServers`). */
  readonly continuationServers: readonly string[];
  readonly requestTimeouts: RequestTimeouts;
  /** Where stdio servers start; a relative `cwd` of a server counts from here. */
  readonly cwd: string;
  /** The environment that stdio servers inherit. */
  readonly baseEnv: Readonly<Record<string, string | undefined>>;
  /** Variables of `baseEnv` that only selected servers inherit: tokens of detached services are authority too. */
  readonly withheldEnv: readonly string[];
  readonly clock: Clock;
  readonly logger: Logger;
}

/**
 * The MCP side of the host: clients are made for each run and closed at its end.
 *
 * I1. A selected server that may not hold authority stops `open` before any process or connection starts.
 * I2. Only selected servers receive claim values, and only those that the run holds for them by name.
 * I3. After `close` nothing that this host started is running.
 */
export function createToolHost(options: ToolHostOptions): ToolHost {
  const { servers, cwd, baseEnv, clock, logger } = options;
  const selected = new Set(options.continuationServers);
  const withheld = new Set(options.withheldEnv);
  const publicEnv = Object.fromEntries(Object.entries(baseEnv).filter(([name]) => !withheld.has(name)));
  const live = new Set<() => Promise<void>>();
  let closed = false;

  const refuseUnsupported = () => {
    for (const name of selected) {
      const spec = Object.hasOwn(servers, name) ? servers[name] : undefined;
      // A name that is not in the file is reported by the check of the configuration; a run skips it.
      const eligible = spec === undefined ? "stdio" : continuationEligibility(spec);
      if (typeof eligible === "object") {
        throw new McpError(
          "unsupported_continuation_server",
          `server "${name}" can't hold continuation authority: ${eligible.unsupported}`,
        );
      }
    }
  };

  const open = async (request: ToolSessionRequest): Promise<ToolSession> => {
    if (closed) throw new McpError("mcp_failed", "the tool host is closed");
    refuseUnsupported();
    if (request.signal.aborted) throw new McpError("mcp_failed", "opening the tools was aborted");
    const connections = Object.entries(servers).map(([server, spec]) =>
      createConnection({
        server,
        spec,
        grant: selected.has(server) ? (request.capabilities.get(server) ?? "empty") : "unselected",
        baseEnv: selected.has(server) ? baseEnv : publicEnv,
        cwd,
        timeouts: options.requestTimeouts,
        clock,
        logger,
      }),
    );
    let closing: Promise<void> | undefined;
    const close = () => {
      closing ??= Promise.all(connections.map((connection) => connection.close())).then(() => {
        live.delete(close);
      });
      return closing;
    };
    live.add(close);

    const listings = await Promise.all(
      connections.map(async (connection) => ({
        server: connection.server,
        ...(await connection.connect(request.signal)),
      })),
    );
    if (request.signal.aborted || closing !== undefined) {
      await close();
      throw new McpError("mcp_failed", "opening the tools was aborted");
    }
    const catalogue = buildCatalogue(listings);
    const byName = new Map(catalogue.tools.map((tool) => [tool.name, tool]));
    return {
      tools: catalogue.tools,
      warnings: [...listings.flatMap((listing) => listing.warnings), ...catalogue.warnings],
      async call(name, input, signal) {
        const tool = byName.get(name);
        const connection = connections.find((each) => each.server === tool?.server);
        if (tool === undefined || connection === undefined) {
          return { isError: true, text: `There is no tool named ${name}.` };
        }
        return connection.call(tool.tool, input, signal);
      },
      close,
    };
  };

  return {
    open,
    async close() {
      closed = true;
      await Promise.all([...live].map((close) => close()));
    },
  };
}
