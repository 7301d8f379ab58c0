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

function altered(change: (steps: readonly FileStep[]) => readonly FileStep[]) {
  return (fs: FileSystem): FileSystem => ({
    ...fs,
    run: (steps) => fs.run(change(steps)),
    runSync: (steps) => fs.runSync(change(steps)),
  });
}
