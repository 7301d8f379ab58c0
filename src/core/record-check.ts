import { SNAPSHOT_MAX_BYTES, SNAPSHOT_MAX_MESSAGES } from "./limits.ts";
import { MODES, ORIGIN_CONTEXT_STATES, STATES } from "./record.ts";

/**
 * Owns: the same decision as `recordSchema` (core/record.ts) for values that JSON.parse gave, some twenty times faster,
 * so that a start reads 50,000 records in a fraction of a second.
 * Does not own: what a record is. The schema is the definition; a property test holds both against each other.
 *
 * I1. What is accepted here, the schema accepts. Whoever gets a no asks the schema, which also names the field.
 */

type Check = (value: unknown) => boolean;
type Members = Readonly<Record<string, unknown>>;

const HEX_64 = /^[0-9a-f]{64}$/;
const string: Check = (value) => typeof value === "string";
const text: Check = (value) => typeof value === "string" && value.length > 0;
const hex64: Check = (value) => typeof value === "string" && HEX_64.test(value);
const date: Check = (value) => typeof value === "string" && !Number.isNaN(Date.parse(value));
const boolean: Check = (value) => typeof value === "boolean";
const between =
  (min: number, max: number): Check =>
  (value) =>
    typeof value === "number" && Number.isSafeInteger(value) && value >= min && value <= max;
const count = between(0, Number.MAX_SAFE_INTEGER);
const messageCount = between(2, SNAPSHOT_MAX_MESSAGES);
const oneOf = (values: readonly string[]): Check => {
  const known: ReadonlySet<unknown> = new Set(values);
  return (value) => known.has(value);
};
const isMembers = (value: unknown): value is Members =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const objectOf =
  (fits: (value: Members) => boolean): Check =>
  (value) =>
    isMembers(value) && fits(value);
const arrayOf =
  (fits: Check): Check =>
  (value) =>
    Array.isArray(value) && value.every(fits);
const optional = (fits: Check, value: unknown) => value === undefined || fits(value);

const state = oneOf(STATES);
const mode = oneOf(MODES);
const originContextState = oneOf(ORIGIN_CONTEXT_STATES);
const completionKind = oneOf(["synthesized", "origin_context_unavailable"]);
const receiptKind = oneOf(["delivered", "suppressed", "captured", "silent"]);
const snapshotBytes = between(1, SNAPSHOT_MAX_BYTES);

const originContextRef = objectOf(
  (ref) =>
    Object.keys(ref).length === 4 &&
    ref.schemaVersion === 1 &&
    hex64(ref.digest) &&
    snapshotBytes(ref.bytes) &&
    messageCount(ref.messageCount),
);
const lastError = objectOf((error) => text(error.code) && string(error.reason) && date(error.at));
const part = objectOf(({ id, at }) => text(id) && date(at));
const timelineEntry = objectOf((entry) => date(entry.at) && text(entry.what) && optional(text, entry.code));
const proof = objectOf(({ by, at, evidence }) => text(by) && date(at) && text(evidence));
const historyErrorCode: Check = (value) => text(value) && typeof value === "string" && value.length <= 128;
const receipt = objectOf(
  (it) =>
    receiptKind(it.kind) &&
    date(it.deliveredAt) &&
    optional(text, it.deliveryId) &&
    optional(text, it.channelId) &&
    optional(boolean, it.historyRecorded) &&
    optional(historyErrorCode, it.historyErrorCode) &&
    optional(proof, it.proof) &&
    (it.kind === "delivered" || (it.historyRecorded === undefined && it.historyErrorCode === undefined)) &&
    (it.historyErrorCode === undefined || it.historyRecorded === false),
);
const deliveryParts = arrayOf(part);
const timeline = arrayOf(timelineEntry);

/** Whether a value from JSON.parse, or what will be written as JSON, is a record by `recordSchema`. */
export function fitsRecord(it: Members): boolean {
  return (
    text(it.continuationId) &&
    text(it.serverName) &&
    text(it.originRunId) &&
    text(it.originConversationId) &&
    mode(it.mode) &&
    text(it.taskKey) &&
    text(it.taskHash) &&
    text(it.claimFingerprint) &&
    hex64(it.resultTokenHash) &&
    date(it.createdAt) &&
    date(it.updatedAt) &&
    date(it.deadline) &&
    state(it.state) &&
    count(it.synthesisAttempts) &&
    count(it.deliveryAttempts) &&
    originContextState(it.originContextState) &&
    count(it.synthesisDeferrals) &&
    optional(text, it.replyToConversationId) &&
    optional(text, it.historyBoundary) &&
    optional(text, it.routeName) &&
    optional(originContextRef, it.originContextRef) &&
    optional(hex64, it.originContextDigest) &&
    optional(messageCount, it.originContextMessageCount) &&
    optional(hex64, it.originContextFingerprint) &&
    optional(hex64, it.originContextBindingMac) &&
    optional(completionKind, it.completionKind) &&
    optional(text, it.resultIdempotencyKey) &&
    optional(hex64, it.resultPayloadHash) &&
    optional(date, it.synthesisStartedAt) &&
    optional(string, it.synthesizedText) &&
    optional(boolean, it.actionable) &&
    optional(date, it.deliveryStartedAt) &&
    optional(date, it.nextAttemptAt) &&
    optional(text, it.leaseOwner) &&
    optional(date, it.leaseUntil) &&
    optional(date, it.compactedAt) &&
    optional(lastError, it.lastError) &&
    optional(receipt, it.receipt) &&
    optional(hex64, it.deliveryBindingMac) &&
    optional(deliveryParts, it.deliveryParts) &&
    optional(timeline, it.timeline)
  );
}
