import { constants, Database } from "bun:sqlite";
import { pathToFileURL } from "node:url";
import { errorText, TurnError } from "../core/errors.ts";
import type { FileSystem } from "../core/ports/platform.ts";
import { ledgerFiles, unsafeReason } from "./files.ts";
import { SCHEMA_VERSION, schemaVersion } from "./schema.ts";
import { turnFault } from "./transaction.ts";

/** What doctor learns of a ledger without writing or creating anything. */
export type TurnsCheck =
  | { readonly kind: "absent" }
  | {
      readonly kind: "ok";
      readonly schemaVersion: number;
      readonly unfinishedTurns: number;
      readonly openActivations: number;
    }
  /** An older schema, which the next start migrates, or a file that no start has filled yet. */
  | { readonly kind: "migration_due"; readonly schemaVersion: number }
  | { readonly kind: "newer_schema"; readonly schemaVersion: number }
  | { readonly kind: "unsafe" | "corrupt" | "unreadable"; readonly detail: string };

const OWNER_ONLY = 0o600;

/** Checks the ledger at `path` read-only, beside a running host too. Never throws and never writes. */
export function checkTurns({ path, fs }: { path: string; fs: FileSystem }): TurnsCheck {
  try {
    if (fs.lstat(path, "turns.stat") === undefined) return { kind: "absent" };
    for (const file of ledgerFiles(path)) {
      const stat = fs.lstat(file, "turns.stat");
      if (stat === undefined) continue;
      const reason =
        unsafeReason(fs, stat) ?? (fs.uid !== undefined && stat.mode !== OWNER_ONLY ? "is not 0600" : "");
      if (reason !== "") return { kind: "unsafe", detail: `${file} ${reason}` };
    }
    return openReadOnly(fs, path, inspect);
  } catch (error) {
    const fault = turnFault(path, error);
    const corrupt = fault instanceof TurnError && fault.code === "turns_corrupt";
    return { kind: corrupt ? "corrupt" : "unreadable", detail: errorText(fault) };
  }
}

function inspect(db: Database): TurnsCheck {
  const version = schemaVersion(db);
  if (version > SCHEMA_VERSION) return { kind: "newer_schema", schemaVersion: version };
  using quickCheck = db.prepare<{ quick_check: string }, []>("PRAGMA quick_check");
  const verdict = quickCheck.all().map((row) => row.quick_check);
  if (verdict.length !== 1 || verdict[0] !== "ok") {
    return { kind: "corrupt", detail: verdict.slice(0, 5).join("; ") };
  }
  if (version < SCHEMA_VERSION) return { kind: "migration_due", schemaVersion: version };
  return {
    kind: "ok",
    schemaVersion: version,
    unfinishedTurns: count(db, "SELECT count(*) AS n FROM turns WHERE finished_at IS NULL"),
    openActivations: count(db, "SELECT count(*) AS n FROM activation_outbox WHERE closed_at IS NULL"),
  };
}

function count(db: Database, sql: string): number {
  using statement = db.prepare<{ n: number }, []>(sql);
  return statement.get()?.n ?? 0;
}

/**
 * The schema version of the ledger, read without changing anything; undefined when that is not possible (a log
 * without its index, as a restored copy may have it).
 */
export function probeSchemaVersion(fs: FileSystem, path: string): number | undefined {
  try {
    return openReadOnly(fs, path, schemaVersion);
  } catch (error) {
    const fault = turnFault(path, error);
    if (fault instanceof TurnError && fault.code === "turns_corrupt") throw fault;
    return undefined;
  }
}

/**
 * A read-only connection that leaves no trace. With a log the shared index is opened read-only too; without a log
 * the file alone is the whole truth, and `immutable` keeps SQLite from creating a log and an index beside it.
 */
function openReadOnly<T>(fs: FileSystem, path: string, read: (db: Database) => T): T {
  const hasLog = (fs.lstat(`${path}-wal`, "turns.stat")?.size ?? 0) > 0;
  const url = `${pathToFileURL(path).href}?${hasLog ? "readonly_shm=1" : "immutable=1"}`;
  const db = new Database(url, constants.SQLITE_OPEN_READONLY | constants.SQLITE_OPEN_URI);
  try {
    return read(db);
  } finally {
    db.close();
  }
}
