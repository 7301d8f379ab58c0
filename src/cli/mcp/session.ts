import type { LoadedConfig } from "../../config/load.ts";
import type { McpDeps } from "../../host/mcp-tools.ts";
import { createClock } from "../../platform/clock.ts";
import { createFileSystem } from "../../platform/filesystem.ts";
import { createIds } from "../../platform/ids.ts";
import { createLogger, type LogLevel } from "../../platform/logger.ts";
import { CONFIG_ARGS, GUARD_COMMAND, JSON_ARG } from "../command.ts";
import type { CliIo } from "../io.ts";
import { type ConfigFlags, configOf } from "../settings.ts";

/** What the `mcp` commands share. */

export const MCP_ARGS = {
  verbose: { type: "boolean", description: "Show what the server writes to its standard error" },
  ...CONFIG_ARGS,
  ...JSON_ARG,
} as const;

export const NAME_ARG = {
  name: { type: "positional", required: true, description: "Name of the server in mcp.json" },
} as const;

export interface McpSession {
  readonly config: LoadedConfig;
  readonly deps: McpDeps;
}

/** The configuration and the real platform. Only the named server, or all, must find the variables it refers to. */
export function mcpSession(
  flags: ConfigFlags & { readonly verbose?: boolean | undefined },
  io: CliIo,
  needed?: string,
): McpSession {
  // No model is called and no service is served, so their secrets are not needed.
  const { config, env } = configOf(flags, io, {
    secretsOptional: true,
    isServerNeeded: (server) => needed === undefined || server === needed,
  });
  const level: LogLevel = flags.verbose === true ? "debug" : "warn";
  const deps: McpDeps = {
    env,
    clock: createClock(),
    ids: createIds(),
    fs: createFileSystem(),
    logger: createLogger({ level, json: false, color: io.errColor, write: io.err }),
    guardCommand: [...io.self, GUARD_COMMAND],
  };
  return { config, deps };
}

/** Runs `work` until it ends or the person stops it. */
export async function stoppable<T>(io: CliIo, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const stopped = new AbortController();
  const forget = io.onStop(() => stopped.abort());
  try {
    return await work(stopped.signal);
  } finally {
    forget();
  }
}
