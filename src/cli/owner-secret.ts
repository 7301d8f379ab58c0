import { CliError } from "../core/errors.ts";
import { ownerOnlyProblem } from "../core/owner-only.ts";
import type { FileStat, FileSystem } from "../core/ports/platform.ts";

const SECRET_FILE_MAX_BYTES = 1024;
const LABEL = "operator.secret";

/**
 * Reads a small owner-only file without following a link. Undefined when it is not there; an unsafe one is refused,
 * because whoever can write it could make us send our token to them or take theirs for ours.
 */
export function readOwnerOnlyText(fs: FileSystem, path: string): string | undefined {
  const seen = fs.lstat(path, LABEL);
  if (seen === undefined) return undefined;
  requireSafe(path, seen, fs.uid);
  const handle = fs.open(path, LABEL);
  if (handle === undefined) return undefined;
  try {
    const opened = handle.stat();
    requireSafe(path, opened, fs.uid);
    if (opened.inode !== seen.inode || opened.device !== seen.device) {
      throw new CliError("store_unsafe_file", `${path} was replaced while it was opened`);
    }
    return new TextDecoder().decode(handle.read(SECRET_FILE_MAX_BYTES));
  } finally {
    handle.close();
  }
}

function requireSafe(path: string, stat: FileStat, uid: number | undefined): void {
  const problem = ownerOnlyProblem(stat, uid);
  if (problem !== undefined) {
    throw new CliError(
      "store_unsafe_file",
      `${path} ${problem}; it must be yours alone (chmod 600) before anything is sent with it`,
    );
  }
  if (stat.size > SECRET_FILE_MAX_BYTES)
    throw new CliError("store_unsafe_file", `${path} is too big for a secret`);
}
