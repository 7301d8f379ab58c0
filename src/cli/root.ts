import type { CommandDef } from "citty";
import { branch, GUARD_COMMAND } from "./command.ts";
import type { CliIo, ExitCode } from "./io.ts";
import { runCli } from "./run.ts";

/** Every command, loaded only when it is asked for, so that `--version` loads none. */
export function rootCommand(io: CliIo): CommandDef {
  return branch("mono-agent", "An agent host that never loses, duplicates or misroutes an answer", {
    init: async () => (await import("./init.ts")).initCommand(io),
    serve: async () => (await import("./serve.ts")).serveCommand(io),
    chat: async () => (await import("./chat.ts")).chatCommand(io),
    doctor: async () => (await import("./doctor.ts")).doctorCommand(io),
    migrate: async () => (await import("./migrate.ts")).migrateCommand(io),
    backup: async () => (await import("./backup.ts")).backupCommand(io),
    restore: async () => (await import("./restore.ts")).restoreCommand(io),
    continuations: async () => (await import("./continuations/command.ts")).continuationsCommand(io),
    model: async () => (await import("./model.ts")).modelCommand(io),
    mcp: async () => (await import("./mcp.ts")).mcpCommand(io),
    [GUARD_COMMAND]: async () => (await import("./mcp.ts")).mcpGuardCommand(),
    config: async () => (await import("./config.ts")).configCommand(io),
    torture: async () => (await import("./torture.ts")).tortureCommand(io),
    demo: async () => (await import("./demo/command.ts")).demoCommand(io),
    example: async () => (await import("./example.ts")).exampleCommand(io),
  });
}

/** Runs one command line of mono-agent. */
export function runMonoAgent(args: readonly string[], io: CliIo): Promise<ExitCode> {
  return runCli(rootCommand(io), args, io);
}
