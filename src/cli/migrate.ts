import { resolve } from "node:path";
import type { CommandDef } from "citty";
import { CliError } from "../core/errors.ts";
import { createClock } from "../platform/clock.ts";
import { createLogger } from "../platform/logger.ts";
import { AS_OF_ARG, asOfMs, CONFIG_ARGS, JSON_ARG, leaf } from "./command.ts";
import type { CliIo, ExitCode } from "./io.ts";
import { planText, sizeText } from "./migrate-plan.ts";
import { progressBar } from "./migrate-progress.ts";
import { type ConfigFlags, configOf } from "./settings.ts";

const ARGS = {
  "dry-run": { type: "boolean", description: "Only say what would happen; exit 1 when it would be refused" },
  "state-dir": {
    type: "string",
    valueHint: "folder",
    description: "With --dry-run: this continuation state, without a configuration",
  },
  "prune-legacy": {
    type: "boolean",
    description: "Remove the files of older formats that a conversion left, once a backup holds all of them",
  },
  backup: {
    type: "string",
    valueHint: "path",
    description: "With --prune-legacy: that backup (default: the one made before the conversion)",
  },
  ...CONFIG_ARGS,
  ...JSON_ARG,
  ...AS_OF_ARG,
} as const;

export function migrateCommand(io: CliIo): CommandDef {
  const description = "Convert continuation state of an older format, without starting a host";
  return leaf("migrate", description, ARGS, async (args): Promise<ExitCode> => {
    const dryRun = args["dry-run"] === true;
    const prune = args["prune-legacy"] === true;
    if (prune && dryRun) throw new CliError("usage", "--prune-legacy and --dry-run exclude each other");
    if (args.backup !== undefined && !prune)
      throw new CliError("usage", "--backup is only for --prune-legacy");
    if (args["state-dir"] !== undefined && !dryRun)
      throw new CliError("usage", "--state-dir is only for --dry-run");

    const { migrateState, previewMigration, pruneLegacyState } = await import("../host/migrate.ts");
    const print = (report: object, text: string) =>
      io.out(args.json === true ? `${JSON.stringify(report, null, 2)}\n` : text);
    const logger = createLogger({ level: "info", json: false, color: io.errColor, write: io.err });

    if (prune) {
      const given = args.backup === undefined ? undefined : resolve(io.cwd, args.backup);
      const report = await pruneLegacyState(loaded(args, io), logger, given);
      const text =
        report.backup === undefined
          ? "nothing of an older format is left\n"
          : `removed ${report.files} files of older formats, ${sizeText(report.bytes)}; all of them are in ${report.backup}\n`;
      print(report, text);
      return 0;
    }

    const clock = createClock();
    const bar = io.errColor ? progressBar(io.err, clock) : undefined;
    const options = { asOfMs: asOfMs(args["as-of"]), onProgress: bar?.progress };
    try {
      const config = args["state-dir"] === undefined ? loaded(args, io) : undefined;
      const state = config?.continuations ?? { stateDir: resolve(io.cwd, args["state-dir"] ?? "") };
      const plan = previewMigration(state, options);
      if (config === undefined && plan.ok && !plan.exists) {
        throw new CliError("operation_failed", `there is no folder ${plan.stateDir}`);
      }
      if (dryRun || plan.kind === "none" || !plan.ok || config === undefined) {
        bar?.end();
        print(plan, planText(plan));
        return plan.ok ? 0 : 1;
      }
      const startMs = clock.now();
      const { records } = await migrateState(config, logger, options);
      bar?.end();
      const seconds = ((clock.now() - startMs) / 1000).toFixed(1);
      print(
        { ...plan, recordsKept: records },
        `${planText(plan)}converted in ${seconds} s; ${records} records are kept\n`,
      );
      return 0;
    } finally {
      bar?.end();
    }
  });
}

function loaded(flags: ConfigFlags, io: CliIo) {
  const { config } = configOf(flags, io, { secretsOptional: true, withoutServers: true });
  if (config.continuations === undefined) {
    throw new CliError(
      "config_invalid",
      "continuations are off in this configuration: there is no state to convert",
    );
  }
  return config;
}
