import { planMigration } from "../store/migrate/plan.ts";
import { type Listing, listed } from "./doctor-report.ts";

/** What `doctor` says of state in an older format: that the next start converts it, or why it can't. */
export function migrationDue(
  state: Parameters<typeof planMigration>[0],
  listing: Listing,
): { readonly ok: boolean; readonly lines: readonly string[] } {
  const { ok, refusals, sources, resumed } = planMigration(state);
  const found = [
    ...(sources.v1 === undefined ? [] : [`${sources.v1.records} of format v1`]),
    ...(sources.v2 === undefined ? [] : [`${sources.v2.records} of format v2`]),
  ];
  const what = found.length === 0 ? "an older format without records" : `records: ${found.join(", ")}`;
  const going = resumed ? "the next start goes on converting" : "the next start converts";
  if (ok) return { ok, lines: [`${going} ${what}; see \`${listing.program} migrate --dry-run\``] };
  const messages = refusals.map(({ message }) => message);
  return {
    ok,
    lines: [`state of an older format can't be converted (${what}):`, ...listed(messages, listing)],
  };
}
