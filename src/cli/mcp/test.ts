import type { CommandDef } from "citty";
import { leaf } from "../command.ts";
import type { CliIo } from "../io.ts";
import { MCP_ARGS, mcpSession, NAME_ARG, stoppable } from "./session.ts";

/** Exit 1 also when the server works but the configuration names tools that it does not have. */
export function testCommand(io: CliIo): CommandDef {
  const description = "Start or reach a server and show what it offers";
  return leaf("test", description, { ...NAME_ARG, ...MCP_ARGS }, async (args) => {
    const { config, deps } = mcpSession(args, io, args.name);
    const { testMcpServer } = await import("../../host/mcp-operator.ts");
    const report = await stoppable(io, (signal) => testMcpServer(config, deps, args.name, signal));
    if (args.json === true) io.out(`${JSON.stringify(report, null, 2)}\n`);
    else {
      const protocol = report.protocol === undefined ? "" : `, protocol ${report.protocol}`;
      io.out(
        `${report.server}: ${firstLine(report.version)}${protocol}, ready after ${report.connectMs} ms\n`,
      );
      for (const tool of report.tools) io.out(`  ${firstLine(tool.name)}  ${firstLine(tool.description)}\n`);
      if (report.tools.length === 0) io.out("  no tools\n");
      for (const warning of report.warnings) io.err(`warning: ${warning}\n`);
    }
    return report.warnings.length === 0 ? 0 : 1;
  });
}

const LINE_MAX_CHARS = 100;

/** A server's own words, kept to one line of printable characters. */
function firstLine(text: string): string {
  const line = (text.split("\n")[0] ?? "").replace(/\p{Cc}/gu, " ").trim();
  return line.length > LINE_MAX_CHARS ? `${line.slice(0, LINE_MAX_CHARS)}…` : line;
}
