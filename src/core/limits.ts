import { z } from "zod";

/**
 * Owns: every limit that is not a setting (name, value, source) and the schemas, defaults and bounds of those
 * that are. Sources: store-format.md §1 and §4, protocol.md, host-facts.md §1.
 */

export const KIB = 1024;
export const MIB = 1024 * KIB;
export const SECOND_MS = 1000;
export const MINUTE_MS = 60 * SECOND_MS;
export const HOUR_MS = 60 * MINUTE_MS;
export const DAY_MS = 24 * HOUR_MS;

// Disk (store-format.md §1)
export const RECORD_MAX_BYTES = 2 * MIB;
export const TRANSACTION_MAX_BYTES = 16 * MIB;
export const MANIFEST_MAX_BYTES = 1 * MIB;
export const MARKER_MAX_BYTES = 64 * KIB;
export const GUARD_MAX_BYTES = 4 * KIB;
export const GENERATION_MAX_BYTES = 256;
export const SNAPSHOT_MAX_MESSAGES = 64;
export const SNAPSHOT_MAX_MESSAGE_BYTES = 64 * KIB;
export const SNAPSHOT_MAX_BYTES = 256 * KIB;
export const SNAPSHOTS_TOTAL_MAX_BYTES = 256 * MIB;
export const SNAPSHOT_CONVERSATION_ID_MAX_BYTES = 2 * KIB;
export const SNAPSHOT_RUN_ID_MAX_BYTES = 512;
/** Room kept free in a record when its result is accepted, so that every later failure and receipt fits. */
export const RECORD_RESERVE_BYTES = 32 * KIB;
export const TIMELINE_MAX_ENTRIES = 64;

// Wire (protocol.md)
export const CLAIM_BODY_MAX_BYTES = 16 * KIB;
export const RESULT_BODY_MAX_BYTES = 256 * KIB;
export const OPERATOR_BODY_MAX_BYTES = 16 * KIB;
export const FIELD_MAX_CHARS = 256;
export const TOKEN_MAX_CHARS = 512;
export const CURSOR_MAX_CHARS = 512;
export const DEADLINE_MAX_MS = 30 * DAY_MS;
export const ERROR_REASON_MAX_CHARS = 500;
export const BODY_READ_TIMEOUT_MS = 30 * SECOND_MS;
/**
 * Levels of nesting in a request body. A payload of about 1,020 levels already passes the 2 MiB of its record by
 * indentation alone and gets 413 `record_too_large`; the bound here only keeps recursion within the stack.
 */
export const JSON_MAX_DEPTH = 2_000;

// Work (protocol.md)
export const LEASE_MS = 30 * MINUTE_MS;
export const DEFERRAL_BASE_MS = 1 * SECOND_MS;
export const DEFERRAL_CAP_MS = 5 * MINUTE_MS;
export const DELIVERY_BACKOFF_BASE_MS = 1 * SECOND_MS;
export const DELIVERY_BACKOFF_CAP_MS = 1 * HOUR_MS;
export const DELIVERY_MAX_ATTEMPTS = 20;
/**
 * The worker's longest sleep; ours. A timer does not count while the machine sleeps, and not at all with a clock that
 * somebody sets, so due times and deadlines are looked at again after it.
 */
export const WAKE_MAX_MS = 1 * MINUTE_MS;
/** How often a host without commits drops what has passed an age limit of `continuations.retention`; ours. */
export const RETENTION_SWEEP_MS = 1 * HOUR_MS;
/** Added to the delivery time-out before an absent post counts as proved (protocol.md, last paragraph). */
export const ABSENCE_GRACE_MS = 5 * MINUTE_MS;
export const SYNTHESIS_TEXT_MAX_CHARS = 200_000;
export const STOP_TIMEOUT_MS = 10 * SECOND_MS;

// Turns (host-facts.md §3)
export const HISTORY_MAX_MESSAGES = 64;
export const TURN_TEXT_MAX_BYTES = 64 * KIB;
export const THREAD_QUEUE_MAX = 100;
export const DEFAULT_MAX_STEPS = 50;
/** Turns of different threads that run at the same time; ours. */
export const DEFAULT_MAX_CONCURRENT_RUNS = 4;
export const TOOL_RESULT_MAX_CHARS = 12_000;
/** An image of a tool's result that a model is shown (host-facts.md §2); how many of one result, and of a whole turn, is ours. */
export const TOOL_IMAGE_MAX_BYTES = 250_000;
export const TOOL_IMAGES_MAX = 4;
export const TURN_TOOL_IMAGES_MAX = 16;
/** Read-only calls of one answer that run at the same time; ours. */
export const TOOL_CALLS_AT_ONCE = 4;

// Attachments of a turn; ours. Providers take 5 to 20 MB an image and some 30 MB a request.
export const ATTACHMENTS_MAX = 8;
export const ATTACHMENT_MAX_BYTES = 8 * MIB;
export const ATTACHMENTS_TOTAL_MAX_BYTES = 20 * MIB;
export const ATTACHMENT_NAME_MAX_CHARS = 128;

// Model calls; ours, but for the retry defaults (host-facts.md §1)
/** A provider that sends nothing for so long has failed; reasoning models may be silent for minutes. */
export const MODEL_CALL_TIMEOUT_MS = 5 * MINUTE_MS;
export const MODEL_CALL_MAX_TOTAL_TIMEOUT_MS = 30 * MINUTE_MS;
/** Text, reasoning and tool arguments of one answer; a stream that passes it is broken off. */
export const MODEL_ANSWER_MAX_CHARS = 1_000_000;
/** Small models get caught in asking for the same tool again and again. */
export const MODEL_TOOL_CALLS_MAX = 128;
export const MODEL_PRIMARY_ATTEMPTS = 2;
export const MODEL_BACKOFF_MS = 1 * SECOND_MS;
export const MODEL_MAX_BACKOFF_MS = 15 * SECOND_MS;
export const MODEL_MAX_ATTEMPTS = 10;
export const MODEL_MAX_FALLBACKS = 10;

const positive = (max: number, fallback: number) => z.int().min(1).max(max).default(fallback);
const nonNegative = (fallback: number) => z.int().min(0).max(Number.MAX_SAFE_INTEGER).default(fallback);

export const MAX_ACTIVE_RECORDS = 10_000;
export const MAX_ACTIVE_PER_ORIGIN = 500;

/**
 * For a rule over several keys of an object or list: it is checked although another key is wrong, so that all problems
 * are reported at once. Such a rule may meet values of a wrong type, whatever the compiler thinks.
 */
export const BESIDE_OTHER_PROBLEMS = {
  when: ({ value }: { readonly value: unknown }) => typeof value === "object" && value !== null,
};

/** `continuations.limits`; bounds from host-facts.md §1. `maxActivePerOrigin` defaults to min(500, maxActiveRecords). */
export const limitsSchema = z
  .strictObject({
    maxActiveRecords: positive(1_000_000, MAX_ACTIVE_RECORDS),
    maxActivePerOrigin: z.int().min(1).max(1_000_000).optional(),
    maxConcurrent: positive(256, 16),
    synthesisTimeoutMs: positive(DAY_MS, 10 * MINUTE_MS),
    deliveryTimeoutMs: positive(DAY_MS, 2 * MINUTE_MS),
    operatorPageSize: positive(500, 100),
  })
  .superRefine(({ maxActivePerOrigin = 1, maxActiveRecords }, context) => {
    if (typeof maxActiveRecords === "number" && maxActivePerOrigin > maxActiveRecords) {
      context.addIssue({
        code: "custom",
        path: ["maxActivePerOrigin"],
        message: `must be at most maxActiveRecords (${maxActiveRecords})`,
      });
    }
  }, BESIDE_OTHER_PROBLEMS)
  .transform((limits) => ({
    ...limits,
    maxActivePerOrigin: limits.maxActivePerOrigin ?? Math.min(MAX_ACTIVE_PER_ORIGIN, limits.maxActiveRecords),
  }));

export type ContinuationLimits = z.output<typeof limitsSchema>;

/** `continuations.retention`. The dead-letter pair is ours (store-format.md §8). */
export const retentionSchema = z.strictObject({
  terminalMaxRecords: nonNegative(50_000),
  terminalMaxAgeMs: nonNegative(365 * DAY_MS),
  capturedTextMaxRecords: nonNegative(1_000),
  capturedTextMaxAgeMs: nonNegative(30 * DAY_MS),
  deadLetterTextMaxRecords: nonNegative(1_000),
  deadLetterTextMaxAgeMs: nonNegative(30 * DAY_MS),
});

export type RetentionLimits = z.output<typeof retentionSchema>;
