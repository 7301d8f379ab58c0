import type { ContinuationsConfig, LoadedConfig, NamedRoute } from "../config/load.ts";
import { hostAndPort } from "../core/address.ts";
import { MIB } from "../core/limits.ts";
import type { FileSystem } from "../core/ports/platform.ts";
import { TERMINAL_SCHEME } from "../core/terminal.ts";
import { checkContinuationStore, type StoreCheck, type StoreFinding } from "../store/check.ts";
import { legacyFiles } from "../store/migrate/prune.ts";
import { migrationDue } from "./doctor-migration.ts";
import { type DoctorSection, type Listing, listed } from "./doctor-report.ts";
import { looseFolder } from "./state-folder.ts";

const ID = "continuations";
const LABEL = "Continuations";

/** Settings and state of the continuation service. Reads every file that opening the store would read. */
export function continuationsSection(
  config: LoadedConfig,
  fs: FileSystem,
  listing: Listing,
  nowMs: number,
): DoctorSection {
  const { program } = listing;
  const { continuations } = config;
  if (continuations === undefined) {
    const why = config.continuationsDisabled
      ? "continuations.enabled is false"
      : "no continuations block and no selected server";
    const details = [why];
    return { id: ID, label: LABEL, status: "disabled", details };
  }
  const settings = settingsLines(config, continuations);
  const check = checkContinuationStore({ fs, stateDir: continuations.stateDir, notOwner: true });
  const waiting = [
    ...waitingRoutes(config, continuations),
    ...waitingRecords(check, program),
    ...check.looseFolders.map(looseFolder),
  ];
  const { stateDir, retention } = continuations;
  const due = check.migrationDue ? migrationDue({ fs, stateDir, retention, nowMs }, listing) : undefined;
  const broken = check.findings.filter((finding) => finding.affects === undefined);
  const harmed = check.findings.filter((finding) => finding.affects !== undefined);
  return {
    id: ID,
    label: LABEL,
    status:
      broken.length > 0 || due?.ok === false
        ? "error"
        : harmed.length + waiting.length > 0 || due !== undefined
          ? "waiting"
          : "ok",
    details: [
      ...settings,
      // What stands in the place of the state is among the findings.
      ...(check.exists || broken.length === 0 ? [stateLine(check)] : []),
      ...(due?.lines ?? []),
      ...(due === undefined && broken.length === 0 ? leftLines(fs, stateDir, program) : []),
      ...waiting,
      ...listed([...broken, ...harmed].map(findingLine), listing),
    ],
  };
}

function settingsLines(config: LoadedConfig, continuations: ContinuationsConfig): string[] {
  const { stateDir, namedRoutes, detachedServices, retention } = continuations;
  const routes = Object.entries(namedRoutes).map(([name, route]) => `${name} (${route.mode})`);
  const services = detachedServices.map((service) => service.name);
  return [
    `address ${hostAndPort(continuations)}`,
    `state ${stateDir}`,
    `servers: ${config.tools.continuationServers.join(", ") || "none"}`,
    `named routes: ${routes.join(", ") || "none"}`,
    `detached services: ${services.join(", ") || "none"}`,
    `keeps ${retention.terminalMaxRecords} finished records and ${retention.capturedTextMaxRecords} captured texts`,
  ];
}

function stateLine(check: StoreCheck): string {
  if (!check.exists) return "no state yet; the first start makes it";
  const counts = Object.entries(check.counts)
    .filter(([, count]) => count > 0)
    .map(([state, count]) => `${state} ${count}`);
  const moving = check.moving ? "; a host is changing them" : "";
  return `${check.records} records${counts.length === 0 ? "" : `: ${counts.join(", ")}`}${moving}`;
}

/** What a conversion left: old payloads among it, which nobody reads any more. */
function leftLines(fs: FileSystem, stateDir: string, program: string): string[] {
  const left = legacyFiles(fs, stateDir);
  if (left.length === 0) return [];
  const mib = (left.reduce((sum, { bytes }) => sum + bytes, 0) / MIB).toFixed(1);
  return [
    `${left.length} files of older formats are left (${mib} MiB): once they are backed up, \`${program} migrate --prune-legacy\` removes them`,
  ];
}

/** A route without its channel does not stop the start: detached claims on it are refused until the channel is there. */
function waitingRoutes(config: LoadedConfig, continuations: ContinuationsConfig): string[] {
  const schemes = config.terminal.enabled ? [TERMINAL_SCHEME] : [];
  return Object.entries(continuations.namedRoutes).flatMap(([name, route]) => {
    const scheme = missingScheme(route, schemes);
    return scheme === undefined ? [] : [`route ${name} waits: no ${scheme} channel is configured`];
  });
}

/** Only `notify_if_actionable` posts: the other modes need no channel. */
function missingScheme(route: NamedRoute, schemes: readonly string[]): string | undefined {
  if (route.mode !== "notify_if_actionable" || route.conversationId === undefined) return undefined;
  const scheme = route.conversationId.split(":", 1)[0] ?? "";
  return schemes.includes(scheme) ? undefined : scheme;
}

function waitingRecords({ counts, historyDegraded }: StoreCheck, program: string): string[] {
  const lines: string[] = [];
  if (counts.delivery_unknown > 0) {
    lines.push(
      `${counts.delivery_unknown} with an unknown delivery wait for \`${program} continuations resolve\``,
    );
  }
  if (counts.dead_lettered > 0) {
    lines.push(
      `${counts.dead_lettered} dead-lettered: see \`${program} continuations list --state dead_lettered\``,
    );
  }
  if (historyDegraded > 0) {
    lines.push(
      `${historyDegraded} delivered, but not recorded in the conversation's history: see \`${program} continuations list --state delivered\``,
    );
  }
  return lines;
}

function findingLine({ path, problem, affects, depends, remedy }: StoreFinding): string {
  const harm = affects === undefined ? "the next start is refused" : `harms ${affects.join(", ")}`;
  const text = problem.startsWith(path) ? problem : `${path}: ${problem}`;
  return `${text} (${depends}; ${harm}); ${remedy}`;
}
