import { z } from "zod";
import { sha256Hex } from "./digest.ts";
import { fileJson, type JsonValue, utf8Bytes } from "./json.ts";
import { SNAPSHOT_MAX_BYTES, SNAPSHOT_MAX_MESSAGES } from "./limits.ts";

/** The continuation record on disk (store-format.md §2). Unknown keys are kept as they are. */

export const STATES = [
  "claimed",
  "result_received",
  "synthesizing",
  "ready_to_deliver",
  "delivery_retry",
  "delivered",
  "delivery_unknown",
  "expired",
  "cancelled",
  "dead_lettered",
] as const;
export const stateSchema = z.enum(STATES);
export type ContinuationState = z.infer<typeof stateSchema>;

export const MODES = ["reply", "notify_if_actionable", "silent", "capture"] as const;
export const modeSchema = z.enum(MODES);
export type ContinuationMode = z.infer<typeof modeSchema>;

export const ORIGIN_CONTEXT_STATES = [
  "pending",
  "pinned",
  "abandoned",
  "detached_latest",
  "legacy_missing",
  "scrubbed",
] as const;
export const originContextStateSchema = z.enum(ORIGIN_CONTEXT_STATES);

const text = z.string().min(1);
const HEX64 = "must be 64 lower-case hex digits";
export const hex64 = z.string(HEX64).regex(/^[0-9a-f]{64}$/, HEX64);
/** Any string that `Date` can read: older runtimes were not stricter. What we write is always `toISOString()`. */
export const dateText = z.string().refine((value) => !Number.isNaN(Date.parse(value)), "must be a date");
const count = z.int().min(0);
/** A value that JSON.parse gave. Not `z.json()`, which drops keys named `__proto__` and recurses per level. */
export const jsonSchema = z.custom<JsonValue>((value) => value !== undefined, "must be a JSON value");

export const originContextRefSchema = z.strictObject({
  schemaVersion: z.literal(1),
  digest: hex64,
  bytes: z.int().min(1).max(SNAPSHOT_MAX_BYTES),
  messageCount: z.int().min(2).max(SNAPSHOT_MAX_MESSAGES),
});
export type OriginContextRef = z.infer<typeof originContextRefSchema>;

export const lastErrorSchema = z.looseObject({ code: text, reason: z.string(), at: dateText });

export const receiptSchema = z
  .looseObject({
    kind: z.enum(["delivered", "suppressed", "captured", "silent"]),
    deliveredAt: dateText,
    deliveryId: text.optional(),
    channelId: text.optional(),
    historyRecorded: z.boolean().optional(),
    historyErrorCode: z.string().min(1).max(128).optional(),
    /** Ours: who proved the delivery, when and how (store-format.md §10). */
    proof: z.looseObject({ by: text, at: dateText, evidence: text }).optional(),
  })
  .refine(
    (receipt) =>
      receipt.kind === "delivered" ||
      (receipt.historyRecorded === undefined && receipt.historyErrorCode === undefined),
    "history fields belong to kind delivered only",
  )
  .refine(
    (receipt) => receipt.historyErrorCode === undefined || receipt.historyRecorded === false,
    "historyErrorCode needs historyRecorded false",
  );
export type Receipt = z.infer<typeof receiptSchema>;

export const timelineEntrySchema = z.looseObject({ at: dateText, what: text, code: text.optional() });

export const recordSchema = z.looseObject({
  continuationId: text,
  serverName: text,
  originRunId: text,
  originConversationId: text,
  mode: modeSchema,
  taskKey: text,
  taskHash: text,
  claimFingerprint: text,
  resultTokenHash: hex64,
  createdAt: dateText,
  updatedAt: dateText,
  deadline: dateText,
  state: stateSchema,
  synthesisAttempts: count,
  deliveryAttempts: count,
  originContextState: originContextStateSchema,
  synthesisDeferrals: count,

  replyToConversationId: text.optional(),
  historyBoundary: text.optional(),
  routeName: text.optional(),
  originContextRef: originContextRefSchema.optional(),
  originContextDigest: hex64.optional(),
  originContextMessageCount: z.int().min(2).max(SNAPSHOT_MAX_MESSAGES).optional(),
  originContextFingerprint: hex64.optional(),
  originContextBindingMac: hex64.optional(),
  completionKind: z.enum(["synthesized", "origin_context_unavailable"]).optional(),
  resultIdempotencyKey: text.optional(),
  resultPayloadHash: hex64.optional(),
  resultPayload: jsonSchema.optional(),
  synthesisStartedAt: dateText.optional(),
  synthesizedText: z.string().optional(),
  actionable: z.boolean().optional(),
  deliveryStartedAt: dateText.optional(),
  nextAttemptAt: dateText.optional(),
  leaseOwner: text.optional(),
  leaseUntil: dateText.optional(),
  compactedAt: dateText.optional(),
  lastError: lastErrorSchema.optional(),
  receipt: receiptSchema.optional(),

  // Ours (store-format.md §10); older runtimes keep them as unknown keys.
  deliveryBindingMac: hex64.optional(),
  deliveryParts: z.array(z.looseObject({ id: text, at: dateText })).optional(),
  timeline: z.array(timelineEntrySchema).optional(),
});
export type ContinuationRecord = z.infer<typeof recordSchema>;

export const TERMINAL_STATES: ReadonlySet<ContinuationState> = new Set<ContinuationState>([
  "delivered",
  "delivery_unknown",
  "expired",
  "cancelled",
  "dead_lettered",
]);

/** Terminal for the worker: no work is left that it may do by itself. */
export function isTerminal(record: Pick<ContinuationRecord, "state">): boolean {
  return TERMINAL_STATES.has(record.state);
}

/** Settled: terminal and decided. `delivery_unknown` waits for a proof or an operator, so it is not settled. */
export function isSettled(record: Pick<ContinuationRecord, "state">): boolean {
  return isTerminal(record) && record.state !== "delivery_unknown";
}

/** Idempotency identity of a claim: one record per server, origin run and task key. */
export function claimIdentity(record: { serverName: string; originRunId: string; taskKey: string }): string {
  return `${record.serverName}\0${record.originRunId}\0${record.taskKey}`;
}

/** Who is limited together by `maxActivePerOrigin`: all claims of one run, or of one service on one named route. */
export function originKey(record: {
  routeName?: string | undefined;
  originRunId: string;
  claimFingerprint: string;
}): string {
  return record.routeName === undefined ? record.originRunId : record.claimFingerprint;
}

/** The file name of a record is the digest of its id (store-format.md §1). */
export function recordFileName(continuationId: string): string {
  return `${sha256Hex(continuationId)}.json`;
}

/** Size of the record file in bytes: the 2 MiB limit is checked on the indented form (store-format.md §10). */
export function recordFileBytes(record: ContinuationRecord): number {
  return utf8Bytes(fileJson(record));
}
