import { deliveryBindingMac } from "../../src/core/derive.ts";
import type { ContinuationRecord, ContinuationState } from "../../src/core/record.ts";

/** Records in each state for tests of pure code, at a fixed time. */

export const NOW_MS = Date.parse("2026-11-30T12:00:00.000Z");
export const NOW = new Date(NOW_MS).toISOString();
export const DEADLINE_MS = NOW_MS + 3_600_000;
export const SECRET = Buffer.alloc(32, 7);

export function claimedRecord(patch: Partial<ContinuationRecord> = {}): ContinuationRecord {
  return {
    continuationId: "c-1",
    serverName: "work-control",
    originRunId: "run-1",
    originConversationId: "terminal:main",
    replyToConversationId: "terminal:main",
    historyBoundary: "run-1",
    originContextState: "pending",
    mode: "reply",
    taskKey: "task",
    taskHash: "hash",
    claimFingerprint: "f".repeat(64),
    resultTokenHash: "a".repeat(64),
    createdAt: NOW,
    updatedAt: NOW,
    deadline: new Date(DEADLINE_MS).toISOString(),
    state: "claimed",
    synthesisAttempts: 0,
    synthesisDeferrals: 0,
    deliveryAttempts: 0,
    ...patch,
  };
}

const RESULT = {
  originContextState: "abandoned",
  resultIdempotencyKey: "key",
  resultPayloadHash: "b".repeat(64),
  resultPayload: { summary: "done" },
} as const;
const TEXT = {
  ...RESULT,
  synthesisAttempts: 1,
  completionKind: "synthesized",
  synthesizedText: "the answer",
} as const;
const ERROR = { code: "some_error", reason: "because", at: NOW };

export const IN_STATE: Record<ContinuationState, Partial<ContinuationRecord>> = {
  claimed: {},
  result_received: RESULT,
  synthesizing: {
    ...RESULT,
    synthesisAttempts: 1,
    synthesisStartedAt: NOW,
    leaseOwner: "o",
    leaseUntil: NOW,
  },
  ready_to_deliver: TEXT,
  delivery_retry: { ...TEXT, deliveryAttempts: 1, nextAttemptAt: NOW, lastError: ERROR },
  delivered: {
    ...RESULT,
    resultPayload: undefined,
    compactedAt: NOW,
    receipt: { kind: "delivered", deliveredAt: NOW, historyRecorded: true },
  },
  delivery_unknown: { ...TEXT, deliveryAttempts: 1, deliveryStartedAt: NOW, lastError: ERROR },
  expired: { compactedAt: NOW, lastError: { ...ERROR, code: "deadline_expired" } },
  cancelled: { compactedAt: NOW, lastError: { ...ERROR, code: "cancelled_by_operator" } },
  dead_lettered: { ...TEXT, resultPayload: undefined, compactedAt: NOW, lastError: ERROR },
};

/** A record in the given state, with the delivery binding that our own runtime writes with a text. */
export function recordIn(
  state: ContinuationState,
  patch: Partial<ContinuationRecord> = {},
): ContinuationRecord {
  const record = claimedRecord({ ...IN_STATE[state], state, ...patch });
  if (record.synthesizedText === undefined) return record;
  return { ...record, deliveryBindingMac: deliveryBindingMac(SECRET, record, record.synthesizedText) };
}
