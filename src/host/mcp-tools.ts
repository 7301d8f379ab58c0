import { join } from "node:path";
import type { LoadedConfig } from "../config/load.ts";
import { StoreError } from "../core/errors.ts";
import type { Clock, FileSystem, Ids, Logger, OwnershipLock } from "../core/ports/platform.ts";
import { createOAuthStore, type OAuthStore } from "../mcp/oauth-store.ts";
import { createProcessGuard } from "../mcp/process-guard.ts";
import type { ToolHostOptions } from "../mcp/tool-host.ts";
import { createRunFolders } from "../platform/run-folders.ts";
import { ownershipLock } from "../store/ownership.ts";
import { embeddedGuardCommand } from "./mcp-guard.ts";
import { RUN_FOLDERS } from "./state-entries.ts";

export interface McpDeps {
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly clock: Clock;
  readonly ids: Ids;
  readonly fs: FileSystem;
  readonly logger: Logger;
  readonly guardCommand: readonly string[] | undefined;
}

/** What the configuration says to the MCP side; nothing is started yet. */
export function mcpOptions(config: LoadedConfig, deps: McpDeps): ToolHostOptions {
  const { clock, ids, logger } = deps;
  const { tools, host, continuations } = config;
  // Windows has no process groups that a guard could end.
  const command = process.platform === "win32" ? undefined : (deps.guardCommand ?? embeddedGuardCommand());
  return {
    servers: Object.fromEntries(config.mcpServers),
    continuationServers: tools.continuationServers,
    requestContextServers: tools.mcpRequestContextServers,
    requestTimeouts: {
      inactivityMs: tools.mcpCallTimeoutMs,
      totalMs: tools.mcpCallMaxTotalTimeoutMs,
    },
    cwd: config.runtime.workspace,
    baseEnv: deps.env,
    withheldEnv: continuations?.detachedServices.map(({ tokenEnv }) => tokenEnv) ?? [],
    outputFolders: createRunFolders(join(host.stateDir, RUN_FOLDERS)),
    ...(command === undefined ? {} : { guard: createProcessGuard({ command, ids, logger }) }),
    oauthStore: (server, serverUrl) => loginStore(config, deps, server, serverUrl),
    clock,
    logger,
  };
}

/** Where the login of a remote server is kept. */
export function loginStore(
  config: LoadedConfig,
  { fs, clock }: Pick<McpDeps, "fs" | "clock">,
  server: string,
  serverUrl: string,
): OAuthStore {
  const { stateDir } = config.host;
  return createOAuthStore({ fs, stateDir, server, serverUrl, lock: loginLock(fs, clock), clock });
}

/** The lock of a login: the operating system frees it when its process dies. Undefined while somebody else holds it. */
export function loginLock(fs: FileSystem, clock: Clock): (path: string) => OwnershipLock | undefined {
  const own = ownershipLock(fs, clock, process.pid);
  return (path) => {
    try {
      return own(path);
    } catch (error) {
      if (error instanceof StoreError && error.code === "store_owned") return undefined;
      throw error;
    }
  };
}

/** Takes away the output folders that a killed host left. The state directory must be owned. */
export function sweepRunFolders(config: LoadedConfig): void {
  createRunFolders(join(config.host.stateDir, RUN_FOLDERS)).sweep();
}
