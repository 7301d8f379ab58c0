import { dirname } from "node:path";
import { TurnError } from "../core/errors.ts";
import type { FileStat, FileSystem } from "../core/ports/platform.ts";

const OWNER_ONLY = 0o600;

/** The database and the files that SQLite keeps beside it. */
export function ledgerFiles(path: string): string[] {
  return [path, `${path}-wal`, `${path}-shm`, `${path}-journal`];
}

/** Why a file must not be opened as part of the ledger; undefined when it may. Its mode is not judged here. */
export function unsafeReason(fs: FileSystem, stat: FileStat): string | undefined {
  if (stat.kind !== "file") return `is a ${stat.kind}, not a regular file`;
  if (fs.uid !== undefined && stat.uid !== fs.uid) return "belongs to another user";
  if (stat.links > 1) return "has another hard link";
  return undefined;
}

/**
 * Refuses unsafe files (`turns_unsafe_file`), creates the database 0600 when there is none, and closes wider
 * modes. SQLite gives the files beside it the mode of the database, whatever the umask. Returns the paths whose
 * mode was wider.
 */
export function securePaths(fs: FileSystem, path: string): string[] {
  const repaired: string[] = [];
  for (const file of ledgerFiles(path)) {
    const stat = fs.lstat(file, "turns.stat");
    if (stat === undefined) continue;
    const reason = unsafeReason(fs, stat);
    if (reason !== undefined) {
      throw new TurnError("turns_unsafe_file", `${file} ${reason}: remove it or correct its owner and type`);
    }
    if (fs.uid !== undefined && stat.mode !== OWNER_ONLY) {
      fs.runSync([{ op: "chmod", path: file, mode: OWNER_ONLY, label: "turns.chmod" }]);
      repaired.push(file);
    }
  }
  if (fs.lstat(path, "turns.stat") === undefined) {
    fs.runSync([
      { op: "write", path, data: "", mode: OWNER_ONLY, sync: true, label: "turns.create" },
      { op: "chmod", path, mode: OWNER_ONLY, label: "turns.chmod" },
      { op: "syncDir", path: dirname(path), label: "turns.sync-dir" },
    ]);
  }
  return repaired;
}
