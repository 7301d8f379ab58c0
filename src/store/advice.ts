import { dirname } from "node:path";
import { diskRemedy } from "../core/disk-remedy.ts";
import type { ErrorCode } from "../core/errors.ts";
import type { StorePaths } from "./paths.ts";

/**
 * Owns: what a person who reads of a damaged file of the state directory needs to know: what it is for, and the way out.
 * Does not own: finding the damage (check.ts).
 *
 * I1. No advice makes it worse: nothing is to be moved away that would let work begin twice or bring dropped records
 *     back.
 */

export interface Advice {
  /** What the file holds or is for, and so what depends on it. */
  readonly depends: string;
  readonly remedy: string;
}

interface Kind {
  readonly depends: string;
  /** For a content that can't be right. */
  readonly corrupt: string;
}

const RESTORE = "restore this file from a backup";

const KINDS = {
  secret: {
    depends: "every token and every binding is made with it",
    corrupt: "restore the secret from a backup, or move the whole state directory away",
  },
  manifest: {
    depends: "it says whether the rollback guard is required",
    corrupt: `${RESTORE}, or, when nothing of an older format is beside it, move it away: it is made anew`,
  },
  transaction: {
    depends: "it holds the newest changes that were acknowledged",
    corrupt:
      "restore the whole state directory from a backup; don't just move this file away: what had begun by then could begin again",
  },
  guard: {
    depends: "it keeps older runtimes from opening what they would find out of date",
    corrupt: "restore the guard file, or the whole directory, from a backup before the next start",
  },
  marker: {
    depends: "by it the claims of one run get their origin context",
    corrupt: `${RESTORE}, or move it away: the next start decides about that run again`,
  },
  record: {
    depends: "it holds one continuation",
    corrupt: `${RESTORE}, or move it away: then that continuation is forgotten and its result refused`,
  },
  owner: {
    depends: "it is the lock of the directory",
    corrupt: "stop the host and remove this file: it holds nothing but the lock, and is made anew",
  },
  folder: { depends: "all that is in it", corrupt: "restore it from a backup" },
} satisfies Record<string, Kind>;

/** What depends on a damaged file or folder, and what to do, by what is wrong with it. */
export function adviceFor(
  paths: StorePaths,
  { path, code, errno }: { path: string; code: ErrorCode; errno?: string },
): Advice {
  const { depends, corrupt } = kindOf(paths, path);
  // What stands in the place of the lock may go; what the system only does not show may be right.
  const isLock = path === paths.owner && errno === undefined;
  if (isLock || code !== "store_unsafe_file") return { depends, remedy: corrupt };
  return { depends, remedy: accessRemedy(errno) };
}

function kindOf(paths: StorePaths, path: string): Kind {
  switch (path) {
    case paths.secret:
      return KINDS.secret;
    case paths.manifest:
      return KINDS.manifest;
    case paths.transaction:
      return KINDS.transaction;
    case paths.guard:
      return KINDS.guard;
    case paths.owner:
      return KINDS.owner;
  }
  switch (dirname(path)) {
    case paths.records:
      return KINDS.record;
    case paths.markers:
      return KINDS.marker;
    default:
      return KINDS.folder;
  }
}

/** For a file or folder that is not to be trusted as it stands there, or that the system does not show. */
function accessRemedy(errno: string | undefined): string {
  if (errno === "EACCES" || errno === "EPERM") return "give your own user the right to read it";
  const disk = errno === undefined ? undefined : diskRemedy(errno);
  return (
    disk ??
    "make it a regular file (or folder) of your own user with mode 0600 (0700), or remove what replaced it"
  );
}
