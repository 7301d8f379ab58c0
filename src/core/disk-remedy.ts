/** What a person can do about a write that the system refused, by the system's name of the error. */
const REMEDIES: Partial<Record<string, string>> = {
  ENOSPC: "free space on its disk",
  EDQUOT: "free space within the quota of its user",
  EROFS: "make its filesystem writable",
  EMFILE: "raise the limit of open files",
  ENFILE: "raise the system's limit of open files",
  EACCES: "give this user the right to write there",
  EPERM: "give this user the right to write there",
  EIO: "check its disk",
};

/** The way out as words that stand after "to go on,"; undefined for an error that says nothing about it. */
export function diskRemedy(errno: string): string | undefined {
  return Object.hasOwn(REMEDIES, errno) ? REMEDIES[errno] : undefined;
}

/** SQLite's names of what the system refused it, by how they begin; extended names say more after these. */
const SQLITE_ERRNOS: Record<string, string> = {
  SQLITE_FULL: "ENOSPC",
  SQLITE_READONLY: "EROFS",
  SQLITE_IOERR: "EIO",
  SQLITE_PERM: "EACCES",
};

/**
 * The system's name of the error behind what SQLite reports (`SQLITE_FULL`), as near as that can be told; undefined for
 * what is not about the disk, and for `SQLITE_CANTOPEN`, which may have any cause.
 */
export function errnoOfSqlite(code: string): string | undefined {
  return Object.entries(SQLITE_ERRNOS).find(([name]) => code === name || code.startsWith(`${name}_`))?.[1];
}
