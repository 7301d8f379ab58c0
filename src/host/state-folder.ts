import { StoreError } from "../core/errors.ts";
import { FileFault, type FileSystem, type Logger } from "../core/ports/platform.ts";
import { FOLDER_MODE, inspectFolder } from "../store/secure.ts";

const LABEL = "host folder";

/**
 * Makes the host's state folder, or sets its mode to 0700 when it is another. Throws a `StoreError` that names the path
 * and the way out when it is not a real folder of this user, or can't be made.
 */
export function prepareStateFolder(fs: FileSystem, path: string, logger: Logger): void {
  try {
    const { exists, repair } = inspectFolder(fs, path, LABEL);
    if (!exists) {
      fs.runSync([{ op: "mkdir", path, mode: FOLDER_MODE, existsOk: true, label: LABEL }]);
    } else if (repair.length > 0) {
      fs.runSync(repair);
      logger.warn("a folder did not have mode 0700; it is repaired", { path });
    }
  } catch (error) {
    if (error instanceof FileFault) {
      const problem = `${error.path} can't be used as a folder for state (${error.errno})`;
      throw new StoreError("store_write_failed", `${problem}; ${WAY_OUT}`, { cause: error });
    }
    if (!(error instanceof StoreError)) throw error;
    throw new StoreError(error.code, `${error.message}; ${WAY_OUT}`, { cause: error });
  }
}

const WAY_OUT = "name a folder of your own in host.stateDir, or remove what is there";

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
    return { status: "error", detail: `${error.message}; ${WAY_OUT}` };
  }
}

export function looseFolder(path: string): string {
  return `${path} does not have mode 0700; the next start repairs it`;
}
