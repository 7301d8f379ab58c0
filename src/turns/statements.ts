import type { Database, Statement } from "bun:sqlite";
import type { ActivationRow, AttachmentRow, HistoryRow, MessageRow, RunRow, TurnRow } from "./rows.ts";

const MESSAGE_COLUMNS =
  "seq, conversation_id, role, content, created_at, turn_id, run_id, delivery_key, code";

export type Statements = ReturnType<typeof prepareStatements>;

/** Every statement of the ledger, prepared once. `finalize` must run before the database is closed. */
export function prepareStatements(db: Database) {
  const prepared: { finalize(): void }[] = [];
  function prepare<Row, Params extends Record<string, string | number | Uint8Array | null>>(
    sql: string,
  ): Statement<Row, [Params]> {
    const statement = db.prepare<Row, [Params]>(sql);
    prepared.push(statement);
    return statement;
  }
  return {
    addConversation: prepare<void, { id: string; baseId: string; now: string }>(
      "INSERT INTO conversations VALUES ($id, $baseId, $now) ON CONFLICT DO NOTHING",
    ),

    turn: prepare<TurnRow, { turnId: string }>("SELECT * FROM turns WHERE turn_id = $turnId"),
    turnByRequest: prepare<TurnRow, { baseId: string; requestId: string }>(
      "SELECT * FROM turns WHERE base_id = $baseId AND request_id = $requestId",
    ),
    queuedTurns: prepare<{ n: number }, { baseId: string; thread: string }>(
      `SELECT count(*) AS n FROM turns
       WHERE finished_at IS NULL AND base_id = $baseId AND thread = $thread AND status = 'queued'`,
    ),
    addTurn: prepare<
      void,
      {
        turnId: string;
        requestId: string;
        conversationId: string;
        baseId: string;
        thread: string;
        text: string;
        replyTo: string;
        now: string;
      }
    >(
      `INSERT INTO turns (turn_id, request_id, conversation_id, base_id, thread, status, text, reply_to, created_at)
       VALUES ($turnId, $requestId, $conversationId, $baseId, $thread, 'queued', $text, $replyTo, $now)`,
    ),
    addAttachment: prepare<
      void,
      {
        turnId: string;
        position: number;
        kind: string;
        mediaType: string;
        name: string;
        digest: string;
        data: Uint8Array;
      }
    >(
      `INSERT INTO turn_attachments (turn_id, position, kind, media_type, name, digest, data)
       VALUES ($turnId, $position, $kind, $mediaType, $name, $digest, $data)`,
    ),
    attachments: prepare<AttachmentRow, { turnId: string }>(
      "SELECT kind, media_type, name, digest, data FROM turn_attachments WHERE turn_id = $turnId ORDER BY position",
    ),
    dropAttachments: prepare<void, { turnId: string }>(
      "UPDATE turn_attachments SET data = NULL WHERE turn_id = $turnId",
    ),
    turnRunning: prepare<void, { turnId: string }>(
      "UPDATE turns SET status = 'running' WHERE turn_id = $turnId",
    ),
    finishTurn: prepare<
      void,
      { turnId: string; status: string; code: string | null; message: string | null; now: string }
    >(
      `UPDATE turns SET status = $status, failure_code = $code, failure_message = $message, finished_at = $now
       WHERE turn_id = $turnId`,
    ),
    unfinishedTurns: prepare<TurnRow, Record<string, never>>(
      "SELECT * FROM turns WHERE finished_at IS NULL ORDER BY seq",
    ),

    run: prepare<RunRow, { runId: string }>("SELECT * FROM runs WHERE run_id = $runId"),
    firstRun: prepare<RunRow, { turnId: string }>(
      "SELECT * FROM runs WHERE turn_id = $turnId ORDER BY rowid LIMIT 1",
    ),
    addRun: prepare<void, { runId: string; turnId: string; originRunId: string; now: string }>(
      "INSERT INTO runs VALUES ($runId, $turnId, $originRunId, 'running', $now, NULL)",
    ),
    finishRuns: prepare<void, { turnId: string; status: string; now: string }>(
      `UPDATE runs SET status = $status, finished_at = $now WHERE turn_id = $turnId AND finished_at IS NULL`,
    ),
    statusOfOrigin: prepare<{ status: string }, { originRunId: string }>(
      `SELECT turns.status FROM runs JOIN turns ON turns.turn_id = runs.turn_id
       WHERE runs.origin_run_id = $originRunId LIMIT 1`,
    ),

    addStep: prepare<
      void,
      { stepId: string; runId: string; index: number; model: string; startedAt: string }
    >(
      `INSERT INTO steps (step_id, run_id, step_index, model, started_at)
       VALUES ($stepId, $runId, $index, $model, $startedAt)`,
    ),
    finishStep: prepare<
      void,
      {
        stepId: string;
        finishedAt: string;
        text: string;
        toolCalls: string;
        stopReason: string;
        inputTokens: number | null;
        outputTokens: number | null;
        usageComplete: number | null;
        answeredBy: string | null;
        parts: string | null;
      }
    >(
      `UPDATE steps SET finished_at = $finishedAt, text = $text, tool_calls = $toolCalls, stop_reason = $stopReason,
         input_tokens = $inputTokens, output_tokens = $outputTokens, usage_complete = $usageComplete,
         answered_by = $answeredBy, parts = $parts
       WHERE step_id = $stepId AND finished_at IS NULL`,
    ),
    addToolCall: prepare<
      void,
      {
        runId: string;
        callId: string;
        stepId: string;
        server: string;
        tool: string;
        bindingDigest: string;
        input: string;
        startedAt: string;
      }
    >(
      `INSERT INTO tool_calls (run_id, call_id, step_id, server, tool, binding_digest, input, started_at)
       VALUES ($runId, $callId, $stepId, $server, $tool, $bindingDigest, $input, $startedAt)`,
    ),
    finishToolCall: prepare<
      void,
      { runId: string; callId: string; finishedAt: string; isError: number; text: string }
    >(
      `UPDATE tool_calls SET finished_at = $finishedAt, is_error = $isError, text = $text
       WHERE run_id = $runId AND call_id = $callId AND finished_at IS NULL`,
    ),

    addMessage: prepare<
      MessageRow,
      {
        conversationId: string;
        baseId: string;
        role: string;
        content: string;
        now: string;
        turnId: string | null;
        runId: string | null;
        deliveryKey: string | null;
        code: string | null;
        mirror: number;
      }
    >(
      `INSERT INTO messages
         (conversation_id, base_id, role, content, created_at, turn_id, run_id, delivery_key, code, mirror)
       VALUES ($conversationId, $baseId, $role, $content, $now, $turnId, $runId, $deliveryKey, $code, $mirror)
       RETURNING ${MESSAGE_COLUMNS}`,
    ),
    delivered: prepare<MessageRow, { conversationId: string; deliveryKey: string }>(
      `SELECT ${MESSAGE_COLUMNS} FROM messages
       WHERE conversation_id = $conversationId AND delivery_key = $deliveryKey`,
    ),
    deliveredAnywhere: prepare<MessageRow, { baseId: string; deliveryKey: string }>(
      `SELECT ${MESSAGE_COLUMNS} FROM messages
       WHERE delivery_key = $deliveryKey AND base_id = $baseId ORDER BY mirror, seq LIMIT 1`,
    ),
    // A user message of a turn carries the id of its first run, the answer that of the run which gave it.
    history: prepare<HistoryRow, { conversationId: string; exceptRunId: string | null; limit: number }>(
      `SELECT m.role, m.content, m.created_at, m.delivery_key, runs.origin_run_id
       FROM messages m
       LEFT JOIN turns ON turns.turn_id = m.turn_id
       LEFT JOIN runs ON runs.run_id = m.run_id
       WHERE m.conversation_id = $conversationId AND m.role <> 'notice'
         AND (m.turn_id IS NULL OR turns.status = 'succeeded')
         AND ($exceptRunId IS NULL OR m.run_id IS NULL OR $exceptRunId NOT IN (m.run_id, runs.origin_run_id))
       ORDER BY m.seq DESC LIMIT $limit`,
    ),
    feed: prepare<MessageRow, { baseId: string; afterSeq: number; limit: number }>(
      `SELECT ${MESSAGE_COLUMNS} FROM messages
       WHERE base_id = $baseId AND mirror = 0 AND seq > $afterSeq ORDER BY seq LIMIT $limit`,
    ),
    tail: prepare<MessageRow, { baseId: string; limit: number }>(
      `SELECT ${MESSAGE_COLUMNS} FROM messages
       WHERE base_id = $baseId AND mirror = 0 ORDER BY seq DESC LIMIT $limit`,
    ),

    addActivation: prepare<
      void,
      {
        originRunId: string;
        conversationId: string;
        historyBoundary: string;
        snapshotDigest: string;
        now: string;
      }
    >(
      `INSERT INTO activation_outbox
       VALUES ($originRunId, $conversationId, $historyBoundary, $snapshotDigest, $now, NULL)`,
    ),
    closeActivation: prepare<void, { originRunId: string; now: string }>(
      "UPDATE activation_outbox SET closed_at = $now WHERE origin_run_id = $originRunId AND closed_at IS NULL",
    ),
    activation: prepare<ActivationRow, { originRunId: string }>(
      `SELECT origin_run_id, conversation_id, history_boundary, snapshot_digest, created_at
       FROM activation_outbox WHERE origin_run_id = $originRunId`,
    ),
    openActivations: prepare<ActivationRow, Record<string, never>>(
      `SELECT origin_run_id, conversation_id, history_boundary, snapshot_digest, created_at
       FROM activation_outbox WHERE closed_at IS NULL ORDER BY created_at, origin_run_id`,
    ),

    finalize() {
      for (const statement of prepared) statement.finalize();
    },
  };
}
