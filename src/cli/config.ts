import type { CommandDef } from "citty";
import { effectiveConfig, printJsonSchema } from "../config/show.ts";
import { branch, CONFIG_ARGS, leaf } from "./command.ts";
import type { CliIo } from "./io.ts";
import { configOf } from "./settings.ts";

export function configCommand(io: CliIo): CommandDef {
  return branch("config", "Show the configuration, or the schema of its file", {
    show: async () => showCommand(io),
    schema: async () => schemaCommand(io),
  });
}

function showCommand(io: CliIo): CommandDef {
  const description = "Print the effective configuration: defaults and environment applied, no secrets";
  return leaf("show", description, CONFIG_ARGS, async (args) => {
    const { config } = configOf(args, io, { secretsOptional: true });
    io.out(`${JSON.stringify(effectiveConfig(config), null, 2)}\n`);
    return 0;
  });
}

function schemaCommand(io: CliIo): CommandDef {
  return leaf("schema", "Print the JSON Schema of mono-agent.config.json", {}, async () => {
    io.out(printJsonSchema());
    return 0;
  });
}
