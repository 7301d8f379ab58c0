import fc from "fast-check";
import { runSequence, type Tally } from "./model-run.ts";
import { sequences } from "./model-sequences.ts";

/** One thread's share of the sequences: `{ seed, runs }` in, a report or the counterexample out. */

export interface Share {
  readonly seed: number;
  readonly runs: number;
}

export interface Report extends Tally {
  readonly sequences: number;
  readonly failure?: string;
}

declare const self: Worker;

self.onmessage = async ({ data: { seed, runs } }: MessageEvent<Share>) => {
  const tally: Tally = { commands: 0, kills: 0, cuts: 0, waits: 0, drops: 0, states: new Map() };
  let done = 0;
  const property = fc.asyncProperty(sequences, async (sequence) => {
    done += 1;
    await runSequence(sequence, tally);
  });
  const result = await fc.check(property, { numRuns: runs, seed });
  const failure = result.failed ? await fc.asyncDefaultReportMessage(result) : undefined;
  const cause = result.errorInstance instanceof Error ? result.errorInstance.message : "";
  self.postMessage({
    ...tally,
    sequences: done,
    ...(failure === undefined ? {} : { failure: `${failure}\n${cause}` }),
  } satisfies Report);
};
