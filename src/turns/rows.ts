import type { Attachment } from "../core/ports/model.ts";
import type { OutboxRow } from "../core/ports/turns.ts";
import type { SnapshotMessage } from "../core/snapshot.ts";
import type { Message, MessageRole, Run, Turn, TurnStatus } from "../core/turn.ts";

/** Rows as SQLite gives them (STRICT tables and CHECKs keep their types) and the values they become. */

export interface TurnRow {
  turn_id: string;
  request_id: string;
  conversation_id: string;
  base_id: string;
  thread: string;
  status: TurnStatus;
  text: string;
  reply_to: string;
  created_at: string;
  finished_at: string | null;
  failure_code: string | null;
  failure_message: string | null;
}

export interface AttachmentRow {
  kind: "image" | "document";
  media_type: string;
  name: string;
  digest: string;
  data: Uint8Array | null;
}

export interface RunRow {
  run_id: string;
  turn_id: string;
  origin_run_id: string;
  status: TurnStatus;
  started_at: string;
  finished_at: string | null;
}

export interface MessageRow {
  seq: number;
  conversation_id: string;
  role: MessageRole;
  content: string;
  created_at: string;
  turn_id: string | null;
  run_id: string | null;
  delivery_key: string | null;
  code: string | null;
}

export interface HistoryRow {
  role: "user" | "assistant";
  content: string;
  created_at: string;
  origin_run_id: string | null;
  delivery_key: string | null;
}

export interface ActivationRow {
  origin_run_id: string;
  conversation_id: string;
  history_boundary: string;
  snapshot_digest: string;
  created_at: string;
}

export function turnOf(row: TurnRow): Turn {
  return {
    turnId: row.turn_id,
    requestId: row.request_id,
    conversationId: row.conversation_id,
    thread: row.thread,
    status: row.status,
    text: row.text,
    replyTo: row.reply_to,
    createdAt: row.created_at,
    ...(row.finished_at === null ? {} : { finishedAt: row.finished_at }),
    ...(row.failure_code === null
      ? {}
      : { failure: { code: row.failure_code, message: row.failure_message ?? "" } }),
  };
}

/** Nothing once the bytes are gone. */
export function attachmentOf({ kind, media_type, name, data }: AttachmentRow): Attachment[] {
  return data === null ? [] : [{ kind, mediaType: media_type, name, data }];
}

export function runOf(row: RunRow): Run {
  return {
    runId: row.run_id,
    turnId: row.turn_id,
    originRunId: row.origin_run_id,
    status: row.status,
    startedAt: row.started_at,
    ...(row.finished_at === null ? {} : { finishedAt: row.finished_at }),
  };
}

export function messageOf(row: MessageRow): Message {
  return {
    seq: row.seq,
    conversationId: row.conversation_id,
    role: row.role,
    content: row.content,
    createdAt: row.created_at,
    ...(row.turn_id === null ? {} : { turnId: row.turn_id }),
    ...(row.run_id === null ? {} : { runId: row.run_id }),
    ...(row.delivery_key === null ? {} : { deliveryKey: row.delivery_key }),
    ...(row.code === null ? {} : { code: row.code }),
  };
}

export function historyOf(row: HistoryRow): SnapshotMessage {
  return {
    role: row.role,
    content: row.content,
    timestamp: row.created_at,
    ...(row.origin_run_id === null ? {} : { runId: row.origin_run_id }),
    ...(row.delivery_key === null ? {} : { idempotencyKey: row.delivery_key }),
  };
}

export function activationOf(row: ActivationRow): OutboxRow {
  return {
    originRunId: row.origin_run_id,
    conversationId: row.conversation_id,
    historyBoundary: row.history_boundary,
    snapshotDigest: row.snapshot_digest,
    createdAt: row.created_at,
  };
}
