import { BugError } from "../../src/core/errors.ts";
import type { FileStep, FileSystem } from "../../src/core/ports/platform.ts";

/** Variants of the disk port with one known bug each, for showing that the explorer finds it. */

/** Leaves out every step with one of these labels. */
export function without(...labels: string[]): (fs: FileSystem) => FileSystem {
  return altered((steps) => steps.filter((step) => !labels.includes(step.label)));
}

/** Writes these files without syncing their data. */
export function unsyncedData(...labels: string[]): (fs: FileSystem) => FileSystem {
  return altered((steps) =>
    steps
      .filter((step) => step.op !== "syncFiles" || !labels.includes(step.label))
      .map((step) => (step.op === "write" && labels.includes(step.label) ? { ...step, sync: false } : step)),
  );
}

/** Says that steps with these labels are done before they are; they run beside whatever comes next. */
export function tooEarly(...labels: string[]): (fs: FileSystem) => FileSystem {
  return (fs) => ({
    ...fs,
    run(steps) {
      const done = fs.run(steps);
      if (!steps.some((step) => labels.includes(step.label))) return done;
      done.catch(() => {});
      return Promise.resolve();
    },
  });
}

/** Steps with these labels are never begun: the store stops before them, as it does when an invariant of its own breaks. */
export function breaking(...labels: string[]): (fs: FileSystem) => FileSystem {
  return (fs) => ({
    ...fs,
    run: (steps) =>
      steps.some((step) => labels.includes(step.label))
        ? Promise.reject(new BugError("broken invariant: planted"))
        : fs.run(steps),
  });
}

function altered(change: (steps: readonly FileStep[]) => readonly FileStep[]) {
  return (fs: FileSystem): FileSystem => ({
    ...fs,
    run: (steps) => fs.run(change(steps)),
    runSync: (steps) => fs.runSync(change(steps)),
  });
}
