import { diskRemedy } from "../../core/disk-remedy.ts";
import { DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS } from "../../core/limits.ts";
import type { ContinuationDetail, ContinuationHealth, ContinuationStatus } from "../../core/wire.ts";

/** How continuations look for people. Captured or synthesized text is not part of any answer, so none is printed. */

const GAP = "  ";
const COLUMNS: readonly { title: string; of: (item: ContinuationStatus) => string }[] = [
  { title: "ID", of: (item) => item.continuationId },
  { title: "STATE", of: (item) => item.state },
  { title: "UPDATED", of: (item) => minute(item.updatedAt) },
  { title: "MODE", of: (item) => item.mode },
];

/**
 * A table of id, state, updated and mode. On a terminal the last columns give way, the id never does: where not even the
 * state fits beside it, state and time stand below.
 */
export function listTable(items: readonly ContinuationStatus[], width: number | undefined): string {
  const columns = COLUMNS.map(({ title, of }) => {
    const cells = items.map((item) => plain(of(item)));
    return { title, cells, width: Math.max(title.length, ...cells.map((cell) => cell.length)) };
  });
  const total = (shown: typeof columns) =>
    shown.reduce((sum, column) => sum + column.width + GAP.length, -GAP.length);
  let shown = columns;
  while (width !== undefined && shown.length > 2 && total(shown) > width) shown = shown.slice(0, -1);
  if (width !== undefined && total(shown) > width) {
    const below = (item: ContinuationStatus) => `  ${plain(item.state)}, ${plain(minute(item.updatedAt))}`;
    return items.map((item) => `${plain(item.continuationId)}\n${below(item)}\n`).join("");
  }
  const line = (cells: readonly string[]) =>
    cells
      .map((cell, at) => cell.padEnd(shown[at]?.width ?? 0))
      .join(GAP)
      .trimEnd();
  const rows = items.map((_, row) => line(shown.map((column) => column.cells[row] ?? "")));
  return `${[line(shown.map((column) => column.title)), ...rows].join("\n")}\n`;
}

export function statusLines(item: ContinuationStatus): string {
  const { originContext, attempts, receipt, lastError } = item;
  return fields([
    ["id", item.continuationId],
    ["state", item.state],
    ["mode", item.mode],
    ["task", item.taskKey],
    ["created", item.createdAt],
    ["updated", item.updatedAt],
    ["deadline", item.deadline],
    ["next attempt", item.nextAttemptAt],
    [
      "attempts",
      `synthesis ${attempts.synthesis}, delivery ${attempts.delivery}, deferrals ${item.synthesisDeferrals}`,
    ],
    ["origin context", originContext.state],
    ["completion", item.completionKind],
    ["receipt", receipt === undefined ? undefined : receiptText(receipt)],
    [
      "last error",
      lastError === undefined ? undefined : `${lastError.code}: ${lastError.reason} (${lastError.at})`,
    ],
  ]);
}

export function detailLines(item: ContinuationDetail): string {
  const timeline = item.timeline.map(({ at, what, code }) => {
    return `  ${plain(at)}  ${plain(what)}${code === undefined ? "" : ` (${plain(code)})`}\n`;
  });
  const waits = fields([["waits for", item.waitsFor]]);
  return `${statusLines(item)}${waits}${timeline.length === 0 ? "" : `timeline\n${timeline.join("")}`}`;
}

export function healthLines(health: ContinuationHealth): string {
  const { storage } = health;
  const counts = Object.entries(health.counts)
    .filter(([, count]) => count > 0)
    .map(([state, count]) => `${state} ${count}`);
  return fields([
    ["status", health.status],
    ["pending", `${health.pending}, due now ${health.due}`],
    ["oldest pending", health.oldestPendingAt],
    [
      "held",
      health.held === undefined
        ? undefined
        : `${health.held} after the restore, until proved or released (continuations owed)`,
    ],
    ["states", counts.join(", ") || "no continuations"],
    [
      "store",
      `${storage.format}: ${storage.records} records, ${storage.active} active, ${storage.terminalTombstones} tombstones`,
    ],
    [
      "attention",
      `unknown delivery ${storage.unresolvedDelivery}, dead-lettered ${storage.deadLettered}, history degraded ${storage.historyDegraded}`,
    ],
    ["fault", storage.fault === undefined ? undefined : faultText(storage.fault)],
  ]);
}

function faultText({ code, since }: NonNullable<ContinuationHealth["storage"]["fault"]>): string {
  const remedy = diskRemedy(code);
  const first = remedy === undefined ? "" : `${remedy} first; `;
  return `${code} since ${since}: ${first}the store needs a restart of the host; nothing acknowledged is lost`;
}

function receiptText(receipt: NonNullable<ContinuationStatus["receipt"]>): string {
  const history =
    receipt.historyRecorded === false
      ? `, history not recorded (${receipt.historyErrorCode ?? "no code"})`
      : "";
  const id = receipt.deliveryId === undefined ? "" : ` as ${receipt.deliveryId}`;
  return `${receipt.kind} at ${receipt.deliveredAt}${id}${history}`;
}

const LABEL_WIDTH = 16;

function fields(entries: readonly (readonly [string, string | undefined])[]): string {
  return entries
    .filter(([, value]) => value !== undefined)
    .map(([label, value]) => `${label.padEnd(LABEL_WIDTH)}${plain(value ?? "")}\n`)
    .join("");
}

/** An age in the largest unit that gives at least two of it: `90 s`, `36 h`, `4 d`. */
export function ageText(ms: number): string {
  const units = [
    ["d", DAY_MS],
    ["h", HOUR_MS],
    ["min", MINUTE_MS],
  ] as const;
  for (const [name, size] of units) if (ms >= 2 * size) return `${Math.floor(ms / size)} ${name}`;
  return `${Math.floor(ms / SECOND_MS)} s`;
}

/** `2030-01-02T03:04:05.000Z` → `2030-01-02 03:04Z`; another form is left as it is. */
function minute(iso: string): string {
  return /^\d{4}-\d\d-\d\dT\d\d:\d\d:[\d.]+Z$/.test(iso) ? `${iso.slice(0, 10)} ${iso.slice(11, 16)}Z` : iso;
}

/** Keys and reasons come from services: what they hold must not steer the terminal, nor reorder or break the line. */
export function plain(text: string): string {
  return text.replace(/[\p{Cc}\p{Zl}\p{Zp}\p{Bidi_Control}]/gu, "\u{fffd}");
}
