import { Database, SQLiteError } from "bun:sqlite";
import { StoreError } from "../core/errors.ts";
import { type Clock, FileFault, type FileSystem, type OwnershipLock } from "../core/ports/platform.ts";
import { FILE_MODE, requireSafeFile } from "../core/secure-files.ts";

/**
 * Process-lifetime ownership of a state directory (store-format.md §1): a SQLite database held under an open
 * exclusive transaction. The operating system drops the lock with the process, so there is no stale lock.
 */

const SQLITE_BUSY = 5;
const SQLITE_LOCKED = 6;

/**
 * Returns the function that takes the lock at `path`. It does not wait: while somebody else owns the directory it
 * throws `StoreError` `store_owned` at once.
 */
export function ownershipLock(fs: FileSystem, clock: Clock, pid: number): (path: string) => OwnershipLock {
  return (path) => {
    prepareFile(fs, path);
    let database: Database | undefined;
    try {
      database = new Database(path, { readwrite: true, create: false });
      database.run("PRAGMA busy_timeout = 0");
      database.run("PRAGMA journal_mode = DELETE");
      database.run("PRAGMA locking_mode = EXCLUSIVE");
      database.run("BEGIN EXCLUSIVE");
      database.run(
        "CREATE TABLE IF NOT EXISTS ownership (id INTEGER PRIMARY KEY CHECK (id = 1), pid INTEGER NOT NULL, acquired_at TEXT NOT NULL)",
      );
      database.run("INSERT OR REPLACE INTO ownership (id, pid, acquired_at) VALUES (1, ?, ?)", [
        pid,
        new Date(clock.now()).toISOString(),
      ]);
    } catch (error) {
      database?.close();
      throw lockError(path, error);
    }
    const held = database;
    let released = false;
    return {
      release() {
        if (released) return;
        released = true;
        held.run("ROLLBACK");
        held.close();
      },
    };
  };
}

/** Every page of a SQLite database has a power of two of at least this many bytes. */
const SQLITE_PAGE_MIN_BYTES = 512;

const SQLITE_MAGIC = "SQLite format 3\0";

/**
 * Throws when opening would refuse the database by what it looks like from outside. Only with `mayRead` is it opened:
 * closing any descriptor of the file would drop the lock that this very process may hold (POSIX locks belong to the
 * process).
 */
export function checkOwnership(fs: FileSystem, path: string, mayRead: boolean): void {
  requireSafe(fs, path);
  const size = fs.lstat(path, "owner.size")?.size ?? 0;
  if (size === 0) return;
  if (size % SQLITE_PAGE_MIN_BYTES !== 0 || (mayRead && !beginsAsDatabase(fs, path))) {
    throw new StoreError("store_corrupt", `${path} can't be used as the ownership database`);
  }
}

function beginsAsDatabase(fs: FileSystem, path: string): boolean {
  const file = fs.open(path, "owner.read");
  if (file === undefined) return true;
  try {
    return Buffer.from(file.read(SQLITE_MAGIC.length)).toString("latin1") === SQLITE_MAGIC;
  } finally {
    file.close();
  }
}

/** Whether the database is there; throws when it or its journal is not safe to use. */
function requireSafe(fs: FileSystem, path: string): boolean {
  const journal = fs.lstat(`${path}-journal`, "owner.journal");
  if (journal !== undefined) requireSafeFile(fs, `${path}-journal`, journal, Number.MAX_SAFE_INTEGER);
  const stat = fs.lstat(path, "owner");
  if (stat !== undefined) requireSafeFile(fs, path, stat, Number.MAX_SAFE_INTEGER);
  return stat !== undefined;
}

/** Creates the database file owner-only before SQLite does; SQLite gives its journal the same mode. */
function prepareFile(fs: FileSystem, path: string): void {
  if (requireSafe(fs, path)) return;
  try {
    fs.runSync([{ op: "write", path, data: "", mode: FILE_MODE, sync: true, label: "owner.create" }]);
  } catch (error) {
    // Another first start was quicker; the lock decides between the two.
    if (!(error instanceof FileFault && error.errno === "EEXIST" && requireSafe(fs, path))) throw error;
  }
}

function lockError(path: string, error: unknown): StoreError {
  // The extended code keeps the primary one in its low byte.
  const code = error instanceof SQLiteError ? error.errno & 0xff : undefined;
  if (code === SQLITE_BUSY || code === SQLITE_LOCKED) {
    return new StoreError(
      "store_owned",
      `${path} is held: another process already owns this state directory`,
      {
        cause: error,
      },
    );
  }
  return new StoreError("store_corrupt", `${path} can't be used as the ownership database`, { cause: error });
}
