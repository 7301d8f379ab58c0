import type { Failure } from "./explore.ts";
import type { Workload } from "./workload.ts";

/** At most so many workloads are tried; a history that is not quite minimal tells enough. */
const ATTEMPTS = 300;

/**
 * Leaves out what the failure does not need: first long runs of steps, then shorter ones, then single ones, as long as
 * `explore` still finds a failure. Returns that of the smallest workload found.
 */
export async function shrink(
  failure: Failure,
  explore: (workload: Workload) => Promise<Failure | undefined>,
): Promise<Failure> {
  let smallest = failure;
  let attempts = 0;

  async function tried(workload: Workload): Promise<boolean> {
    attempts += 1;
    const found = await explore(workload);
    if (found === undefined) return false;
    smallest = found;
    return true;
  }

  const { interrupt, ...opened } = failure.workload;
  if (interrupt !== undefined) await tried(opened);
  let length = Math.ceil(failure.workload.steps.length / 2);
  while (length > 0) {
    let removed = false;
    for (let end = smallest.workload.steps.length; end > 0 && attempts < ATTEMPTS; end -= length) {
      const steps = smallest.workload.steps.toSpliced(Math.max(0, end - length), Math.min(length, end));
      if (await tried({ ...smallest.workload, steps })) removed = true;
    }
    if (attempts >= ATTEMPTS) break;
    if (!removed || length > 1) length = length === 1 ? 0 : Math.floor(length / 2);
  }
  return smallest;
}
