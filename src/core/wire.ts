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

/**
 * Bodies of the loopback protocol (protocol.md). Request fields are refused as `invalid_<field>`. Their messages go on
 * after the name of the field: "taskKey must have 1 to 256 characters".
 */

const ROUTE_MAX_CHARS = 128;
const textOf = (maxChars: number) => {
  const length = `must have 1 to ${maxChars} characters`;
  return z.string("must be a text").min(1, length).max(maxChars, length);
};
const field = textOf(FIELD_MAX_CHARS);
const WITH_SECONDS = z.iso.datetime({ offset: true });
const TO_THE_MINUTE = z.iso.datetime({ offset: true, precision: -1 });
const NO_ZONED_TIMESTAMP = "must be an ISO 8601 timestamp with a zone, such as 2026-12-01T00:00:00Z";
/**
 * ISO 8601 with a zone, as far as `Date` reads it: seconds, and the colon of the zone, may be missing. Kept as sent and
 * normalised by the claim (`new Date(x).toISOString()`).
 */
const zonedTimestamp = z.string(NO_ZONED_TIMESTAMP).refine((text) => {
  const withColon = text.replace(/([+-]\d\d)(\d\d)$/, "$1:$2");
  return WITH_SECONDS.safeParse(withColon).success || TO_THE_MINUTE.safeParse(withColon).success;
}, NO_ZONED_TIMESTAMP);

export const claimBodySchema = z.object({ taskKey: field, taskHash: field, deadline: zonedTimestamp });
export type ClaimBody = z.infer<typeof claimBodySchema>;

/** Strict: a destination or any other extra field is refused, because only the named route decides. */
export const detachedClaimBodySchema = z.strictObject({
  route: textOf(ROUTE_MAX_CHARS),
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

export const retryBodySchema = z.strictObject({
  allowUnknown: z.boolean("must be true or false").optional(),
});
/** The body of cancel, prove, release and release-all. */
export const emptyBodySchema = z.strictObject({});
export const resolveBodySchema = z.strictObject({
  kind: z.enum(
    ["delivered", "not_delivered", "dead_lettered"],
    "must be delivered, not_delivered or dead_lettered",
  ),
  deliveryId: field.optional(),
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

/** One promise that is not kept yet. `needsPerson`: nothing happens by itself any more, and a person can still decide. */
export const owedItemSchema = statusSchema.extend({
  ageMs: z.int().min(0),
  overdue: z.boolean(),
  waitsFor: z.string(),
  needsPerson: z.boolean(),
});
export type OwedItem = z.infer<typeof owedItemSchema>;

/** One page by deadline, nearest first; `total` and `needPerson` count those of all pages. */
export const owedAnswerSchema = z.object({
  owed: z.array(owedItemSchema),
  total: z.int(),
  needPerson: z.int(),
  nextCursor: z.string().optional(),
});
export type OwedAnswer = z.infer<typeof owedAnswerSchema>;

/** One line of `watch`: never payload, text, token or destination. */
export const watchEventSchema = z.object({
  continuationId: z.string(),
  state: stateSchema,
  at: z.string(),
  what: z.string(),
  code: z.string().optional(),
});
export type WatchEvent = z.infer<typeof watchEventSchema>;

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
  /** After a restore: continuations that wait for a proof or a release. Absent when there are none. */
  held: z.int().min(1).optional(),
  storage: storeStatsSchema.extend({ fault: z.object({ code: z.string(), since: z.string() }).optional() }),
});
export type ContinuationHealth = z.infer<typeof healthSchema>;

/** The path is the host's, so it is absolute. */
export const backupBodySchema = z.strictObject({ path: textOf(4096) });
export const backupReportSchema = z.object({
  path: z.string(),
  createdAt: z.string(),
  records: z.int(),
  files: z.int(),
  bytes: z.int(),
  /** What was damaged before and could not be copied. */
  warnings: z.array(z.string()),
});
export type BackupReport = z.infer<typeof backupReportSchema>;

export const releasedSchema = z.object({ released: z.int().min(0) });
export type Released = z.infer<typeof releasedSchema>;

export const errorBodySchema = z.object({ error: z.object({ code: z.string(), message: z.string() }) });
export type ErrorBody = z.infer<typeof errorBodySchema>;
