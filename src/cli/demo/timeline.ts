import type { Clock } from "../../core/ports/platform.ts";
import type { CliIo } from "../io.ts";

/** One line of the demo: a step that happened, with the time since the start and what it took itself. */
export interface Timeline {
  /** Runs a step; its line is printed when it ends. The value of the step is returned, its fault thrown on. */
  step<T>(name: string, text: string, work: () => Promise<T>, detail?: (value: T) => string): Promise<T>;
  /** Elapsed milliseconds since the start. */
  elapsedMs(): number;
}

const SPINNER = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
const SPINNER_MS = 80;
const GREEN = "\x1b[32m";
const RED = "\x1b[31m";
const DIM = "\x1b[2m";
const RESET = "\x1b[0m";
const CLEAR_LINE = "\r\x1b[2K";

/**
 * Human lines or, with `json`, one JSON object a line. Colours and a spinner only where a terminal reads standard
 * output.
 */
export function createTimeline(io: CliIo, clock: Clock, json: boolean): Timeline {
  const startedAt = clock.now();
  const terminal = io.columns !== undefined && !json;
  const elapsedMs = () => clock.now() - startedAt;
  const paint = (colour: string, text: string) => (terminal ? `${colour}${text}${RESET}` : text);

  const print = (line: { step: string; text: string; ok: boolean; ms: number; detail?: string }) => {
    if (json) {
      io.out(`${JSON.stringify({ elapsedMs: elapsedMs(), ...line })}\n`);
      return;
    }
    const mark = line.ok ? paint(GREEN, "✓") : paint(RED, "✗");
    const time = paint(DIM, `${(elapsedMs() / 1000).toFixed(2).padStart(6)}s`);
    const detail = line.detail === undefined ? "" : paint(DIM, `  ${line.detail}`);
    io.out(`${terminal ? CLEAR_LINE : ""}${time} ${mark} ${line.text}${detail}\n`);
  };

  const spin = (text: string): (() => void) => {
    if (!terminal) return () => {};
    let frame = 0;
    let cancel = () => {};
    const draw = () => {
      io.out(`${CLEAR_LINE}        ${SPINNER[frame % SPINNER.length]} ${text}`);
      frame += 1;
      cancel = clock.timer(SPINNER_MS, draw);
    };
    draw();
    return () => {
      cancel();
      io.out(CLEAR_LINE);
    };
  };

  return {
    elapsedMs,
    async step(name, text, work, detail) {
      const begun = clock.now();
      const stopSpinner = spin(text);
      try {
        const value = await work();
        stopSpinner();
        const more = detail?.(value);
        print({
          step: name,
          text,
          ok: true,
          ms: clock.now() - begun,
          ...(more === undefined ? {} : { detail: more }),
        });
        return value;
      } catch (error) {
        stopSpinner();
        print({ step: name, text, ok: false, ms: clock.now() - begun });
        throw error;
      }
    },
  };
}
