import { MIB } from "../core/limits.ts";
import type { Clock } from "../core/ports/platform.ts";
import type { MigrationProgress } from "../host/migrate.ts";

const WIDTH = 24;
/** Fast enough for the eye; the work itself tells far more often. */
const REDRAW_MS = 50;
const TO_LINE_START_AND_CLEAR = "\r\u001b[K";

/** A bar on one line of a terminal, with the phase and its counts; a finished phase keeps its line. */
export function progressBar(
  write: (text: string) => void,
  clock: Clock,
): { progress(at: MigrationProgress): void; end(): void } {
  let shown: MigrationProgress | undefined;
  let drawnMs = Number.NEGATIVE_INFINITY;
  const draw = (at: MigrationProgress) => write(`${TO_LINE_START_AND_CLEAR}${barLine(at)}`);
  function end(): void {
    if (shown === undefined) return;
    draw(shown);
    write("\n");
    shown = undefined;
  }
  return {
    end,
    progress(at) {
      const next = at.phase !== shown?.phase;
      if (next) end();
      shown = at;
      const nowMs = clock.now();
      if (!next && nowMs - drawnMs < REDRAW_MS) return;
      drawnMs = nowMs;
      draw(at);
    },
  };
}

export function barLine({ phase, done, total, unit }: MigrationProgress): string {
  const label = phase.padEnd(12);
  if (total === 0) return label.trimEnd();
  const filled = Math.round((WIDTH * Math.min(done, total)) / total);
  const bar = `${"#".repeat(filled)}${"-".repeat(WIDTH - filled)}`;
  const counts =
    unit === "records"
      ? `${done} of ${total} records`
      : `${(done / MIB).toFixed(1)} of ${(total / MIB).toFixed(1)} MiB`;
  return `${label} [${bar}] ${counts}`;
}
