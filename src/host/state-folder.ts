import { dirname, join } from "node:path";
import { diskRemedy } from "../core/disk-remedy.ts";
import { StoreError } from "../core/errors.ts";
import { FileFault, type FileStep, type FileSystem, type Logger } from "../core/ports/platform.ts";
import { FOLDER_MODE, inspectFolder } from "../core/secure-files.ts";
import { syncNameOf } from "../store/durable-name.ts";
import { HOST_DATABASE } from "./state-entries.ts";

const LABEL = "host folder";

/**
 * Makes the host's state folder, its name durable, or sets its mode to 0700 when it is another. Throws a `StoreError`
 * that names the path and the way out when it is not a real folder of this user, or can't be made.
 */
export function prepareStateFolder(fs: FileSystem, path: string, logger: Logger): void {
  withWayOut(() => {
    const { exists, repair } = inspectFolder(fs, path, LABEL);
    if (!exists) {
      fs.runSync(newFolder(path));
      return;
    }
    if (repair.length > 0) {
      fs.runSync(repair);
      logger.warn("a folder did not have mode 0700; it is repaired", { path });
    }
    // Whoever made it may have been killed before its name was durable; with a ledger in it, it is.
    if (fs.lstat(join(path, HOST_DATABASE), LABEL) === undefined) {
      syncNameOf(path, { fs, logger, label: LABEL });
    }
  });
}

/** Makes the host's state folder where there is none. Throws as `prepareStateFolder` does. */
export function makeStateFolder(fs: FileSystem, path: string): void {
  withWayOut(() => fs.runSync(newFolder(path)));
}

function newFolder(path: string): FileStep[] {
  return [
    { op: "mkdir", path, mode: FOLDER_MODE, existsOk: true, label: LABEL },
    { op: "syncDir", path: dirname(path), label: LABEL },
  ];
}

function withWayOut(act: () => void): void {
  try {
    act();
  } catch (error) {
    if (error instanceof FileFault) {
      const problem = `${error.path} can't be used as a folder for state (${error.errno})`;
      throw new StoreError("store_write_failed", `${problem}; ${wayOutOf(error)}`, { cause: error });
    }
    if (!(error instanceof StoreError)) throw error;
    throw new StoreError(error.code, `${error.message}; ${WAY_OUT}`, { cause: error });
  }
}

const WAY_OUT = "name a folder of your own in host.stateDir, or remove what is there";

/** What is there is not to be removed because its disk is full, read-only or broken. */
function wayOutOf(error: StoreError | FileFault): string {
  return (error instanceof FileFault ? diskRemedy(error.errno) : undefined) ?? WAY_OUT;
}

/** What `prepareStateFolder` would not take as it is, for `doctor`: repair (`waiting`) or refuse. Changes nothing. */
export function stateFolderProblem(
  fs: FileSystem,
  path: string,
): { readonly status: "waiting" | "error"; readonly detail: string } | undefined {
  try {
    const { repair } = inspectFolder(fs, path, LABEL);
    return repair.length === 0 ? undefined : { status: "waiting", detail: looseFolder(path) };
  } catch (error) {
    if (!(error instanceof StoreError || error instanceof FileFault)) throw error;
    return { status: "error", detail: `${error.message}; ${wayOutOf(error)}` };
  }
}

export function looseFolder(path: string): string {
  return `${path} does not have mode 0700; the next start repairs it`;
}
