import { z } from "zod";
import { utf8Bytes } from "./json.ts";
import { ATTACHMENTS_MAX, FIELD_MAX_CHARS, TURN_TEXT_MAX_BYTES } from "./limits.ts";

/** Turns, runs, steps and tool calls as `host.sqlite` keeps them, and the wire shapes of a turn request. */

export const turnStatusSchema = z.enum(["queued", "running", "succeeded", "failed", "cancelled"]);
export type TurnStatus = z.infer<typeof turnStatusSchema>;

export const messageRoleSchema = z.enum(["user", "assistant", "notice"]);
export type MessageRole = z.infer<typeof messageRoleSchema>;

/**
 * One row of a conversation. `notice` rows (a failed turn, for example) are for people: they never enter a model's
 * history or a snapshot. `deliveryKey` marks an answer that arrived later; it is unique in its conversation.
 */
export const messageSchema = z.object({
  seq: z.int().min(1),
  conversationId: z.string().min(1),
  role: messageRoleSchema,
  content: z.string(),
  createdAt: z.string(),
  turnId: z.string().optional(),
  runId: z.string().optional(),
  deliveryKey: z.string().optional(),
  code: z.string().optional(),
});
export type Message = z.infer<typeof messageSchema>;

export interface Turn {
  readonly turnId: string;
  readonly requestId: string;
  readonly conversationId: string;
  readonly thread: string;
  readonly status: TurnStatus;
  readonly text: string;
  /** Physical reply route; host-only, never in a prompt. */
  readonly replyTo: string;
  readonly createdAt: string;
  readonly finishedAt?: string;
  readonly failure?: { code: string; message: string };
}

export interface Run {
  readonly runId: string;
  readonly turnId: string;
  /** The id of the turn's first run: claim identity and fingerprint stay the same over recovery runs. */
  readonly originRunId: string;
  readonly status: TurnStatus;
  readonly startedAt: string;
  readonly finishedAt?: string;
}

const idLength = `must have 1 to ${FIELD_MAX_CHARS} characters`;
const id = z.string("must be a text").trim().min(1, idLength).max(FIELD_MAX_CHARS, idLength);

/** A file that goes with a turn; `data` is base64. The harness checks its bounds. */
const turnAttachmentSchema = z.strictObject({
  mediaType: z.string("must be a text"),
  name: z.string("must be a text"),
  data: z.base64("must be base64"),
});
export type TurnAttachment = z.infer<typeof turnAttachmentSchema>;

/** `POST …/turns` of the terminal channel. `requestId` makes the turn idempotent. */
export const turnRequestSchema = z.strictObject({
  requestId: id,
  text: z
    .string("must be a text")
    .min(1, "must not be empty")
    .refine(
      (value) => utf8Bytes(value) <= TURN_TEXT_MAX_BYTES,
      `must be at most ${TURN_TEXT_MAX_BYTES} bytes of UTF-8`,
    ),
  attachments: z
    .array(turnAttachmentSchema, "must be a list")
    .max(ATTACHMENTS_MAX, `must be at most ${ATTACHMENTS_MAX}`)
    .optional(),
});

/** What an observer of a conversation sees. Committed events carry `seq`; previews (deltas) do not and are best effort. */
export const conversationEventSchema = z.discriminatedUnion("type", [
  z.object({ type: z.literal("message"), message: messageSchema }),
  z.object({ type: z.literal("turn"), turnId: z.string(), status: turnStatusSchema }),
  z.object({ type: z.literal("delta"), turnId: z.string(), text: z.string() }),
  z.object({
    type: z.literal("tool"),
    turnId: z.string(),
    /** Of this call, alone in its run: calls of one tool may be under way side by side. */
    callId: z.string(),
    name: z.string(),
    phase: z.enum(["started", "finished", "failed"]),
  }),
]);
export type ConversationEvent = z.infer<typeof conversationEventSchema>;
