import { join, resolve } from "node:path";
import type { CommandDef } from "citty";
import { CliError } from "../core/errors.ts";
import { CONFIG_ARGS, JSON_ARG, leaf } from "./command.ts";
import type { CliIo } from "./io.ts";
import { configOf } from "./settings.ts";
import { programOf } from "./shell.ts";

const RESTORE_ARGS = {
  source: { type: "positional", required: true, description: "What `backup` made: a folder or a .tar" },
  into: {
    type: "string",
    valueHint: "folder",
    description: "An empty or new folder for the state (default: where the configuration says)",
  },
  ...CONFIG_ARGS,
  ...JSON_ARG,
} as const;

export function restoreCommand(io: CliIo): CommandDef {
  return leaf(
    "restore",
    "Put a backup in place as the state of a host; what was unfinished in it is held",
    RESTORE_ARGS,
    async (args) => {
      const { restoreBackup } = await import("../host/index.ts");
      const report = await restoreBackup(resolve(io.cwd, args.source), places());
      if (args.json === true) {
        io.out(`${JSON.stringify(report, null, 2)}\n`);
        return 0;
      }
      io.out(
        `${report.files} files (${report.records} continuations) of ${report.backupCreatedAt} are in ${report.hostDir}\n`,
      );
      if (args.into !== undefined)
        io.out("name it in host.stateDir, and its continuations folder in continuations.stateDir\n");
      if (report.held > 0) {
        const program = programOf(io);
        io.out(
          `${report.held} were unfinished and may have been answered after the backup: the host holds them until they are ` +
            `proved or released; see \`${program} continuations owed\` and \`${program} continuations release\`\n`,
        );
      }
      return 0;

      function places(): { hostDir: string; stateDir: string } {
        if (args.into !== undefined) {
          const hostDir = resolve(io.cwd, args.into);
          return { hostDir, stateDir: join(hostDir, "continuations") };
        }
        const { config } = configOf(args, io, { secretsOptional: true, withoutServers: true });
        if (config.continuations === undefined) {
          throw new CliError(
            "operation_failed",
            `continuations are off in ${config.configPath}, so it does not say where they go: use --into`,
          );
        }
        return { hostDir: config.host.stateDir, stateDir: config.continuations.stateDir };
      }
    },
  );
}
