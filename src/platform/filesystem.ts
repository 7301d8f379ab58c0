import { availableParallelism } from "node:os";
import type { FileSystem } from "../core/ports/platform.ts";
import { fileReads } from "./filesystem-reads.ts";
import { faultOf, performSteps } from "./filesystem-steps.ts";
import { createStepThreads, startReader } from "./filesystem-threads.ts";
import { readAhead } from "./read-ahead.ts";

/**
 * Owns: the real filesystem behind the labelled port: reads by filesystem-reads.ts, changes by filesystem-steps.ts, those
 * of `run` and what is read ahead in threads of their own.
 * Does not own: which files there are, in which order they change, or what is safe to read (core/secure-files.ts).
 */

/** The filesystem of this machine. Every failure is a `FileFault` that names the step, the path and the errno. */
export function createFileSystem(): FileSystem {
  const threads = createStepThreads();
  return {
    ...fileReads,
    // Two threads on one processor only take turns (measured: a third slower than one alone).
    ...(availableParallelism() > 1 ? { readAhead: (files) => readAhead(files, startReader) } : {}),
    run: (steps) => threads.run(steps),
    runSync(steps) {
      const failure = performSteps(steps);
      if (failure !== undefined) throw faultOf(steps, failure);
    },
    close: () => threads.close(),
  };
}
