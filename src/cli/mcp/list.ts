import type { CommandDef } from "citty";
import { CONFIG_ARGS, JSON_ARG, leaf } from "../command.ts";
import type { CliIo } from "../io.ts";
import { mcpSession } from "./session.ts";

export function listCommand(io: CliIo): CommandDef {
  const args = { ...CONFIG_ARGS, ...JSON_ARG } as const;
  return leaf("list", "List the servers of mcp.json; nothing is started", args, async (flags) => {
    const { config, deps } = mcpSession(flags, io);
    const { mcpServerRows } = await import("../../host/mcp-operator.ts");
    const servers = mcpServerRows(config, deps);
    if (flags.json === true) {
      io.out(`${JSON.stringify({ servers }, null, 2)}\n`);
      return 0;
    }
    if (config.tools.mcpConfigPath === undefined) io.err("tools.mcpConfigPath is not set\n");
    for (const server of servers) {
      const marks = [
        ...(server.enabled ? [] : ["off"]),
        ...(server.trusted ? ["trusted"] : []),
        ...(server.continuations ? ["may answer later"] : []),
        ...(server.requestContext ? ["gets the run's context"] : []),
        ...(server.login === true ? ["logged in"] : []),
      ];
      io.out(`${[server.name, server.transport, server.target, marks.join(", ")].join("  ").trimEnd()}\n`);
      if (server.loginProblem !== undefined) io.err(`warning: ${server.name}: ${server.loginProblem}\n`);
    }
    return 0;
  });
}
