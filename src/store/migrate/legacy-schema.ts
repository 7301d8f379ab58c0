import { z } from "zod";

/**
 * The formats v1 and v2 as the older runtimes wrote them (store-format.md §1, §2, §6). Frozen: nothing here follows
 * the schemas of core, so that a later version of this program reads old directories as this one does.
 *
 * Unknown keys are kept.
 */

const text = z.string().min(1);
const count = z.int().min(0);
const date = z.string().refine((value) => !Number.isNaN(Date.parse(value)), "must be a date");
const hex64 = z.string().regex(/^[0-9a-f]{64}$/, "must be 64 lower-case hex digits");
const generation = text.refine(
  (value) => Buffer.byteLength(value, "utf8") <= 256,
  "must be at most 256 bytes",
);

const receipt = z
  .looseObject({
    kind: z.enum(["delivered", "suppressed", "captured", "silent"]),
    deliveredAt: date,
    deliveryId: text.optional(),
    channelId: text.optional(),
    historyRecorded: z.boolean().optional(),
    historyErrorCode: z.string().min(1).max(128).optional(),
  })
  .refine(
    (it) =>
      it.kind === "delivered" || (it.historyRecorded === undefined && it.historyErrorCode === undefined),
    "history fields belong to kind delivered only",
  )
  .refine(
    (it) => it.historyErrorCode === undefined || it.historyRecorded === false,
    "historyErrorCode needs historyRecorded false",
  );

/** A record of both older formats: without origin contexts and deferrals. */
export const legacyRecordSchema = z.looseObject({
  continuationId: text,
  serverName: text,
  originRunId: text,
  originConversationId: text,
  mode: z.enum(["reply", "notify_if_actionable", "silent", "capture"]),
  taskKey: text,
  taskHash: text,
  claimFingerprint: text,
  resultTokenHash: hex64,
  createdAt: date,
  updatedAt: date,
  deadline: date,
  state: z.enum([
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
  ]),
  synthesisAttempts: count,
  deliveryAttempts: count,
  replyToConversationId: text.optional(),
  historyBoundary: text.optional(),
  routeName: text.optional(),
  resultIdempotencyKey: text.optional(),
  resultPayloadHash: hex64.optional(),
  synthesisStartedAt: date.optional(),
  synthesizedText: z.string().optional(),
  actionable: z.boolean().optional(),
  deliveryStartedAt: date.optional(),
  nextAttemptAt: date.optional(),
  leaseOwner: text.optional(),
  leaseUntil: date.optional(),
  compactedAt: date.optional(),
  lastError: z.looseObject({ code: text, reason: z.string(), at: date }).optional(),
  receipt: receipt.optional(),
});

/** What both formats call themselves by; the rest of the v2 manifest is a report. */
export const v2ManifestSchema = z.looseObject({
  schemaVersion: z.literal(2),
  generation,
  updatedAt: date,
});

/** A v2 transaction without its records, which are checked one by one. */
export const v2TransactionSchema = z.looseObject({
  schemaVersion: z.literal(2),
  generation,
  createdAt: date,
  writes: z.array(z.unknown()),
  deletes: z.array(text),
});

/** The frame of the v1 monolith, without `records`. `updatedAt` was never checked by any runtime. */
export const v1FrameSchema = z.looseObject({ schemaVersion: z.literal(1) });
