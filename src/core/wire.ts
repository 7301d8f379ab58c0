import { z } from "zod";
import { FIELD_MAX_CHARS } from "./limits.ts";
import {
  hex64,
  jsonSchema,
  lastErrorSchema,
  modeSchema,
  originContextStateSchema,
  receiptSchema,
  stateSchema,
  timelineEntrySchema,
} from "./record.ts";
import { storeStatsSchema } from "./store-files.ts";

/** Bodies of the loopback protocol (protocol.md). Request fields are refused as `invalid_<field>`. */

const field = z.string().min(1).max(FIELD_MAX_CHARS);
/** ISO 8601 with a zone; kept as sent and normalised by the claim (`new Date(x).toISOString()`). */
const zonedTimestamp = z.iso.datetime({ offset: true });

export const claimBodySchema = z.object({ taskKey: field, taskHash: field, deadline: zonedTimestamp });
export type ClaimBody = z.infer<typeof claimBodySchema>;

/** Strict: a destination or any other extra field is refused, because only the named route decides. */
export const detachedClaimBodySchema = z.strictObject({
  route: z.string().min(1).max(128),
  taskKey: field,
  taskHash: field,
  deadline: zonedTimestamp,
});
export type DetachedClaimBody = z.infer<typeof detachedClaimBodySchema>;

export const resultBodySchema = z.object({
  idempotencyKey: field,
  payloadHash: hex64.optional(),
  payload: jsonSchema,
});
export type ResultBody = z.infer<typeof resultBodySchema>;

export const retryBodySchema = z.strictObject({ allowUnknown: z.boolean().optional() });
export const cancelBodySchema = z.strictObject({});
export const resolveBodySchema = z.strictObject({
  kind: z.enum(["delivered", "not_delivered", "dead_lettered"]),
  deliveryId: z.string().min(1).max(FIELD_MAX_CHARS).optional(),
});
export type Resolution = z.infer<typeof resolveBodySchema>;

export const claimAnswerSchema = z.object({
  continuationId: z.string(),
  resultUrl: z.url(),
  statusUrl: z.url(),
  token: z.string(),
  expiresAt: z.string(),
  fingerprint: z.string(),
  replayed: z.literal(true).optional(),
});
export type ClaimAnswer = z.infer<typeof claimAnswerSchema>;

export const resultAnswerSchema = z.object({
  continuationId: z.string(),
  state: stateSchema,
  accepted: z.literal(true),
});
export type ResultAnswer = z.infer<typeof resultAnswerSchema>;

/** Never the payload, the text, a destination or a token. */
export const statusSchema = z.object({
  continuationId: z.string(),
  state: stateSchema,
  mode: modeSchema,
  taskKey: z.string(),
  createdAt: z.string(),
  updatedAt: z.string(),
  deadline: z.string(),
  attempts: z.object({ synthesis: z.int(), delivery: z.int() }),
  synthesisDeferrals: z.int(),
  originContext: z.object({
    state: originContextStateSchema,
    digest: z.string().optional(),
    messageCount: z.int().optional(),
  }),
  completionKind: z.enum(["synthesized", "origin_context_unavailable"]).optional(),
  nextAttemptAt: z.string().optional(),
  lastError: lastErrorSchema.optional(),
  receipt: receiptSchema.optional(),
});
export type ContinuationStatus = z.infer<typeof statusSchema>;

/** `show`: the status, what happened, and what it waits for. */
export const statusDetailSchema = statusSchema.extend({
  timeline: z.array(timelineEntrySchema),
  waitsFor: z.string().optional(),
});
export type ContinuationDetail = z.infer<typeof statusDetailSchema>;

export const listAnswerSchema = z.object({
  continuations: z.array(statusSchema),
  pageSize: z.int(),
  nextCursor: z.string().optional(),
});
export type ListAnswer = z.infer<typeof listAnswerSchema>;

export const healthSchema = z.object({
  status: z.enum(["healthy", "degraded", "unhealthy"]),
  checkedAt: z.string(),
  counts: z.record(stateSchema, z.int()),
  pending: z.int(),
  due: z.int(),
  oldestPendingAt: z.string().optional(),
  storage: storeStatsSchema.extend({ fault: z.object({ code: z.string(), since: z.string() }).optional() }),
});
export type ContinuationHealth = z.infer<typeof healthSchema>;

export const errorBodySchema = z.object({ error: z.object({ code: z.string(), message: z.string() }) });
export type ErrorBody = z.infer<typeof errorBodySchema>;
