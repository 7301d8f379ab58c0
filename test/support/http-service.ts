import type { ContinuationService } from "../../src/continuation/api.ts";
import { ok, type Refusal, type Result, refuse } from "../../src/core/errors.ts";
import { STATES } from "../../src/core/record.ts";
import type { ContinuationDetail, ContinuationHealth, ContinuationStatus } from "../../src/core/wire.ts";

export const TOKENS = {
  claim: "claim-token",
  service: "service-token",
  result: "result-token",
  operator: "op",
};
export const KNOWN_ID = "0a4f9b1e-5c1b-4a4e-9a51-7c2a8e4f1d00";

export const STATUS: ContinuationStatus = {
  continuationId: KNOWN_ID,
  state: "claimed",
  mode: "reply",
  taskKey: "k",
  createdAt: "2026-11-30T12:00:00.000Z",
  updatedAt: "2026-11-30T12:00:00.000Z",
  deadline: "2026-12-01T12:00:00.000Z",
  attempts: { synthesis: 0, delivery: 0 },
  synthesisDeferrals: 0,
  originContext: { state: "pending" },
};

/** A service that knows one continuation, keeps what it was asked, and refuses or throws on demand. */
export function createFakeService() {
  const calls: unknown[][] = [];
  const next: { refusal?: Refusal; thrown?: unknown } = {};
  const answer = <T>(value: T, ...call: unknown[]): Result<T> => {
    calls.push(call);
    if (next.thrown !== undefined) throw next.thrown;
    return next.refusal === undefined ? ok(value) : { ok: false, refusal: next.refusal };
  };
  const claimed = {
    continuationId: KNOWN_ID,
    resultUrl: "http://127.0.0.1/r",
    statusUrl: "http://127.0.0.1/s",
    token: "t",
    expiresAt: STATUS.deadline,
    fingerprint: "f",
  };
  const detail: ContinuationDetail = { ...STATUS, timeline: [] };
  const service: ContinuationService = {
    recover: async () => {},
    startWorker: async () => {},
    announceReady: () => {},
    processDue: async () => 0,
    stop: async () => {},
    issuer: {
      issue: () => {
        throw new Error("not part of http");
      },
    },
    origins: { pending: () => [], knows: () => true, activate: async () => {}, abandon: async () => {} },
    claims: {
      authenticate: (token) =>
        token === TOKENS.claim
          ? ok({ claim: async (body) => answer(claimed, "claim", body) })
          : refuse("invalid_claim_capability", "no"),
      authenticateDetached: (name, token) =>
        name === "svc" && token === TOKENS.service
          ? ok({ claim: async (body) => answer(claimed, "detached", body) })
          : refuse("invalid_service_capability", "no"),
    },
    results: {
      authenticate: (id, token) => {
        if (id !== KNOWN_ID) return refuse("not_found", "no");
        if (token !== TOKENS.result) return refuse("invalid_result_capability", "no");
        return ok({
          submit: async (body) =>
            answer(
              { continuationId: id, state: "result_received" as const, accepted: true as const },
              "submit",
              body,
            ),
          status: () => STATUS,
        });
      },
    },
    operator: {
      health: () => HEALTH,
      list: (query) => answer({ continuations: [STATUS], pageSize: 100 }, "list", query),
      show: (id) => (id === KNOWN_ID ? answer(detail, "show", id) : refuse("not_found", "no")),
      owed: (query) => answer({ owed: [], total: 0, needPerson: 0 }, "owed", query),
      prove: async (id) => answer(STATUS, "prove", id),
      release: async (id) => answer(STATUS, "release", id),
      releaseAll: async () => answer({ released: 2 }, "releaseAll"),
      watch: (listener) => {
        listener({ continuationId: KNOWN_ID, state: "claimed", at: STATUS.updatedAt, what: "claimed" });
        return () => {};
      },
      capturedText: () => undefined,
      retry: async (id, options) => answer(STATUS, "retry", id, options),
      cancel: async (id) => answer(STATUS, "cancel", id),
      resolve: async (id, resolution) => answer(STATUS, "resolve", id, resolution),
    },
    isOperator: (token) => token === TOKENS.operator,
  };
  return { service, calls, next };
}

export const HEALTH: ContinuationHealth = {
  status: "healthy",
  checkedAt: "2026-11-30T12:00:00.000Z",
  counts: Object.fromEntries(STATES.map((state) => [state, 0])) as ContinuationHealth["counts"],
  pending: 0,
  due: 0,
  storage: {
    format: "per-record-v3",
    records: 0,
    active: 0,
    unresolvedDelivery: 0,
    deadLettered: 0,
    terminalTombstones: 0,
    compacted: 0,
    capturedText: 0,
    historyDegraded: 0,
    limits: {
      terminalMaxRecords: 1,
      terminalMaxAgeMs: 1,
      capturedTextMaxRecords: 1,
      capturedTextMaxAgeMs: 1,
    },
  },
};
