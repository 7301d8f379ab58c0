import { sha256Hex } from "../core/digest.ts";
import { assert, BugError, ok, type Result, refuse, TurnError } from "../core/errors.ts";
import { SECOND_MS } from "../core/limits.ts";
import type { Attachment } from "../core/ports/model.ts";
import type { AdmitTurn, AppendDelivered, CommitTurn, TurnStore } from "../core/ports/turns.ts";
import type { Message, Run, Turn } from "../core/turn.ts";
import { messageOf, runOf, type TurnRow, turnOf } from "./rows.ts";
import type { Statements } from "./statements.ts";

/**
 * Owns: what each change of a turn does to the rows. Does not own: the transaction around it.
 *
 * I1. A turn's status and its runs' change together, with the rows that make the change visible.
 * I2. A terminal turn never changes again.
 */
export interface LedgerWrites {
  admit(turn: AdmitTurn): Result<{ turn: Turn; replayed: boolean }>;
  startRun(turnId: string, runId: string, now: string): { run: Run; userMessage?: Message };
  commitTurn(commit: CommitTurn): Message;
  endTurn(turnId: string, end: Parameters<TurnStore["endTurn"]>[1]): Message[];
  appendDelivered(append: AppendDelivered): Result<{ message: Message; appended: boolean }>;
}

export function createLedgerWrites(sql: Statements): LedgerWrites {
  interface NewMessage {
    readonly conversationId: string;
    readonly baseId: string;
    readonly role: Message["role"];
    readonly content: string;
    readonly now: string;
    readonly turnId?: string;
    readonly runId?: string;
    readonly deliveryKey?: string;
    readonly code?: string;
    readonly mirror?: boolean;
  }

  function addMessage(message: NewMessage): Message {
    const row = sql.addMessage.get({
      conversationId: message.conversationId,
      baseId: message.baseId,
      role: message.role,
      content: message.content,
      now: message.now,
      turnId: message.turnId ?? null,
      runId: message.runId ?? null,
      deliveryKey: message.deliveryKey ?? null,
      code: message.code ?? null,
      mirror: message.mirror === true ? 1 : 0,
    });
    assert(row, "an inserted message is returned");
    return messageOf(row);
  }

  const ofTurn = (turn: TurnRow) => ({
    conversationId: turn.conversation_id,
    baseId: turn.base_id,
    turnId: turn.turn_id,
  });

  function turnRow(turnId: string): TurnRow {
    const row = sql.turn.get({ turnId });
    if (row === null) throw new BugError(`turn ${turnId} is not in the ledger`);
    return row;
  }

  type NewAttachment = ReturnType<typeof attachmentRow>;

  function sameAttachments(turnId: string, rows: readonly NewAttachment[]): boolean {
    const stored = sql.attachments.all({ turnId });
    return (
      stored.length === rows.length &&
      stored.every((row, at) => {
        const { kind, mediaType, name, digest } = rows[at] ?? {};
        return (
          row.kind === kind && row.media_type === mediaType && row.name === name && row.digest === digest
        );
      })
    );
  }

  return {
    admit({ maxQueued, attachments = [], ...turn }) {
      const rows = attachments.map(attachmentRow);
      const first = sql.turnByRequest.get({ baseId: turn.baseId, requestId: turn.requestId });
      if (first !== null) {
        return first.thread === turn.thread &&
          first.text === turn.text &&
          sameAttachments(first.turn_id, rows)
          ? ok({ turn: turnOf(first), replayed: true })
          : refuse("request_conflict", "this request id was used for another text, attachment or thread");
      }
      const queued = sql.queuedTurns.get({ baseId: turn.baseId, thread: turn.thread })?.n ?? 0;
      if (queued >= maxQueued) {
        return refuse("queue_full", `${queued} turns already wait in this thread`, SECOND_MS);
      }
      sql.addConversation.run({ id: turn.conversationId, baseId: turn.baseId, now: turn.now });
      sql.addTurn.run(turn);
      for (const row of rows) sql.addAttachment.run({ turnId: turn.turnId, ...row });
      return ok({ turn: turnOf(turnRow(turn.turnId)), replayed: false });
    },

    startRun(turnId, runId, now) {
      const turn = turnRow(turnId);
      if (turn.finished_at !== null) throw new TurnError("turn_finished", `turn ${turnId} has ended`);
      const first = sql.firstRun.get({ turnId });
      sql.finishRuns.run({ turnId, status: "failed", now });
      sql.addRun.run({ runId, turnId, originRunId: first?.run_id ?? runId, now });
      sql.turnRunning.run({ turnId });
      const row = sql.run.get({ runId });
      assert(row, "a started run is in the ledger");
      if (first !== null) return { run: runOf(row) };
      const userMessage = addMessage({ ...ofTurn(turn), role: "user", content: turn.text, now, runId });
      return { run: runOf(row), userMessage };
    },

    commitTurn({ turnId, runId, assistantText, now, activation }) {
      const turn = turnRow(turnId);
      const run = sql.run.get({ runId });
      if (run === null || run.turn_id !== turnId) throw new BugError(`run ${runId} is not of turn ${turnId}`);
      if (run.finished_at !== null || turn.finished_at !== null) {
        throw new TurnError("turn_finished", `run ${runId} has ended and can't commit`);
      }
      const message = addMessage({ ...ofTurn(turn), role: "assistant", content: assistantText, now, runId });
      sql.finishRuns.run({ turnId, status: "succeeded", now });
      sql.finishTurn.run({ turnId, status: "succeeded", code: null, message: null, now });
      sql.dropAttachments.run({ turnId });
      if (activation !== undefined) {
        sql.addActivation.run({
          originRunId: run.origin_run_id,
          conversationId: turn.conversation_id,
          historyBoundary: activation.historyBoundary,
          snapshotDigest: activation.snapshotDigest,
          now,
        });
      }
      return message;
    },

    endTurn(turnId, { status, code, message, now }) {
      const turn = turnRow(turnId);
      if (turn.finished_at !== null) return [];
      const rows: Message[] = [];
      // What was asked stays visible, also when no run ever began.
      if (sql.firstRun.get({ turnId }) === null) {
        rows.push(addMessage({ ...ofTurn(turn), role: "user", content: turn.text, now }));
      }
      sql.finishRuns.run({ turnId, status, now });
      sql.finishTurn.run({ turnId, status, code, message, now });
      sql.dropAttachments.run({ turnId });
      rows.push(addMessage({ ...ofTurn(turn), role: "notice", content: message, now, code }));
      return rows;
    },

    appendDelivered({ conversationId, baseId, deliveryKey, text, now, mirror }) {
      const first = sql.delivered.get({ conversationId, deliveryKey });
      if (first !== null) {
        return first.content === text
          ? ok({ message: messageOf(first), appended: false })
          : refuse("request_conflict", "this delivery key was used for another text");
      }
      sql.addConversation.run({ id: conversationId, baseId, now });
      const message = { conversationId, baseId, role: "assistant" as const, content: text, now };
      return ok({ message: addMessage({ ...message, deliveryKey, mirror }), appended: true });
    },
  };
}

function attachmentRow({ kind, mediaType, name, data }: Attachment, position: number) {
  return { position, kind, mediaType, name, digest: sha256Hex(data), data };
}
