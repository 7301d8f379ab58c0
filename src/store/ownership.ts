import { Database, SQLiteError } from "bun:sqlite";
import { dirname } from "node:path";
import { diskRemedy, errnoOfSqlite } from "../core/disk-remedy.ts";
import { StoreError } from "../core/errors.ts";
import { type Clock, FileFault, type FileSystem, type OwnershipLock } from "../core/ports/platform.ts";
import { FILE_MODE, requireSafeFile } from "../core/secure-files.ts";

/**
 * Process-lifetime ownership of a state directory (store-format.md §1): a SQLite database held under an open
 * exclusive transaction. The operating system drops the lock with the process, so there is no stale lock.
 */

const SQLITE_BUSY = 5;
const SQLITE_LOCKED = 6;
const SQLITE_CANTOPEN = 14;
const OWNER_MAY_WRITE = 0o200;

/**
 * Returns the function that takes the lock at `path`. It does not wait: while somebody else owns the directory it
 * throws `StoreError` `store_owned` at once. What the disk refuses is `store_write_failed` with a `FileFault` as its
 * cause; only a file that is no database is `store_corrupt`.
 */
export function ownershipLock(fs: FileSystem, clock: Clock, pid: number): (path: string) => OwnershipLock {
  return (path) => {
    try {
      prepareFile(fs, path);
    } catch (error) {
      throw error instanceof FileFault ? refusedByDisk(error) : error;
    }
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
      throw lockError(fs, path, error);
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

function lockError(fs: FileSystem, path: string, error: unknown): StoreError {
  if (error instanceof SQLiteError) {
    // The extended code keeps the primary one in its low byte.
    const primary = error.errno & 0xff;
    if (primary === SQLITE_BUSY || primary === SQLITE_LOCKED) {
      return new StoreError(
        "store_owned",
        `${path} is held: another process already owns this state directory`,
        { cause: error },
      );
    }
    const errno = primary === SQLITE_CANTOPEN ? whyNotOpened(fs, path) : refusalOf(fs, path, error);
    if (errno !== undefined) return refusedByDisk(new FileFault(LOCK, path, errno, { cause: error }));
  }
  return new StoreError("store_corrupt", `${path} can't be used as the ownership database`, { cause: error });
}

const LOCK = "owner.lock";

/** A file that its owner may not write looks to SQLite as on a read-only disk. */
function refusalOf(fs: FileSystem, path: string, { code = "" }: SQLiteError): string | undefined {
  const errno = errnoOfSqlite(code);
  const mode = fs.lstat(path, LOCK)?.mode ?? OWNER_MAY_WRITE;
  return errno === "EROFS" && (mode & OWNER_MAY_WRITE) === 0 ? "EACCES" : errno;
}

/** SQLite keeps the reason to itself. When it is that no more files may be open, the folder can't be opened either. */
function whyNotOpened(fs: FileSystem, path: string): string {
  try {
    fs.list(dirname(path), LOCK);
    return "EIO";
  } catch (error) {
    if (error instanceof FileFault) return error.errno;
    throw error;
  }
}

function refusedByDisk(fault: FileFault): StoreError {
  const remedy = diskRemedy(fault.errno) ?? "see to that";
  return new StoreError(
    "store_write_failed",
    `${fault.message}; ${remedy} and start again; nothing is lost`,
    { cause: fault },
  );
}
