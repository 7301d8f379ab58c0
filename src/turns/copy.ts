import { Database, SQLiteError } from "bun:sqlite";
import { errnoOfSqlite } from "../core/disk-remedy.ts";
import { TurnError } from "../core/errors.ts";
import { SECOND_MS } from "../core/limits.ts";
import type { FileSystem } from "../core/ports/platform.ts";
import { ledgerFiles, unsafeReason } from "./files.ts";
import { turnFault } from "./transaction.ts";

const OWNER_ONLY = 0o600;
/** Another process may hold the ledger for a moment, such as a person with the sqlite3 shell. */
const BUSY_TIMEOUT_MS = 5 * SECOND_MS;

/**
 * Copies the ledger into one file, as of one instant, by SQLite's own `VACUUM INTO` (no log beside the copy). It runs
 * without letting go of the event loop, so nothing else of this process happens meanwhile; about 400 MB a second.
 * False when there is no ledger. `target` must not be there; it becomes 0600, and durable only by a sync of the caller.
 */
export function copyTurns(options: {
  readonly path: string;
  readonly target: string;
  readonly fs: FileSystem;
}): boolean {
  const { path, target, fs } = options;
  if (fs.lstat(path, "turns.copy") === undefined) return false;
  for (const file of ledgerFiles(path)) {
    const stat = fs.lstat(file, "turns.copy");
    const reason = stat === undefined ? undefined : unsafeReason(fs, stat);
    if (reason !== undefined) throw new TurnError("turns_unsafe_file", `${file} ${reason}: it is not copied`);
  }
  // SQLite would create it with the mode of the umask; an empty file it takes as it is.
  fs.runSync([
    { op: "write", path: target, data: "", mode: OWNER_ONLY, sync: false, label: "turns.copy.create" },
  ]);
  try {
    const db = new Database(path, { readwrite: true, create: false });
    try {
      db.run(`PRAGMA busy_timeout = ${BUSY_TIMEOUT_MS}`);
      db.run("VACUUM INTO ?", [target]);
    } finally {
      db.close();
    }
  } catch (error) {
    // A full disk is that of the copy; whatever else is wrong is most likely wrong with the ledger.
    const full = error instanceof SQLiteError && errnoOfSqlite(error.code ?? "") === "ENOSPC";
    throw turnFault(full ? target : path, error);
  }
  return true;
}
