import { mkdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { FileFault } from "../core/ports/platform.ts";

export interface RunFolders {
  /** Makes the owner-only folder of a run and gives its path. Throws `FileFault`. */
  create(runId: string): string;
  /** Takes a folder away with everything in it. Throws `FileFault`. */
  remove(path: string): void;
  /** Takes away what runs of an earlier process left. Throws `FileFault`. */
  sweep(): void;
}

/** Folders that live as long as a run, all below `root`, which is theirs alone. */
export function createRunFolders(root: string): RunFolders {
  const removeAll = (path: string) =>
    guarded("run-folder.remove", path, () => rmSync(path, { recursive: true, force: true }));
  return {
    create(runId) {
      const path = join(root, runId);
      return guarded("run-folder.create", path, () => {
        mkdirSync(path, { recursive: true, mode: 0o700 });
        return path;
      });
    },
    remove: removeAll,
    sweep: () => removeAll(root),
  };
}

function guarded<T>(label: string, path: string, work: () => T): T {
  try {
    return work();
  } catch (error) {
    const errno = error instanceof Error && "code" in error ? String(error.code) : "EUNKNOWN";
    throw new FileFault(label, path, errno, { cause: error });
  }
}
