import { join } from "node:path";
import type { FileStep, FileSystem } from "../core/ports/platform.ts";

/** Entries that are looked at and removed before others have their turn. */
const SLICE_ENTRIES = 256;

/** Removes a folder that we made, with all that is in it. Symlinks are removed, never followed. Missing is fine. */
export async function removeTree(fs: FileSystem, path: string, label: string): Promise<void> {
  let steps: FileStep[] = [];
  const flush = async (): Promise<void> => {
    const batch = steps;
    steps = [];
    if (batch.length > 0) await fs.run(batch);
  };
  const walk = async (at: string): Promise<void> => {
    const kind = fs.lstat(at, label)?.kind;
    if (kind === "directory") {
      for (const name of fs.list(at, label) ?? []) await walk(join(at, name));
      steps.push({ op: "rmdir", path: at, label });
    } else if (kind !== undefined) steps.push({ op: "unlink", path: at, missingOk: true, label });
    if (steps.length >= SLICE_ENTRIES) await flush();
  };
  await walk(path);
  await flush();
}
