import { resolve } from "node:path";
import type { CommandDef } from "citty";
import { CliError } from "../core/errors.ts";
import { HOUR_MS, MIB } from "../core/limits.ts";
import { type BackupReport, backupReportSchema } from "../core/wire.ts";
import { createFileSystem } from "../platform/filesystem.ts";
import { CONFIG_ARGS, JSON_ARG, leaf } from "./command.ts";
import { createOperatorClient } from "./continuations/operator-client.ts";
import type { CliIo } from "./io.ts";
import { configOf } from "./settings.ts";
import { programOf } from "./shell.ts";

const BACKUP_ARGS = {
  target: {
    type: "positional",
    required: true,
    description: "A folder, or a file that ends in .tar; it must not be there",
  },
  ...CONFIG_ARGS,
  ...JSON_ARG,
} as const;

/** A backup of many gigabytes may take so long. */
const TIMEOUT_MS = HOUR_MS;

/** The running host makes it itself, in one instant of both stores; without one, this command does, under its locks. */
export function backupCommand(io: CliIo): CommandDef {
  return leaf(
    "backup",
    "Back up the whole state, with a host running or not; verified before it has its name",
    BACKUP_ARGS,
    async (args) => {
      const { config } = configOf(args, io, { secretsOptional: true, withoutServers: true });
      const target = resolve(io.cwd, args.target);
      const { backupStoppedHost } = await import("../host/index.ts");
      const places = { hostDir: config.host.stateDir, stateDir: config.continuations?.stateDir };
      const made = await backupStoppedHost(places, target);
      const report = made === "running" ? await askHost(target) : made;
      io.out(args.json === true ? `${JSON.stringify(report, null, 2)}\n` : reportText(report));
      for (const warning of report.warnings) io.err(`warning: ${warning}\n`);
      return 0;

      async function askHost(path: string): Promise<BackupReport> {
        if (config.continuations === undefined) {
          throw new CliError(
            "operation_failed",
            "a host runs whose continuations are off, so it can't be asked for a backup: stop it first",
          );
        }
        const client = createOperatorClient(config, createFileSystem(), programOf(io));
        const parsed = backupReportSchema.safeParse(
          await client.post("/v1/operator/backup", { path }, TIMEOUT_MS),
        );
        if (!parsed.success)
          throw new CliError("operation_failed", "the host's answer has an unexpected form");
        return parsed.data;
      }
    },
  );
}

function reportText({ path, createdAt, files, records, bytes }: BackupReport): string {
  const size = `${(bytes / MIB).toFixed(1)} MiB`;
  return `${path}\n${files} files (${records} continuations), ${size}, as of ${createdAt}; verified\n`;
}
