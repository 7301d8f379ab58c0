import type { CommandDef } from "citty";
import { branch, GUARD_COMMAND, leaf } from "./command.ts";
import type { CliIo } from "./io.ts";

/** `mono-agent mcp`: for people who connect MCP servers. Without an action it lists them. */
export function mcpCommand(io: CliIo): CommandDef {
  return branch(
    "mcp",
    "See, try and log in to the MCP servers of mcp.json",
    {
      list: async () => (await import("./mcp/list.ts")).listCommand(io),
      test: async () => (await import("./mcp/test.ts")).testCommand(io),
      call: async () => (await import("./mcp/call.ts")).callCommand(io),
      login: async () => (await import("./mcp/login.ts")).loginCommand(io),
    },
    { default: "list" },
  );
}

/** Not for people: the process that a host starts to end its MCP servers when it is killed itself. */
export function mcpGuardCommand(): CommandDef {
  const command = leaf(GUARD_COMMAND, "Guard of a host's MCP servers (started by the host)", {}, async () => {
    const { runMcpGuard } = await import("../host/mcp-guard.ts");
    await runMcpGuard();
    return 0;
  });
  return { ...command, meta: { name: GUARD_COMMAND, hidden: true } };
}
