import type { Database } from "bun:sqlite";
import { TurnError } from "../core/errors.ts";
import { transact } from "./transaction.ts";

/**
 * Owns: the numbered migrations of host.sqlite.
 *
 * I1. `PRAGMA user_version` is the number of migrations applied; each runs in its own transaction with that number.
 * I2. A published migration never changes; a new need is a new entry at the end.
 */

const FIRST = `
CREATE TABLE conversations (
  conversation_id TEXT PRIMARY KEY,
  base_id TEXT NOT NULL,
  created_at TEXT NOT NULL
) STRICT;

-- AUTOINCREMENT: a seq is a feed cursor and is never given twice.
CREATE TABLE turns (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  turn_id TEXT NOT NULL UNIQUE,
  request_id TEXT NOT NULL,
  conversation_id TEXT NOT NULL REFERENCES conversations (conversation_id),
  base_id TEXT NOT NULL,
  thread TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
  text TEXT NOT NULL,
  reply_to TEXT NOT NULL,
  created_at TEXT NOT NULL,
  finished_at TEXT,
  failure_code TEXT,
  failure_message TEXT,
  UNIQUE (base_id, request_id),
  CHECK ((finished_at IS NULL) = (status IN ('queued', 'running')))
) STRICT;
CREATE INDEX turns_unfinished ON turns (base_id, thread) WHERE finished_at IS NULL;

CREATE TABLE runs (
  run_id TEXT PRIMARY KEY,
  turn_id TEXT NOT NULL REFERENCES turns (turn_id),
  origin_run_id TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('running', 'succeeded', 'failed', 'cancelled')),
  started_at TEXT NOT NULL,
  finished_at TEXT
) STRICT;
CREATE INDEX runs_by_turn ON runs (turn_id);
CREATE INDEX runs_by_origin ON runs (origin_run_id);

CREATE TABLE messages (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  conversation_id TEXT NOT NULL REFERENCES conversations (conversation_id),
  base_id TEXT NOT NULL,
  role TEXT NOT NULL CHECK (role IN ('user', 'assistant', 'notice')),
  content TEXT NOT NULL,
  created_at TEXT NOT NULL,
  turn_id TEXT REFERENCES turns (turn_id),
  run_id TEXT REFERENCES runs (run_id),
  delivery_key TEXT,
  code TEXT,
  mirror INTEGER NOT NULL DEFAULT 0 CHECK (mirror IN (0, 1))
) STRICT;
CREATE UNIQUE INDEX messages_by_delivery ON messages (conversation_id, delivery_key) WHERE delivery_key IS NOT NULL;
CREATE INDEX messages_of_delivery ON messages (delivery_key) WHERE delivery_key IS NOT NULL;
CREATE INDEX messages_by_conversation ON messages (conversation_id, seq);
CREATE INDEX messages_by_base ON messages (base_id, seq) WHERE mirror = 0;

CREATE TABLE steps (
  step_id TEXT PRIMARY KEY,
  run_id TEXT NOT NULL REFERENCES runs (run_id),
  step_index INTEGER NOT NULL,
  model TEXT NOT NULL,
  started_at TEXT NOT NULL,
  finished_at TEXT,
  text TEXT,
  tool_calls TEXT,
  stop_reason TEXT,
  input_tokens INTEGER,
  output_tokens INTEGER,
  UNIQUE (run_id, step_index)
) STRICT;

CREATE TABLE tool_calls (
  run_id TEXT NOT NULL REFERENCES runs (run_id),
  call_id TEXT NOT NULL,
  step_id TEXT NOT NULL REFERENCES steps (step_id),
  server TEXT NOT NULL,
  tool TEXT NOT NULL,
  input TEXT NOT NULL,
  started_at TEXT NOT NULL,
  finished_at TEXT,
  is_error INTEGER,
  text TEXT,
  PRIMARY KEY (run_id, call_id)
) STRICT;

CREATE TABLE activation_outbox (
  origin_run_id TEXT PRIMARY KEY,
  conversation_id TEXT NOT NULL,
  history_boundary TEXT NOT NULL,
  snapshot_digest TEXT NOT NULL,
  created_at TEXT NOT NULL,
  closed_at TEXT
) STRICT;
CREATE INDEX activation_outbox_open ON activation_outbox (created_at) WHERE closed_at IS NULL;
`;

/** What exactly a tool call was bound to: the digest over server, version, tool and schema. */
const TOOL_BINDING = "ALTER TABLE tool_calls ADD COLUMN binding_digest TEXT;";

/** Model answers with their reasoning, which model gave them, and what people attach to a turn. */
const ANSWER_PARTS = `
ALTER TABLE steps ADD COLUMN usage_complete INTEGER CHECK (usage_complete IN (0, 1));
ALTER TABLE steps ADD COLUMN answered_by TEXT;
ALTER TABLE steps ADD COLUMN parts TEXT;

-- The bytes are gone once the turn has ended; the digest still tells a repeated request from another one.
CREATE TABLE turn_attachments (
  turn_id TEXT NOT NULL REFERENCES turns (turn_id),
  position INTEGER NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('image', 'document')),
  media_type TEXT NOT NULL,
  name TEXT NOT NULL,
  digest TEXT NOT NULL,
  data BLOB,
  PRIMARY KEY (turn_id, position)
) STRICT;
`;

/** In order; the first makes the ledger of the first release. */
export const MIGRATIONS: readonly string[] = [FIRST, TOOL_BINDING, ANSWER_PARTS];

/** The schema this build writes. */
export const SCHEMA_VERSION = MIGRATIONS.length;

export function schemaVersion(db: Database): number {
  using statement = db.prepare<{ user_version: number }, []>("PRAGMA user_version");
  return statement.get()?.user_version ?? 0;
}

/** The refusal of a ledger that a newer build wrote. */
export function newerSchema(path: string, found: number): TurnError {
  return new TurnError(
    "turns_newer_schema",
    `the ledger ${path} has schema ${found}, this build knows up to ${SCHEMA_VERSION}: ` +
      "start the newer build that wrote it, or restore a backup from before the upgrade",
  );
}

/** Brings the ledger to `SCHEMA_VERSION`, one transaction per migration. Returns how many were applied. */
export function migrate(db: Database, path: string): number {
  const found = schemaVersion(db);
  if (found > SCHEMA_VERSION) throw newerSchema(path, found);
  if (found === 0 && tableCount(db) > 0) {
    throw new TurnError(
      "turns_corrupt",
      `${path} is a database of something else: choose another state directory`,
    );
  }
  for (let version = found; version < SCHEMA_VERSION; version++) {
    transact(db, () => {
      db.exec(MIGRATIONS[version] ?? "");
      db.exec(`PRAGMA user_version = ${version + 1}`);
    });
  }
  return SCHEMA_VERSION - found;
}

function tableCount(db: Database): number {
  using statement = db.prepare<{ n: number }, []>("SELECT count(*) AS n FROM sqlite_schema");
  return statement.get()?.n ?? 0;
}
