import { resolve } from "node:path";
import { type Environment, overlayEnvFile } from "../config/environment.ts";
import { type LoadedConfig, type LoadOptions, loadConfig } from "../config/load.ts";
import { CONFIG_FILE_MAX_BYTES, readTextFile } from "../config/text-file.ts";
import { CliError } from "../core/errors.ts";
import type { CliIo } from "./io.ts";
import { programOf } from "./shell.ts";

/** The values of CONFIG_ARGS. */
export interface ConfigFlags {
  readonly config?: string | undefined;
  readonly "env-file"?: string | undefined;
}

/** The process's environment, completed by `--env-file`. Without the flag no file is read. */
export function environmentOf(flags: ConfigFlags, io: CliIo): Environment {
  const given = flags["env-file"];
  if (given === undefined) return io.env;
  const path = resolve(io.cwd, given);
  const file = readTextFile(path, CONFIG_FILE_MAX_BYTES);
  if (file.kind !== "text") {
    throw new CliError(
      "operation_failed",
      `${path}: ${file.kind === "missing" ? "there is no such file" : file.reason}`,
    );
  }
  const overlaid = overlayEnvFile(file.text, io.env);
  if ("env" in overlaid) return overlaid.env;
  throw new CliError("operation_failed", `${path}: line ${overlaid.badLine} is not KEY=VALUE`);
}

/** Loads the configuration that the flags name. Warnings go to standard error. */
export function configOf(
  flags: ConfigFlags,
  io: CliIo,
  options: Pick<LoadOptions, "isServerNeeded" | "withoutServers"> & { secretsOptional: boolean },
): { config: LoadedConfig; env: Environment } {
  const env = environmentOf(flags, io);
  const config = loadConfig({
    cwd: io.cwd,
    configPath: flags.config,
    env,
    program: programOf(io),
    ...options,
  });
  for (const warning of config.warnings) io.err(`warning: ${warning}\n`);
  return { config, env };
}
