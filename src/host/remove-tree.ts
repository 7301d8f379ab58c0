import { join } from "node:path";
import type { FileStep, FileSystem } from "../core/ports/platform.ts";

/** Removes a folder that we made, with all that is in it. Symlinks are removed, never followed. Missing is fine. */
export async function removeTree(fs: FileSystem, path: string, label: string): Promise<void> {
  const steps: FileStep[] = [];
  const walk = (at: string): void => {
    const kind = fs.lstat(at, label)?.kind;
    if (kind === undefined) return;
    if (kind !== "directory") {
      steps.push({ op: "unlink", path: at, missingOk: true, label });
      return;
    }
    for (const name of fs.list(at, label) ?? []) walk(join(at, name));
    steps.push({ op: "rmdir", path: at, label });
  };
  walk(path);
  if (steps.length > 0) await fs.run(steps);
}
