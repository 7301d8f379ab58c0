import { diskRemedy, errnoOfSqlite } from "../core/disk-remedy.ts";
import { AppError, BugError, errorText, TurnError } from "../core/errors.ts";
import { FileFault } from "../core/ports/platform.ts";

/** What a transaction needs of a database; bun:sqlite's `Database` is one. */
export interface TransactionTarget {
  exec(sql: string): unknown;
  readonly inTransaction: boolean;
}

/**
 * Runs `body` in one immediate transaction and returns its value once COMMIT has succeeded. When COMMIT itself
 * fails, `landed` re-reads whether the change is there: true returns the value, false throws the fault, and a
 * ledger that can't tell throws `commit_in_doubt`. Without `landed` the fault is thrown.
 *
 * After a failed COMMIT its frames may still lie beyond the end of the log, where a crash could revive them. The
 * next transaction overwrites them: so the caller that is told "not there" has to write its own verdict next.
 */
export function transact<T>(db: TransactionTarget, body: () => T, landed?: () => boolean): T {
  db.exec("BEGIN IMMEDIATE");
  let value: T;
  try {
    value = body();
  } catch (error) {
    rollBack(db);
    throw error;
  }
  try {
    db.exec("COMMIT");
  } catch (cause) {
    rollBack(db);
    if (landed === undefined) throw cause;
    if (!reread(db, landed, cause)) throw cause;
  }
  return value;
}

function reread(db: TransactionTarget, landed: () => boolean, cause: unknown): boolean {
  const doubt = () =>
    new TurnError("commit_in_doubt", "the outcome of a commit can't be told until the next start", { cause });
  // Still inside: a read would see our own uncommitted rows and call them committed.
  if (db.inTransaction) throw doubt();
  try {
    return landed();
  } catch {
    throw doubt();
  }
}

/** The first fault is the one to report; a transaction that can't be rolled back shows in `inTransaction`. */
function rollBack(db: TransactionTarget): void {
  if (!db.inTransaction) return;
  try {
    db.exec("ROLLBACK");
  } catch {}
}

/** A fault of SQLite or of the files below it as a typed error that names the path and the way out, where there is one. */
export function turnFault(path: string, error: unknown): Error {
  if (error instanceof AppError || error instanceof BugError) return error;
  const code = sqliteCode(error);
  if (code.startsWith("SQLITE_CORRUPT") || code.startsWith("SQLITE_NOTADB")) {
    return new TurnError(
      "turns_corrupt",
      `the ledger ${path} is damaged (${code}): stop the host, move this file with its -wal and -shm files aside ` +
        "and restore a backup; without one the host starts again with an empty history",
      { cause: error },
    );
  }
  const errno = error instanceof FileFault ? error.errno : errnoOfSqlite(code);
  const remedy = errno === undefined ? undefined : diskRemedy(errno);
  const wayOut = remedy === undefined ? "" : `; ${remedy}`;
  return new TurnError("turns_failed", `the ledger ${path} failed: ${errorText(error)}${wayOut}`, {
    cause: error,
  });
}

function sqliteCode(error: unknown): string {
  const code = error instanceof Error && "code" in error ? error.code : undefined;
  return typeof code === "string" ? code : "";
}
