import type { CommandDef } from "citty";
import type { LoadedConfig } from "../config/load.ts";
import { CliError, errorText, StoreError } from "../core/errors.ts";
import type { Logger } from "../core/ports/platform.ts";
import type { MonoAgentApp } from "../host/index.ts";
import { createLogger, LOG_LEVELS } from "../platform/logger.ts";
import { CONFIG_ARGS, GUARD_COMMAND, leaf } from "./command.ts";
import type { CliIo } from "./io.ts";
import { requireSameSelections } from "./mcp/reload.ts";
import { type ConfigFlags, configOf } from "./settings.ts";
import { programOf, typedFlags } from "./shell.ts";

const SERVE_ARGS = {
  ...CONFIG_ARGS,
  "log-level": {
    type: "string",
    default: "info",
    valueHint: LOG_LEVELS.join("|"),
    description: "Least level that is logged",
  },
  json: { type: "boolean", description: "Log lines of JSON" },
} as const;

export function serveCommand(io: CliIo): CommandDef {
  return leaf("serve", "Run the host until SIGINT or SIGTERM", SERVE_ARGS, async (args) => {
    const level = LOG_LEVELS.find((known) => known === args["log-level"]);
    if (level === undefined)
      throw new CliError("usage", `--log-level must be one of ${LOG_LEVELS.join(", ")}`);
    const { config, env } = configOf(args, io, { secretsOptional: false });
    // The listeners keep the process alive: without one nothing would wait for the turns that the start takes up again.
    if (!config.terminal.enabled && config.continuations === undefined) {
      throw new CliError("config_invalid", "there is nothing to serve: enable terminal or continuations");
    }
    const logger = createLogger({
      level,
      json: args.json === true,
      color: io.errColor,
      write: io.err,
    });
    const stopped = Promise.withResolvers<void>();
    const forget = io.onStop(stopped.resolve);
    const { startMonoAgent } = await import("../host/index.ts");
    const app = await startMonoAgent({
      config,
      logger,
      env,
      guardCommand: [...io.self, GUARD_COMMAND],
    }).catch((error: unknown) => {
      throw withWayOut(
        error,
        `${programOf(io)} doctor${typedFlags({ config: args.config, "env-file": args["env-file"] })}`,
      );
    });
    for (const [name, address] of Object.entries(app.addresses)) logger.info("listening", { name, address });
    const forgetReload = io.onReload(() => reloadServers(app, config, args, io, logger));
    await stopped.promise;
    forgetReload();
    logger.info("stopping");
    await app.stop();
    forget();
    logger.info("stopped");
    return 0;
  });
}

/** Reads mcp.json again. What is wrong with it is said, and the host goes on with what it has. */
function reloadServers(
  app: MonoAgentApp,
  running: LoadedConfig,
  flags: ConfigFlags,
  io: CliIo,
  logger: Logger,
): void {
  try {
    const { config } = configOf(flags, io, { secretsOptional: true, isServerNeeded: () => true });
    requireSameSelections(running, config);
    app.rotateMcpServers(config.mcpServers);
    logger.info("mcp.json was read again", { servers: config.mcpServers.size });
  } catch (error) {
    logger.error("mcp.json was not read again; the servers stay as they are", { error: errorText(error) });
  }
}

/** The start stops at the first bad file. `doctor` names all of them, and what to do about each. */
function withWayOut(error: unknown, doctor: string): unknown {
  if (!(error instanceof StoreError)) return error;
  if (error.code !== "store_corrupt" && error.code !== "store_unsafe_file") return error;
  return new CliError(error.code, `${error.message}; \`${doctor}\` says what to do`, { cause: error });
}
