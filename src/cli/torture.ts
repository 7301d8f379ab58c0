import type { CommandDef } from "citty";
import { CliError } from "../core/errors.ts";
import { MINUTE_MS, SECOND_MS } from "../core/limits.ts";
import { failureText, type OlderReader, runTorture, type TortureFigures } from "../host/torture.ts";
import { createClock } from "../platform/clock.ts";
import { JSON_ARG, leaf } from "./command.ts";
import type { CliIo } from "./io.ts";

const DEFAULT_MINUTES = 1;
const PROGRESS_MS = 5 * SECOND_MS;
const SEEDS = 1_000_000_000;

const ARGS = {
  minutes: {
    type: "string",
    valueHint: "m",
    description: `How long to go on (default: ${DEFAULT_MINUTES})`,
  },
  states: { type: "string", valueHint: "n", description: "Go on until so many crash states are checked" },
  seed: { type: "string", valueHint: "s", description: "Repeat the workloads of an earlier run" },
  ...JSON_ARG,
} as const;

/** `olderReader` also reads each crash state by the rules of the older runtime; the tests have one. */
export function tortureCommand(io: CliIo, olderReader?: OlderReader): CommandDef {
  const description = "Cut the power of the store at every operation, in memory, and check what is left";
  return leaf("torture", description, ARGS, async (args) => {
    const clock = createClock();
    const startMs = clock.now();
    const states = numberOf("states", args.states);
    const minutes = minutesOf(args.minutes) ?? (states === undefined ? DEFAULT_MINUTES : undefined);
    const seed = numberOf("seed", args.seed) ?? startMs % SEEDS;
    let stopped = false;
    let told = startMs;
    const unsubscribe = io.onStop(() => {
      stopped = true;
    });
    io.err(`seed ${seed}\n`);
    try {
      const report = await runTorture({
        seed,
        ...(olderReader === undefined ? {} : { olderReader }),
        async enough(figures) {
          // Signals and output come between workloads.
          await Bun.sleep(0);
          const nowMs = clock.now();
          if (nowMs - told >= PROGRESS_MS) {
            told = nowMs;
            io.err(`${figuresText(figures, nowMs - startMs)}\n`);
          }
          if (stopped || figures.states >= (states ?? Number.POSITIVE_INFINITY)) return true;
          return minutes !== undefined && nowMs - startMs >= minutes * MINUTE_MS;
        },
      });
      const elapsedMs = clock.now() - startMs;
      if (args.json === true) io.out(`${JSON.stringify({ seed, elapsedMs, ...report }, null, 2)}\n`);
      else {
        io.out(`${figuresText(report, elapsedMs)}\n`);
        io.out(report.failure === undefined ? "no state breaks a promise\n" : failureText(report.failure));
      }
      return report.failure === undefined ? 0 : 1;
    } finally {
      unsubscribe();
    }
  });
}

function numberOf(name: string, text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  if (!/^[1-9][0-9]{0,9}$/.test(text)) throw new CliError("usage", `--${name} must be a whole number from 1`);
  return Number(text);
}

/** Parts of a minute too: a short look is worth something. */
function minutesOf(text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  const minutes = /^[0-9]{1,6}(\.[0-9]{1,4})?$/.test(text) ? Number(text) : 0;
  if (minutes === 0) throw new CliError("usage", "--minutes must be a number above 0, such as 5 or 0.5");
  return minutes;
}

function figuresText(figures: TortureFigures, elapsedMs: number): string {
  const seconds = Math.max(elapsedMs, 1) / SECOND_MS;
  return `${figures.states} crash states (${figures.images} different disks, each opened and checked) of ${figures.operations} operations in ${figures.workloads} workloads; ${seconds.toFixed(1)} s, ${Math.round(figures.states / seconds)} states/s`;
}
