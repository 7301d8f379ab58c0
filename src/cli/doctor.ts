import type { CommandDef } from "citty";
import { type LoadedConfig, loadConfig } from "../config/load.ts";
import { ConfigError } from "../core/errors.ts";
import { type DoctorReport, runDoctor } from "../host/doctor.ts";
import { createClock } from "../platform/clock.ts";
import { createFileSystem } from "../platform/filesystem.ts";
import { AS_OF_ARG, asOfMs, CONFIG_ARGS, JSON_ARG, leaf } from "./command.ts";
import type { CliIo } from "./io.ts";
import { type ConfigFlags, environmentOf } from "./settings.ts";
import { programOf } from "./shell.ts";

/** For people, of one list; JSON has all. */
const LISTED_MAX = 20;

const MARKS = { ok: "✓", waiting: "…", disabled: "–", error: "✗" } as const;

export function doctorCommand(io: CliIo): CommandDef {
  const description = "Check configuration and state without changing anything";
  return leaf("doctor", description, { ...CONFIG_ARGS, ...JSON_ARG, ...AS_OF_ARG }, async (args) => {
    const report = runDoctor({
      config: loaded(args, io),
      fs: createFileSystem(),
      program: programOf(io),
      ...(args.json === true ? {} : { listedMax: LISTED_MAX }),
      nowMs: asOfMs(args["as-of"]) ?? createClock().now(),
    });
    io.out(args.json === true ? `${JSON.stringify(report, null, 2)}\n` : reportText(report));
    return report.ok ? 0 : 1;
  });
}

function loaded(flags: ConfigFlags, io: CliIo): LoadedConfig | ConfigError {
  const env = environmentOf(flags, io);
  try {
    return loadConfig({ cwd: io.cwd, configPath: flags.config, env, program: programOf(io) });
  } catch (error) {
    if (error instanceof ConfigError) return error;
    throw error;
  }
}

function reportText(report: DoctorReport): string {
  const sections = report.sections.map(({ label, status, details }) => {
    const lines = details.map((detail) => `    ${detail}\n`).join("");
    return `${MARKS[status]} ${label}: ${status}\n${lines}`;
  });
  const verdict = report.operationallyReady
    ? "ready"
    : report.ok
      ? "usable, but something waits (see above)"
      : "not usable (see above)";
  return `${sections.join("")}${verdict}\n`;
}
