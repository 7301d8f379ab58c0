import { type ArgsDef, type CommandDef, defineCommand, type ParsedArgs } from "citty";
import { CliError } from "../core/errors.ts";
import type { ExitCode } from "./io.ts";

/** A command that does something. `run` returns the exit code; a failure is thrown as a typed error. */
export function leaf<const T extends ArgsDef>(
  name: string,
  description: string,
  args: T,
  run: (args: ParsedArgs<T>) => Promise<ExitCode>,
): CommandDef {
  const command = defineCommand({ meta: { name, description }, args, run: (context) => run(context.args) });
  // Its own arguments are an inner matter of a command: run.ts parses them by the definition that it carries.
  return command as CommandDef;
}

/** A command that only holds others. `args` are flags with a value that may stand before the name of one. */
export function branch(
  name: string,
  description: string,
  subCommands: Record<string, () => Promise<CommandDef>>,
  options: { args?: ArgsDef; default?: string } = {},
): CommandDef {
  return defineCommand({
    meta: { name, description },
    ...(options.args === undefined ? {} : { args: options.args }),
    ...(options.default === undefined ? {} : { default: options.default }),
    subCommands,
  });
}

/** The hidden command that guards the MCP servers of a host, which starts it. */
export const GUARD_COMMAND = "mcp-guard";

/** Flags of every command that reads the configuration. */
export const CONFIG_ARGS = {
  config: {
    type: "string",
    valueHint: "path",
    description: "Configuration file (default: mono-agent.config.json in this folder)",
  },
  "env-file": {
    type: "string",
    valueHint: "path",
    description: "KEY=VALUE file; variables that are set already are kept",
  },
} as const satisfies ArgsDef;

export const JSON_ARG = {
  json: { type: "boolean", description: "Print JSON" },
} as const satisfies ArgsDef;

/** For tests: judges what depends on time as of then. Left out of usage texts (run.ts). */
export const AS_OF_ARG = {
  "as-of": { type: "string", valueHint: "date", description: "The time to take for now" },
} as const satisfies ArgsDef;

/** The value of AS_OF_ARG in milliseconds. */
export function asOfMs(text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  const ms = Date.parse(text);
  if (Number.isNaN(ms)) throw new CliError("usage", "--as-of must be a date");
  return ms;
}
