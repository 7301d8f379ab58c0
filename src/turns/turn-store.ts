import { Database } from "bun:sqlite";
import { assert, TurnError } from "../core/errors.ts";
import { SECOND_MS } from "../core/limits.ts";
import type { FileSystem, Logger } from "../core/ports/platform.ts";
import type { RunVerdict, TurnStore } from "../core/ports/turns.ts";
import { probeSchemaVersion } from "./check.ts";
import { securePaths } from "./files.ts";
import { wholeTurns } from "./history.ts";
import { createLedgerWrites } from "./ledger-writes.ts";
import { activationOf, attachmentOf, historyOf, messageOf, turnOf } from "./rows.ts";
import { migrate, newerSchema, SCHEMA_VERSION, schemaVersion } from "./schema.ts";
import { prepareStatements, type Statements } from "./statements.ts";
import { transact, turnFault } from "./transaction.ts";

/**
 * Owns: host.sqlite, its connection and one transaction per port method.
 * Does not own: what a turn does (harness), who owns the state directory (host).
 *
 * I1. A method's promise resolves only after COMMIT with synchronous FULL, so what it answers survives a power cut.
 * I2. A ledger of a newer build is refused before anything is opened for writing.
 * I3. The files are 0600 and the owner's; anything else at their paths is refused, never followed.
 */
export interface TurnStoreOptions {
  readonly path: string;
  readonly fs: FileSystem;
  readonly logger: Logger;
}

/** How long a statement waits for a lock of another connection, such as a backup; in milliseconds. */
const BUSY_TIMEOUT_MS = 5 * SECOND_MS;

/**
 * Opens or creates the ledger and brings its schema up to date. Its folder must exist. Rejects with a `TurnError`:
 * `turns_unsafe_file`, `turns_newer_schema`, `turns_corrupt` or `turns_failed`.
 */
export async function openTurnStore({ path, fs, logger }: TurnStoreOptions): Promise<TurnStore> {
  try {
    for (const file of securePaths(fs, path)) logger.warn("closed the mode of a ledger file", { file });
    const found = probeSchemaVersion(fs, path);
    if (found !== undefined && found > SCHEMA_VERSION) throw newerSchema(path, found);
    return openDatabase({ path, fs, logger });
  } catch (error) {
    throw turnFault(path, error);
  }
}

function openDatabase({ path, fs, logger }: TurnStoreOptions): TurnStore {
  const db = new Database(path, { readwrite: true, create: false, strict: true });
  try {
    db.exec(`PRAGMA busy_timeout = ${BUSY_TIMEOUT_MS}`);
    const found = schemaVersion(db);
    if (found > SCHEMA_VERSION) throw newerSchema(path, found);
    configure(db);
    const applied = migrate(db, path);
    if (applied > 0) logger.info("ledger schema is up to date", { from: found, to: SCHEMA_VERSION });
    securePaths(fs, path);
    return createStore(path, db, prepareStatements(db));
  } catch (error) {
    db.close();
    throw error;
  }
}

function configure(db: Database): void {
  {
    using mode = db.prepare<{ journal_mode: string }, []>("PRAGMA journal_mode = WAL");
    if (mode.get()?.journal_mode !== "wal") {
      throw new TurnError("turns_failed", "the filesystem below the state directory can't hold a WAL ledger");
    }
  }
  db.exec("PRAGMA synchronous = FULL");
  // Only macOS tells the two apart: there a plain fsync may stay in the drive's cache.
  db.exec("PRAGMA fullfsync = ON");
  db.exec("PRAGMA checkpoint_fullfsync = ON");
  db.exec("PRAGMA foreign_keys = ON");
  db.exec("PRAGMA trusted_schema = OFF");
}

const VERDICTS: Record<string, RunVerdict> = {
  queued: "unfinished",
  running: "unfinished",
  succeeded: "succeeded",
  failed: "failed",
  cancelled: "cancelled",
};

function createStore(path: string, db: Database, sql: Statements): TurnStore {
  const writes = createLedgerWrites(sql);
  let closed = false;

  function guard<T>(work: () => T): T {
    if (closed) throw new TurnError("service_stopping", "the ledger is closed");
    try {
      return work();
    } catch (error) {
      throw turnFault(path, error);
    }
  }
  const write = <T>(body: () => T, landed?: () => boolean): T => guard(() => transact(db, body, landed));

  return {
    admit: async (turn) => write(() => writes.admit(turn)),
    getTurn: async (turnId) =>
      guard(() => {
        const row = sql.turn.get({ turnId });
        return row === null ? undefined : turnOf(row);
      }),
    attachments: async (turnId) => guard(() => sql.attachments.all({ turnId }).flatMap(attachmentOf)),
    startRun: async (turnId, runId, now) => write(() => writes.startRun(turnId, runId, now)),
    openStep: async (step) => write(() => void sql.addStep.run({ ...step })),
    closeStep: async (stepId, outcome) =>
      write(() => {
        const { changes } = sql.finishStep.run({
          stepId,
          finishedAt: outcome.finishedAt,
          text: outcome.text,
          toolCalls: JSON.stringify(outcome.toolCalls),
          stopReason: outcome.stopReason,
          inputTokens: outcome.inputTokens ?? null,
          outputTokens: outcome.outputTokens ?? null,
          usageComplete: outcome.usageComplete === undefined ? null : Number(outcome.usageComplete),
          answeredBy: outcome.answeredBy ?? null,
          parts: outcome.parts === undefined ? null : JSON.stringify(outcome.parts),
        });
        assert(changes === 1, "a step is opened before it is closed, once");
      }),
    openToolCall: async (call) =>
      write(() => void sql.addToolCall.run({ ...call, input: JSON.stringify(call.input) })),
    closeToolCall: async (runId, callId, { finishedAt, isError, text }) =>
      write(() => {
        const outcome = { runId, callId, finishedAt, isError: isError ? 1 : 0, text };
        assert(
          sql.finishToolCall.run(outcome).changes === 1,
          "a tool call is opened before it is closed, once",
        );
      }),
    commitTurn: async (commit) =>
      write(
        () => writes.commitTurn(commit),
        () => sql.run.get({ runId: commit.runId })?.status === "succeeded",
      ),
    endTurn: async (turnId, end) => write(() => writes.endTurn(turnId, end)),
    unfinishedTurns: async () => guard(() => sql.unfinishedTurns.all({}).map(turnOf)),
    verdict: async (originRunId) =>
      guard(() => VERDICTS[sql.statusOfOrigin.get({ originRunId })?.status ?? ""] ?? "unknown"),
    openActivations: async () => guard(() => sql.openActivations.all({}).map(activationOf)),
    activationOf: async (originRunId) =>
      guard(() => {
        const row = sql.activation.get({ originRunId });
        return row === null ? undefined : activationOf(row);
      }),
    closeActivation: async (originRunId, now) =>
      write(() => void sql.closeActivation.run({ originRunId, now })),
    history: async (conversationId, limit, exceptRunId) =>
      guard(() => {
        const rows = sql.history.all({ conversationId, limit, exceptRunId: exceptRunId ?? null });
        return wholeTurns(rows.reverse().map(historyOf));
      }),
    feed: async (baseId, afterSeq, limit) =>
      guard(() => sql.feed.all({ baseId, afterSeq, limit }).map(messageOf)),
    tail: async (baseId, limit) => guard(() => sql.tail.all({ baseId, limit }).reverse().map(messageOf)),
    appendDelivered: async (append) => write(() => writes.appendDelivered(append)),
    findDelivered: async (baseId, deliveryKey) =>
      guard(() => {
        const row = sql.deliveredAnywhere.get({ baseId, deliveryKey });
        return row === null ? undefined : messageOf(row);
      }),
    async close() {
      if (closed) return;
      closed = true;
      sql.finalize();
      db.close();
    },
  };
}
