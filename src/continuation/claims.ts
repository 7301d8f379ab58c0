import {
  type ClaimBinding,
  detachedFingerprint,
  detachedIdentity,
  interactiveFingerprint,
  resultToken,
} from "../core/derive.ts";
import { equalTokens, sha256Hex } from "../core/digest.ts";
import { assert, ok, type Refusal, type Result, refuse } from "../core/errors.ts";
import { DEADLINE_MAX_MS, SECOND_MS } from "../core/limits.ts";
import type { ClaimCapability } from "../core/ports/tools.ts";
import { type ContinuationRecord, claimIdentity, originKey } from "../core/record.ts";
import type { ClaimAnswer, ClaimBody, DetachedClaimBody } from "../core/wire.ts";
import type { ClaimEntry } from "./api.ts";
import type { ContinuationDeps, NamedRoute } from "./deps.ts";
import { type Ledger, stopping } from "./ledger.ts";
import { supportOf } from "./readiness.ts";

/**
 * Owns: claim capabilities (in memory only, by token digest) and the creation of records.
 *
 * I1. A claim is admitted only while its capability is open, checked after its body was read; `release` waits for
 *     every admitted one, so no record of the run can appear later.
 * I2. Destination and mode come from the capability or the named route, never from the caller.
 * I3. A repeated claim is looked up before deadline and limits are checked, so it always gets its first answer.
 */
export interface ClaimDesk extends ClaimEntry {
  /** Opens a capability for one server of one run. Throws for an empty name: its record could not be read again. */
  open(binding: ClaimBinding): OpenCapability;
}

export interface OpenCapability {
  readonly values: ClaimCapability;
  /** Closes it to new claims and waits for the admitted ones. */
  release(): Promise<void>;
}

interface Capability {
  readonly binding: ClaimBinding;
  readonly fingerprint: string;
  readonly admitted: Set<Promise<unknown>>;
  open: boolean;
}

const CLAIM_TOKEN_BYTES = 24;
const LIMIT_RETRY_AFTER_MS = 30 * SECOND_MS;

/** The parts of a new record that the kind of claim decides. */
type ClaimSubject = Pick<
  ContinuationRecord,
  | "serverName"
  | "originRunId"
  | "originConversationId"
  | "replyToConversationId"
  | "historyBoundary"
  | "originContextState"
  | "mode"
  | "routeName"
> & { readonly claimFingerprint: string };

export function createClaimDesk(deps: ContinuationDeps, ledger: Ledger): ClaimDesk {
  const { store, clock, ids, limits } = deps;
  const capabilities = new Map<string, Capability>();

  const tokenOf = (continuationId: string, taskHash: string) =>
    resultToken(store.secret, continuationId, taskHash);

  const answer = (record: ContinuationRecord, token: string, replayed: boolean): ClaimAnswer => {
    const url = `${deps.baseUrl}/v1/continuations/${encodeURIComponent(record.continuationId)}`;
    return {
      continuationId: record.continuationId,
      resultUrl: `${url}/result`,
      statusUrl: `${url}/status`,
      token,
      expiresAt: record.deadline,
      fingerprint: record.claimFingerprint,
      ...(replayed ? { replayed: true as const } : {}),
    };
  };

  const admit = async (subject: ClaimSubject, body: ClaimBody): Promise<Result<ClaimAnswer>> => {
    if (ledger.closed) return stopping();
    const nowMs = clock.now();
    const deadline = new Date(body.deadline).toISOString();
    const existing = store.head.byClaim(claimIdentity({ ...subject, taskKey: body.taskKey }));
    if (existing !== undefined) {
      const same =
        existing.taskHash === body.taskHash &&
        new Date(existing.deadline).toISOString() === deadline &&
        existing.claimFingerprint === subject.claimFingerprint;
      await store.whenDurable(existing.continuationId);
      return same
        ? ok(answer(existing, tokenOf(existing.continuationId, existing.taskHash), true))
        : refuse(
            "claim_conflict",
            "This task key was claimed before with another task hash, deadline or binding.",
          );
    }
    const refusal = checkNew(subject, deadline, nowMs);
    if (refusal !== undefined) return { ok: false, refusal };
    const continuationId = ids.uuid();
    const token = tokenOf(continuationId, body.taskHash);
    const at = new Date(nowMs).toISOString();
    const record: ContinuationRecord = {
      continuationId,
      ...subject,
      taskKey: body.taskKey,
      taskHash: body.taskHash,
      resultTokenHash: sha256Hex(token),
      createdAt: at,
      updatedAt: at,
      deadline,
      state: "claimed",
      synthesisAttempts: 0,
      synthesisDeferrals: 0,
      deliveryAttempts: 0,
      timeline: [{ at, what: "claimed" }],
    };
    await store.commit({ puts: [record] });
    return ok(answer(record, token, false));
  };

  const checkNew = (subject: ClaimSubject, deadline: string, nowMs: number): Refusal | undefined => {
    const untilDeadlineMs = Date.parse(deadline) - nowMs;
    if (untilDeadlineMs <= 0)
      return { code: "invalid_deadline", message: "The deadline must be in the future." };
    if (untilDeadlineMs > DEADLINE_MAX_MS) {
      return { code: "deadline_too_far", message: "The deadline must be at most 30 days away." };
    }
    const posts = subject.mode === "reply" || subject.mode === "notify_if_actionable";
    if (posts && supportOf(subject.replyToConversationId ?? "", deps) === "never") {
      return {
        code: "unsupported_destination",
        message: "No channel of this host can deliver an answer to the conversation of this claim.",
      };
    }
    if (store.head.active() >= limits.maxActiveRecords) {
      return {
        code: "active_continuation_limit",
        message: `The host has its limit of ${limits.maxActiveRecords} active continuations.`,
        retryAfterMs: LIMIT_RETRY_AFTER_MS,
      };
    }
    if (store.head.activeOfOrigin(originKey(subject)) >= limits.maxActivePerOrigin) {
      return {
        code: "active_origin_limit",
        message: `This origin has its limit of ${limits.maxActivePerOrigin} active continuations.`,
        retryAfterMs: LIMIT_RETRY_AFTER_MS,
      };
    }
    return undefined;
  };

  const claimInteractive = async (capability: Capability, body: ClaimBody): Promise<Result<ClaimAnswer>> => {
    if (!capability.open)
      return refuse("invalid_claim_capability", "The claim capability of this run has ended.");
    const { binding } = capability;
    const admission = admit(
      {
        serverName: binding.serverName,
        originRunId: binding.originRunId,
        originConversationId: binding.originConversationId,
        ...(binding.replyToConversationId === undefined
          ? {}
          : { replyToConversationId: binding.replyToConversationId }),
        historyBoundary: binding.historyBoundary,
        originContextState: "pending",
        mode: binding.mode,
        claimFingerprint: capability.fingerprint,
      },
      body,
    );
    capability.admitted.add(admission);
    try {
      return await admission;
    } finally {
      capability.admitted.delete(admission);
    }
  };

  const claimDetached = async (service: string, body: DetachedClaimBody): Promise<Result<ClaimAnswer>> => {
    const route = deps.namedRoutes.get(body.route);
    if (route === undefined) return refuse("unknown_named_route", "No route of this name is configured.");
    return admit(detachedSubject(service, body, route), body);
  };

  return {
    open(binding) {
      for (const [name, value] of Object.entries(binding)) assert(value !== "", `${name} must not be empty`);
      const token = ids.token(CLAIM_TOKEN_BYTES);
      const key = sha256Hex(token);
      const capability: Capability = {
        binding,
        fingerprint: interactiveFingerprint(binding),
        admitted: new Set(),
        open: true,
      };
      capabilities.set(key, capability);
      return {
        values: {
          url: `${deps.baseUrl}/v1/continuations/claim`,
          token,
          fingerprint: capability.fingerprint,
          mode: binding.mode,
        },
        async release() {
          capability.open = false;
          capabilities.delete(key);
          await Promise.allSettled([...capability.admitted]);
        },
      };
    },

    authenticate(token) {
      const capability = capabilities.get(sha256Hex(token));
      if (capability === undefined) {
        return refuse("invalid_claim_capability", "The claim capability is unknown, or its run has ended.");
      }
      return ok({ claim: (body) => claimInteractive(capability, body) });
    },

    authenticateDetached(serviceName, token) {
      const expected = deps.detachedServices.get(serviceName);
      // Compared also for an unknown name, so that the time does not tell which names exist.
      const matches = equalTokens(token, expected ?? "");
      if (expected === undefined || !matches) {
        return refuse("invalid_service_capability", "The service name or its token is wrong.");
      }
      return ok({ claim: (body) => claimDetached(serviceName, body) });
    },
  };
}

function detachedSubject(service: string, body: DetachedClaimBody, route: NamedRoute): ClaimSubject {
  return {
    ...detachedIdentity(service, body.taskKey, body.route, route.conversationId),
    ...(route.conversationId === undefined ? {} : { replyToConversationId: route.conversationId }),
    originContextState: "detached_latest",
    mode: route.mode,
    routeName: body.route,
    claimFingerprint: detachedFingerprint(service, body.route, route.mode, route.conversationId),
  };
}
