import type { CommandDef } from "citty";
import { CliError } from "../../core/errors.ts";
import { isJsonObject, type JsonObject } from "../../core/json.ts";
import { printable } from "../chat/screen.ts";
import { leaf } from "../command.ts";
import type { CliIo } from "../io.ts";
import { MCP_ARGS, mcpSession, NAME_ARG, stoppable } from "./session.ts";

/** Prints the result as the model would read it. Exit 1 when the tool says that it failed. */
export function callCommand(io: CliIo): CommandDef {
  const args = {
    ...NAME_ARG,
    tool: { type: "positional", required: true, description: "Name of the tool at its server" },
    input: { type: "positional", required: false, description: "Arguments, one JSON object (default: {})" },
    ...MCP_ARGS,
  } as const;
  return leaf("call", "Call one tool of a server", args, async (flags) => {
    const input = inputOf(flags.input ?? "{}");
    const { name: server, tool } = flags;
    const { config, deps } = mcpSession(flags, io, server);
    const { callMcpTool } = await import("../../host/mcp-operator.ts");
    const outcome = await stoppable(io, (signal) =>
      callMcpTool(config, deps, { server, tool, input, signal }),
    );
    if (flags.json === true) io.out(`${JSON.stringify(outcome, null, 2)}\n`);
    else if (outcome.isError) io.err(`error: ${printable(outcome.text)}\n`);
    else io.out(`${printable(outcome.text)}\n`);
    return outcome.isError ? 1 : 0;
  });
}

function inputOf(text: string): JsonObject {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new CliError("usage", "the arguments are not JSON");
  }
  if (isJsonObject(value)) return value;
  throw new CliError("usage", "the arguments must be one JSON object");
}
