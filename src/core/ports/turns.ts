import type { Result } from "../errors.ts";
import type { JsonValue } from "../json.ts";
import type { SnapshotMessage } from "../snapshot.ts";
import type { Message, Run, Turn } from "../turn.ts";
import type { Attachment, ReplyPart } from "./model.ts";

export interface AdmitTurn {
  readonly turnId: string;
  readonly requestId: string;
  readonly conversationId: string;
  /** Conversation without its daily bucket. */
  readonly baseId: string;
  readonly thread: string;
  readonly text: string;
  /** Kept until the turn ends, and their digests after that. */
  readonly attachments?: readonly Attachment[];
  readonly replyTo: string;
  readonly now: string;
  /** A new turn is refused (`queue_full`) when this many already wait in its thread; a replay never is. */
  readonly maxQueued: number;
}

/** What one model call was given and gave back, journaled before and after it. */
export interface StepRecord {
  readonly stepId: string;
  readonly runId: string;
  readonly index: number;
  readonly model: string;
  readonly startedAt: string;
}

export interface StepOutcome {
  readonly finishedAt: string;
  readonly text: string;
  readonly toolCalls: readonly { callId: string; name: string; input: JsonValue }[];
  readonly stopReason: string;
  readonly inputTokens?: number;
  readonly outputTokens?: number;
  /** Whether the tokens are all that the step cost. */
  readonly usageComplete?: boolean;
  /** The model that answered, where it may be another than the step was opened with. */
  readonly answeredBy?: string;
  /** The answer as its model needs it back, reasoning included; read by nothing that shows it to a person. */
  readonly parts?: readonly ReplyPart[];
}

export interface ToolCallRecord {
  readonly runId: string;
  readonly stepId: string;
  readonly callId: string;
  readonly server: string;
  readonly tool: string;
  /** `BoundTool.digest` of what was called. */
  readonly bindingDigest: string;
  readonly input: JsonValue;
  readonly startedAt: string;
}

export interface ToolCallOutcome {
  readonly finishedAt: string;
  readonly isError: boolean;
  readonly text: string;
}

/** "Activation due": written in the commit of a turn, closed when the continuation store has followed. */
export interface OutboxRow {
  readonly originRunId: string;
  readonly conversationId: string;
  readonly historyBoundary: string;
  readonly snapshotDigest: string;
  readonly createdAt: string;
}

export interface CommitTurn {
  readonly turnId: string;
  readonly runId: string;
  readonly assistantText: string;
  readonly now: string;
  /** Present when active claims are bound to a snapshot of this run. */
  readonly activation?: { readonly historyBoundary: string; readonly snapshotDigest: string };
}

/** What the ledger knows of an origin run; decides what happens to its pending claims at start. */
export type RunVerdict = "succeeded" | "unfinished" | "failed" | "cancelled" | "unknown";

export interface AppendDelivered {
  readonly conversationId: string;
  readonly baseId: string;
  readonly deliveryKey: string;
  readonly text: string;
  readonly now: string;
  /** True for a copy in a second bucket of the same conversation, which a feed over all buckets leaves out. */
  readonly mirror: boolean;
}

/**
 * The ledger of turns: history, turns, runs, steps, tool calls and the activation outbox. Every method is one
 * transaction, durable when its promise resolves. Faults throw `TurnError`.
 */
export interface TurnStore {
  /**
   * Request ids are unique in a base conversation: the same id with the same thread, text and attachments gives the
   * first turn again (`replayed`), also from another daily bucket; else `request_conflict`. Promises resolve in admission order.
   */
  admit(turn: AdmitTurn): Promise<Result<{ turn: Turn; replayed: boolean }>>;
  getTurn(turnId: string): Promise<Turn | undefined>;
  /** What was sent with a turn that has not ended, in its order; empty after the end. */
  attachments(turnId: string): Promise<Attachment[]>;
  /** Starts a run: turn `queued` → `running`, the user message appended (and returned) with the first run. */
  startRun(turnId: string, runId: string, now: string): Promise<{ run: Run; userMessage?: Message }>;
  openStep(step: StepRecord): Promise<void>;
  closeStep(stepId: string, outcome: StepOutcome): Promise<void>;
  openToolCall(call: ToolCallRecord): Promise<void>;
  closeToolCall(runId: string, callId: string, outcome: ToolCallOutcome): Promise<void>;
  /** One transaction: assistant message, run and turn succeeded, outbox row. */
  commitTurn(commit: CommitTurn): Promise<Message>;
  /**
   * Run and turn failed or cancelled, with a notice row in the conversation. Returns the rows appended, ascending:
   * the user message too when no run had begun; none when the turn was terminal already.
   */
  endTurn(
    turnId: string,
    end: { status: "failed" | "cancelled"; code: string; message: string; now: string },
  ): Promise<Message[]>;
  /** Turns that are queued or running, oldest first: what a crash interrupted, or what still waits. */
  unfinishedTurns(): Promise<Turn[]>;
  /** Verdict by origin run id (the id of a turn's first run). */
  verdict(originRunId: string): Promise<RunVerdict>;
  openActivations(): Promise<OutboxRow[]>;
  /** The outbox row of an origin run, open or closed; undefined when its commit bound no snapshot. */
  activationOf(originRunId: string): Promise<OutboxRow | undefined>;
  closeActivation(originRunId: string, now: string): Promise<void>;

  /**
   * What the model may remember of the exact conversation id: at most the newest `limit` messages, oldest first, as
   * whole turns that succeeded (in commit order, pairs adjacent) and delivered answers; no notices, no failed,
   * cancelled or running turns (a cancelled request must not come back as an unanswered one), not `exceptRunId`.
   */
  history(conversationId: string, limit: number, exceptRunId?: string): Promise<SnapshotMessage[]>;
  /** Feed over all buckets of a base conversation, mirrors left out, ascending by seq after `afterSeq`. */
  feed(baseId: string, afterSeq: number, limit: number): Promise<Message[]>;
  /** The newest `limit` rows of that feed, ascending. */
  tail(baseId: string, limit: number): Promise<Message[]>;
  /**
   * Appends a delivered answer under its delivery key. The same key and text again is a no-op that returns the
   * first row with `appended: false`; the same key with another text is a `request_conflict`.
   */
  appendDelivered(append: AppendDelivered): Promise<Result<{ message: Message; appended: boolean }>>;
  /** The row that proves a delivery, anywhere below the base conversation. */
  findDelivered(baseId: string, deliveryKey: string): Promise<Message | undefined>;
  close(): Promise<void>;
}
