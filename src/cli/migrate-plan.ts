import { KIB, MIB } from "../core/limits.ts";
import type { MigrationPlan } from "../host/migrate.ts";

/** Refusals beyond these are counted, not listed. */
const LISTED_MAX = 50;

/** A size for people. */
export function sizeText(bytes: number): string {
  return bytes < MIB ? `${(bytes / KIB).toFixed(1)} KiB` : `${(bytes / MIB).toFixed(1)} MiB`;
}

/** The plan for people. */
export function planText(plan: MigrationPlan): string {
  const lines = [plan.stateDir, ...body(plan).map((line) => `  ${line}`)];
  const refusals = plan.refusals.slice(0, LISTED_MAX).map(({ message }) => `refused: ${message}`);
  const rest = plan.refusals.length - refusals.length;
  if (rest > 0) refusals.push(`refused: ${rest} more`);
  return `${[...lines, ...refusals].join("\n")}\n`;
}

function body(plan: MigrationPlan): string[] {
  if (plan.kind === "none") {
    return [plan.ok ? "nothing of an older format waits to be converted" : "the state can't be opened"];
  }
  const { sources, states, writes, retention } = plan;
  const lines: string[] = [];
  if (plan.resumed) lines.push("an attempt before this one was interrupted; this one goes on");
  if (sources.v1 !== undefined) {
    lines.push(`format v1: ${sources.v1.records} records, ${sizeText(sources.v1.bytes)}`);
  }
  if (sources.v2 !== undefined) {
    const { records, bytes, unfinished } = sources.v2;
    const open =
      unfinished === 0 ? "" : `; ${unfinished} changes of an unfinished transaction are applied first`;
    lines.push(`format v2: ${records} records, ${sizeText(bytes)}${open}`);
  }
  if (sources.compacted > 0) {
    lines.push(`${sources.compacted} finished v1 records are taken in their compacted v2 form`);
  }
  if (plan.v3Records > 0) lines.push(`format v3 already: ${plan.v3Records} records`);
  const counts = Object.entries(states).map(([state, count]) => `${state} ${count}`);
  lines.push(`together ${plan.records} records${counts.length === 0 ? "" : `: ${counts.join(", ")}`}`);
  lines.push(
    `unfinished without the context of their turn (legacy_missing, answered with a fixed text): ${plan.legacyMissing}; detached: ${plan.detachedLatest}`,
  );
  lines.push(`will write ${writes.records} record files, ${sizeText(writes.bytes)}`);
  lines.push(
    `retention then drops ${retention.records} records, ${retention.payloads} payloads and ${retention.texts} texts of finished ones`,
  );
  lines.push("the older files stay; an older runtime then refuses this directory");
  return lines;
}
