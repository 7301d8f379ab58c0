import type { OriginGroup } from "../core/derive.ts";
import type { Result } from "../core/errors.ts";
import type { RunClaimsIssuer } from "../core/ports/run-claims.ts";
import type {
  ClaimAnswer,
  ClaimBody,
  ContinuationDetail,
  ContinuationHealth,
  ContinuationStatus,
  DetachedClaimBody,
  ListAnswer,
  OwedAnswer,
  Released,
  Resolution,
  ResultAnswer,
  ResultBody,
  WatchEvent,
} from "../core/wire.ts";

/**
 * The continuation service as http, host and embedders see it. Authentication is a step of its own, so that a
 * token is checked before a body is read; what it returns is the authority to go on with that one request.
 */
export interface ContinuationService {
  /**
   * Ends what a dead process left half done, and begins to ask the channels what became of unknown posts and, each hour,
   * to drop what has passed an age limit. Only the first call does something.
   */
  recover(): Promise<void>;
  /** The same, and then starts the worker. */
  startWorker(): Promise<void>;
  /** Works on at most `limit` due records and waits for them; resolves with how many. For hosts that drive time themselves. */
  processDue(limit: number): Promise<number>;
  /**
   * Something that was not ready may be so now, a channel or the model: what was put off for it is looked at at once,
   * rather than after its back-off. In vain, it writes nothing.
   */
  announceReady(): void;
  /** Refuses new mutations (`service_stopping`) and waits for running work, bounded by the stop time-out. */
  stop(): Promise<void>;
  readonly issuer: RunClaimsIssuer;
  readonly origins: OriginSettlement;
  readonly claims: ClaimEntry;
  readonly results: ResultEntry;
  readonly operator: OperatorActions;
  /** Whether this bearer is the operator's, in constant time. */
  isOperator(token: string): boolean;
}

/** Settlement of an origin group by what the ledger of turns knows, for the host's start-up decision. */
export interface OriginSettlement {
  /** Groups with at least one active member that is still pending. */
  pending(): OriginGroup[];
  /** Whether any record of this origin run is in the store, ended or not. Reads all of them: for the start only. */
  knows(originRunId: string): boolean;
  /** Pins the pending members that are bound to this snapshot. */
  activate(group: OriginGroup, snapshotDigest: string): Promise<void>;
  /** Marks the pending members abandoned. */
  abandon(group: OriginGroup): Promise<void>;
}

export interface ClaimEntry {
  /** 401 `invalid_claim_capability` when unknown or released. The capability is checked again when `claim` is called. */
  authenticate(token: string): Result<{ claim(body: ClaimBody): Promise<Result<ClaimAnswer>> }>;
  /** 401 `invalid_service_capability` for an unknown name or a wrong token alike. */
  authenticateDetached(
    serviceName: string,
    token: string,
  ): Result<{ claim(body: DetachedClaimBody): Promise<Result<ClaimAnswer>> }>;
}

export interface ResultEntry {
  /** 404 `not_found` for an unknown or forgotten id, 401 `invalid_result_capability` for a wrong token. */
  authenticate(
    continuationId: string,
    token: string,
  ): Result<{ submit(body: ResultBody): Promise<Result<ResultAnswer>>; status(): ContinuationStatus }>;
}

export interface OperatorActions {
  health(): ContinuationHealth;
  /** `limit` and `cursor` as they came in the query; both are checked here. */
  list(query: { limit?: string; cursor?: string; state?: string }): Result<ListAnswer>;
  show(continuationId: string): Result<ContinuationDetail>;
  /** Promises not yet kept, nearest deadline first: one page, whose `total` and `needPerson` count all of them. */
  owed(query: { limit?: string; cursor?: string }): Result<OwedAnswer>;
  /** Asks the channel now what became of an unknown post. */
  prove(continuationId: string): Promise<Result<ContinuationStatus>>;
  /**
   * After a restore: lets one that is held be synthesized and posted. `not_held` when it isn't. A synthesis that was
   * under way in the backup ends as after any restart; the model is not asked twice.
   */
  release(continuationId: string): Promise<Result<ContinuationStatus>>;
  /** The same for all that are held. */
  releaseAll(): Promise<Result<Released>>;
  /** Durable changes as they happen. Returns what ends it. */
  watch(listener: (event: WatchEvent) => void): () => void;
  /** Captured text of a delivered capture continuation, else undefined. Not reachable over HTTP. */
  capturedText(continuationId: string): string | undefined;
  retry(continuationId: string, options: { allowUnknown?: boolean }): Promise<Result<ContinuationStatus>>;
  cancel(continuationId: string): Promise<Result<ContinuationStatus>>;
  resolve(continuationId: string, resolution: Resolution): Promise<Result<ContinuationStatus>>;
}
