import { join } from "node:path";
import { readTerminalToken } from "../channels/terminal/token.ts";
import type { LoadedConfig } from "../config/load.ts";
import { hostAndPort } from "../core/address.ts";
import { AppError, ChannelError, ConfigError } from "../core/errors.ts";
import { isEnabled, serverTransport } from "../core/mcp-servers.ts";
import { FileFault, type FileSystem } from "../core/ports/platform.ts";
import { TERMINAL_TOKEN_FILE } from "../core/terminal.ts";
import { checkTurns } from "../turns/check.ts";
import { continuationsSection } from "./doctor-continuations.ts";
import type { DoctorReport, DoctorSection, SectionStatus } from "./doctor-report.ts";
import { readRestored } from "./restored.ts";
import { HOST_DATABASE } from "./state-entries.ts";
import { stateFolderProblem } from "./state-folder.ts";

/**
 * Owns: the report on configuration and state (host-facts.md §8), beside a running host too.
 *
 * I1. Nothing is written, created, locked or repaired; nothing is sent and no port is tried.
 */

export type { DoctorReport, DoctorSection } from "./doctor-report.ts";

export interface DoctorInput {
  /** The configuration, or why there is none. */
  readonly config: LoadedConfig | ConfigError;
  readonly fs: FileSystem;
  /** How the command line is called, for the commands that the report advises. Default: mono-agent. */
  readonly program?: string;
  /** More damaged files, or refusals of a conversion, than these are counted, not listed. Default: all are listed. */
  readonly listedMax?: number;
  /** The time to judge by; milliseconds since the epoch. */
  readonly nowMs: number;
}

/** Checks everything that can be checked without a running host. Never throws for what it finds. */
export function runDoctor({
  config,
  fs,
  program = "mono-agent",
  nowMs,
  listedMax,
}: DoctorInput): DoctorReport {
  if (config instanceof ConfigError) {
    const { problems } = config;
    const details = problems.length === 0 ? [config.message] : problems.map(problemLine);
    return reportOf([{ id: "config", label: "Configuration", status: "error", details }]);
  }
  return reportOf([
    configSection(config),
    modelSection(config),
    toolsSection(config),
    continuationsSection(config, fs, { listedMax, program }, nowMs),
    ...restoredSection(config, fs, program),
    turnsSection(config, fs),
    terminalSection(config, fs),
  ]);
}

function reportOf(sections: readonly DoctorSection[]): DoctorReport {
  const statuses = sections.map((section) => section.status);
  const ok = !statuses.includes("error");
  return {
    ok,
    structurallyValid: sections.some((section) => section.id === "config" && section.status !== "error"),
    operationallyReady: ok && !statuses.includes("waiting"),
    sections,
  };
}

function problemLine({ source, path, message }: ConfigError["problems"][number]): string {
  return `${path === "" ? source : `${path} (${source})`}: ${message}`;
}

function configSection(config: LoadedConfig): DoctorSection {
  const details = [config.configPath, ...config.warnings.map((warning) => `warning: ${warning}`)];
  return { id: "config", label: "Configuration", status: "ok", details };
}

function modelSection({ runtime, context, providers }: LoadedConfig): DoctorSection {
  const { rollover, rolloverTimezone } = runtime.session;
  const zone = rolloverTimezone ?? "the system's time zone";
  const fallbacks = runtime.fallbacks.map(({ model }) => model).join(", ");
  const keysInFile = providers.local.filter(({ keyInFile }) => keyInFile).map(({ id }) => id);
  return {
    id: "runtime",
    label: "Model and context",
    status: keysInFile.length === 0 ? "ok" : "waiting",
    details: [
      `model ${runtime.model}, at most ${runtime.maxTurns} calls in a turn`,
      ...(fallbacks === "" ? [] : [`when it fails: ${fallbacks}`]),
      ...keysInFile.map(
        (id) => `the key of provider ${id} stands in the configuration file: move it to apiKeyEnv`,
      ),
      `identity ${context.identityPath}`,
      `history rollover ${rollover === "none" ? "none" : `daily in ${zone}`}`,
    ],
  };
}

function toolsSection({ tools, mcpServers }: LoadedConfig): DoctorSection {
  const label = "MCP servers";
  if (tools.mcpConfigPath === undefined) {
    return { id: "tools", label, status: "disabled", details: ["tools.mcpConfigPath is not set"] };
  }
  const unusable: string[] = [];
  const servers = [...mcpServers].map(([name, spec]) => {
    const transport = serverTransport(spec);
    if (!isEnabled(spec)) return `${name} (${transport.kind}, off)`;
    if (transport.kind === "contradictory") unusable.push(`${name} can't be started: ${transport.reason}`);
    return `${name} (${transport.kind})`;
  });
  const details = [
    tools.mcpConfigPath,
    `servers: ${servers.join(", ") || "none"}`,
    `may answer later: ${tools.continuationServers.join(", ") || "none"}`,
    `told their run: ${tools.mcpRequestContextServers.join(", ") || "none"}`,
    ...unusable,
  ];
  return { id: "tools", label, status: unusable.length === 0 ? "ok" : "waiting", details };
}

/** Only for a state that was restored from a backup, until nothing of it is held any more. */
function restoredSection({ host }: LoadedConfig, fs: FileSystem, program: string): DoctorSection[] {
  const section = (status: SectionStatus, detail: string): DoctorSection[] => [
    { id: "restored", label: "Restored state", status, details: [detail] },
  ];
  try {
    const mark = readRestored(fs, host.stateDir);
    if (mark === undefined) return [];
    return section(
      "waiting",
      `as of ${mark.backupCreatedAt}; up to ${mark.held.length} continuations wait for a proof or a release after the restore: ` +
        `see \`${program} continuations owed\` and \`${program} continuations release\``,
    );
  } catch (error) {
    if (error instanceof AppError || error instanceof FileFault) return section("error", error.message);
    throw error;
  }
}

function turnsSection({ host }: LoadedConfig, fs: FileSystem): DoctorSection {
  const ledger = ledgerSection(host, fs);
  const folder = stateFolderProblem(fs, host.stateDir);
  if (folder === undefined) return ledger;
  const status = ledger.status === "error" ? "error" : folder.status;
  return { ...ledger, status, details: [...ledger.details, folder.detail] };
}

function ledgerSection(host: LoadedConfig["host"], fs: FileSystem): DoctorSection {
  const path = join(host.stateDir, HOST_DATABASE);
  const section = (status: SectionStatus, ...details: string[]): DoctorSection => {
    return { id: "turns", label: "Turns and history", status, details: [path, ...details] };
  };
  const check = checkTurns({ path, fs });
  switch (check.kind) {
    case "absent":
      return section("ok", "not there yet; the first start makes it");
    case "ok": {
      const details = [
        `unfinished turns: ${check.unfinishedTurns}`,
        `activations due: ${check.openActivations}`,
      ];
      return section(check.openActivations > 0 ? "waiting" : "ok", ...details);
    }
    case "migration_due":
      return section("waiting", `schema ${check.schemaVersion}; the next start brings it up to date`);
    case "newer_schema":
      return section(
        "error",
        `schema ${check.schemaVersion} is newer than this program; use the newer program`,
      );
    default:
      return section("error", check.detail);
  }
}

function terminalSection({ terminal, host }: LoadedConfig, fs: FileSystem): DoctorSection {
  const label = "Terminal channel";
  if (!terminal.enabled) {
    return { id: "terminal", label, status: "disabled", details: ["terminal.enabled is false"] };
  }
  const admitted = terminal.allow === undefined ? "every conversation" : terminal.allow.join(", ") || "none";
  const problem = tokenProblem(fs, host.stateDir);
  return {
    id: "terminal",
    label,
    status: problem === undefined ? "ok" : "error",
    details: [hostAndPort(terminal), `admits: ${admitted}`, ...(problem ?? [])],
  };
}

/** Why the start would refuse the token file. A missing one is made by the start. */
function tokenProblem(fs: FileSystem, stateDir: string): [string] | undefined {
  try {
    readTerminalToken(fs, stateDir);
    return undefined;
  } catch (error) {
    if (error instanceof ChannelError) return [error.message];
    if (!(error instanceof FileFault)) throw error;
    const path = join(stateDir, TERMINAL_TOKEN_FILE);
    return [
      `${path} can't be read (${error.errno}); delete it to get a new token, or repair its owner and mode`,
    ];
  }
}
