import { z } from "zod";
import { sha256Joined } from "./digest.ts";
import { canonicalJson, utf8Bytes } from "./json.ts";
import {
  SNAPSHOT_CONVERSATION_ID_MAX_BYTES,
  SNAPSHOT_MAX_BYTES,
  SNAPSHOT_MAX_MESSAGE_BYTES,
  SNAPSHOT_MAX_MESSAGES,
  SNAPSHOT_RUN_ID_MAX_BYTES,
} from "./limits.ts";
import { type OriginContextRef, originContextRefSchema } from "./record.ts";

/**
 * The immutable origin snapshot (store-format.md §4): whole retained history turns, ending with the completed
 * user and assistant pair of the origin run.
 *
 * I1. Size pressure removes whole oldest turns; content is never cut and a pair never split.
 * I2. The file content is the canonical JSON itself, so `bytes` and `digest` can be recomputed from it.
 */

const exactIso = z
  .string()
  .refine((value) => !Number.isNaN(Date.parse(value)) && new Date(value).toISOString() === value, {
    message: "must be an exact ISO 8601 UTC timestamp with milliseconds",
  });
const bounded = (bytes: number) =>
  z
    .string()
    .min(1)
    .refine((value) => utf8Bytes(value) <= bytes, `must be at most ${bytes} bytes of UTF-8`);

export const snapshotMessageSchema = z.strictObject({
  role: z.enum(["system", "user", "assistant", "tool"]),
  content: z
    .string()
    .refine(
      (value) => utf8Bytes(value) <= SNAPSHOT_MAX_MESSAGE_BYTES,
      `must be at most ${SNAPSHOT_MAX_MESSAGE_BYTES} bytes`,
    ),
  name: bounded(SNAPSHOT_RUN_ID_MAX_BYTES).optional(),
  timestamp: exactIso.optional(),
  runId: bounded(SNAPSHOT_RUN_ID_MAX_BYTES).optional(),
  idempotencyKey: bounded(SNAPSHOT_RUN_ID_MAX_BYTES).optional(),
});
export type SnapshotMessage = z.infer<typeof snapshotMessageSchema>;

export const snapshotSchema = z
  .strictObject({
    schemaVersion: z.literal(1),
    conversationId: bounded(SNAPSHOT_CONVERSATION_ID_MAX_BYTES),
    originRunId: bounded(SNAPSHOT_RUN_ID_MAX_BYTES),
    historyBoundary: bounded(SNAPSHOT_RUN_ID_MAX_BYTES),
    capturedAt: exactIso,
    messages: z.array(snapshotMessageSchema).min(2).max(SNAPSHOT_MAX_MESSAGES),
  })
  .superRefine((snapshot, context) => {
    if (snapshot.historyBoundary !== snapshot.originRunId) {
      context.addIssue({ code: "custom", path: ["historyBoundary"], message: "must equal originRunId" });
    }
    const [user, assistant] = snapshot.messages.slice(-2);
    const ofOrigin = (message: SnapshotMessage | undefined, role: string) =>
      message?.role === role &&
      message.runId === snapshot.originRunId &&
      message.timestamp === snapshot.capturedAt;
    if (!ofOrigin(user, "user") || !ofOrigin(assistant, "assistant")) {
      context.addIssue({
        code: "custom",
        path: ["messages"],
        message: "must end with the origin user/assistant pair",
      });
    }
  });
export type OriginSnapshot = z.infer<typeof snapshotSchema>;

/** The bytes of the blob file: canonical JSON, no newline. */
export function snapshotJson(snapshot: OriginSnapshot): string {
  return canonicalJson(snapshot);
}

/** Digest of the canonical JSON of a snapshot (store-format.md §3). */
export function snapshotDigest(json: string): string {
  return sha256Joined("mono-agent-origin-context-v1", json);
}

/** The reference that a record keeps to a blob with this content. */
export function snapshotRef(snapshot: OriginSnapshot, json: string): OriginContextRef {
  return originContextRefSchema.parse({
    schemaVersion: 1,
    digest: snapshotDigest(json),
    bytes: utf8Bytes(json),
    messageCount: snapshot.messages.length,
  });
}

export interface SnapshotInput {
  readonly conversationId: string;
  readonly originRunId: string;
  readonly capturedAt: string;
  /** Prior history of the exact bucket, oldest first, without the origin turn. */
  readonly history: readonly SnapshotMessage[];
  readonly userText: string;
  readonly assistantText: string;
}

/**
 * Builds the snapshot of a completed turn: newest whole turns first, up to 64 messages, 64 KiB a message and
 * 256 KiB in all (host-facts.md §4). A turn with an invalid or oversized message is dropped whole. Returns
 * undefined when the origin pair alone does not fit: the origin run must then fail.
 */
export function buildSnapshot(input: SnapshotInput): OriginSnapshot | undefined {
  const pair: SnapshotMessage[] = [
    { role: "user", content: input.userText, runId: input.originRunId, timestamp: input.capturedAt },
    {
      role: "assistant",
      content: input.assistantText,
      runId: input.originRunId,
      timestamp: input.capturedAt,
    },
  ];
  const kept: SnapshotMessage[][] = [];
  let messages = pair.length;
  for (const group of groupTurns(input.history).reverse()) {
    if (group.some((message) => !snapshotMessageSchema.safeParse(message).success)) continue;
    if (messages + group.length > SNAPSHOT_MAX_MESSAGES) break;
    kept.unshift(group);
    messages += group.length;
  }
  const assemble = (groups: SnapshotMessage[][]): OriginSnapshot => ({
    schemaVersion: 1,
    conversationId: input.conversationId,
    originRunId: input.originRunId,
    historyBoundary: input.originRunId,
    capturedAt: input.capturedAt,
    messages: [...groups.flat(), ...pair],
  });
  const fits = (snapshot: OriginSnapshot) => utf8Bytes(snapshotJson(snapshot)) <= SNAPSHOT_MAX_BYTES;
  let snapshot = assemble(kept);
  while (!fits(snapshot) && kept.length > 0) {
    kept.shift();
    snapshot = assemble(kept);
  }
  return fits(snapshot) && snapshotSchema.safeParse(snapshot).success ? snapshot : undefined;
}

/** Groups history into turns: one run id in a row, else an adjacent user/assistant pair without ids, else one message. */
export function groupTurns(history: readonly SnapshotMessage[]): SnapshotMessage[][] {
  const groups: SnapshotMessage[][] = [];
  for (const message of history) {
    const last = groups.at(-1);
    const previous = last?.at(-1);
    const sameRun = message.runId !== undefined && previous?.runId === message.runId;
    const pairs =
      last?.length === 1 &&
      message.runId === undefined &&
      previous?.runId === undefined &&
      previous?.role === "user" &&
      message.role === "assistant";
    if (last !== undefined && (sameRun || pairs)) last.push(message);
    else groups.push([message]);
  }
  return groups;
}
