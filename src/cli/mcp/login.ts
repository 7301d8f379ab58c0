import type { CommandDef } from "citty";
import { leaf } from "../command.ts";
import type { CliIo } from "../io.ts";
import { MCP_ARGS, mcpSession, NAME_ARG, stoppable } from "./session.ts";

export function loginCommand(io: CliIo): CommandDef {
  const description = "Log in to a remote server with a browser on this machine (OAuth)";
  return leaf("login", description, { ...NAME_ARG, ...MCP_ARGS }, async (args) => {
    const { name: server } = args;
    const { config, deps } = mcpSession(args, io, server);
    const { loginMcpServer } = await import("../../host/mcp-operator.ts");
    const show = (url: string) => io.err(`open this page to log in to ${server}:\n${url}\n`);
    const path = await stoppable(io, (signal) => loginMcpServer(config, deps, { server, signal, show }));
    if (args.json === true) io.out(`${JSON.stringify({ server, loggedIn: true, path }, null, 2)}\n`);
    else io.out(`logged in to ${server}; the tokens are in ${path}\n`);
    return 0;
  });
}
