import { dirname } from "node:path";
import { FileFault, type FileSystem, type Logger } from "../core/ports/platform.ts";

/**
 * Makes the name of a folder durable that this process did not make: whoever did may have been killed before. A folder
 * that is the root of its disk has no name to lose. Throws a `FileFault` unless the folder that holds it may only be
 * entered, not read: then it was made by somebody else, and that is logged.
 */
export function syncNameOf(
  path: string,
  { fs, logger, label }: { fs: FileSystem; logger?: Logger; label: string },
): void {
  const parent = dirname(path);
  if (parent === path || isRootOfDisk(fs, path, parent, label)) return;
  try {
    fs.runSync([{ op: "syncDir", path: parent, label }]);
  } catch (error) {
    if (!(error instanceof FileFault && (error.errno === "EACCES" || error.errno === "EPERM"))) throw error;
    logger?.warn("the parent of a folder could not be synced", { path: parent, errno: error.errno });
  }
}

function isRootOfDisk(fs: FileSystem, path: string, parent: string, label: string): boolean {
  const above = fs.lstat(parent, label);
  // A link says nothing about the folder that it leads to.
  return above?.kind === "directory" && above.device !== fs.lstat(path, label)?.device;
}
