import type { Result } from "../errors.ts";
import type { OriginSnapshot } from "../snapshot.ts";
import type { ClaimCapability } from "./tools.ts";

export interface RunOrigin {
  /** The id of the turn's first run, kept by recovery runs. */
  readonly originRunId: string;
  /** Exact history identity, with its bucket. */
  readonly conversationId: string;
  readonly replyTo: string;
}

/** The claims of one origin run, from capability to settlement. The harness drives it; claims arrive over HTTP meanwhile. */
export interface RunClaims {
  /** By server name: one short-lived capability for each selected server. */
  readonly capabilities: ReadonlyMap<string, ClaimCapability>;
  /** Closes the capabilities to new claims and drains admitted ones. Idempotent. */
  release(): Promise<void>;
  /** Whether at least one active claim of this run remains. Call after `release`. */
  hasActiveClaims(): boolean;
  /** Stores the snapshot and binds its digest to each active claim. A refusal fails the turn. */
  finalize(snapshot: OriginSnapshot): Promise<Result<{ snapshotDigest: string; historyBoundary: string }>>;
  /** After the origin commit: publishes the group activation. */
  activate(snapshotDigest: string): Promise<void>;
  /** Before commit, on failure or cancel: marks still-pending claims abandoned. */
  abandon(): Promise<void>;
}

export interface RunClaimsIssuer {
  /** Without a continuation service the map of capabilities is empty and nothing is ever active. */
  issue(origin: RunOrigin): RunClaims;
}
