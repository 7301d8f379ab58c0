import { parentPort } from "node:worker_threads";
import type { FileStep } from "../core/ports/platform.ts";
import { performSteps } from "./filesystem-steps.ts";

/** A thread that carries out lists of steps, one list at a time, in the order in which they come. */

export interface StepList {
  readonly id: number;
  readonly steps: readonly FileStep[];
}

export interface StepListDone {
  readonly id: number;
  readonly failure: { readonly index: number; readonly errno: string; readonly message: string } | undefined;
}

parentPort?.on("message", ({ id, steps }: StepList) => {
  const failed = performSteps(steps);
  for (const step of steps) {
    // Not left to the collector: a commit hands over its bytes many hundred times a second.
    if (step.op === "write" && typeof step.data !== "string") free(step.data);
  }
  const done: StepListDone = {
    id,
    failure: failed && { index: failed.index, errno: failed.errno, message: String(failed.cause) },
  };
  parentPort?.postMessage(done);
});

function free({ buffer }: Uint8Array): void {
  if (buffer instanceof ArrayBuffer) buffer.transfer(0);
}
