import type { ContinuationService } from "../continuation/api.ts";
import { ContinuationError, type Result } from "../core/errors.ts";
import type { McpServerSpec } from "../core/mcp-servers.ts";
import type { ContinuationState } from "../core/record.ts";
import type {
  BackupReport,
  ContinuationDetail,
  ContinuationHealth,
  ContinuationStatus,
  OwedAnswer,
  Resolution,
  WatchEvent,
} from "../core/wire.ts";
import type { Verification } from "./verify.ts";

/** A running host, for the command line and for programs that embed it. */
export interface MonoAgentApp {
  /** Where it listens; absent for what is off. */
  readonly addresses: { readonly continuations?: string; readonly terminal?: string };
  /** Undefined when the continuation service is off. */
  continuationHealth(): ContinuationHealth | undefined;
  /** Every continuation, or every one in this state, newest first; empty when the service is off. */
  listContinuations(filter?: { readonly state?: ContinuationState }): ContinuationStatus[];
  /** State, timeline and what it waits for; undefined for an unknown id. */
  showContinuation(continuationId: string): ContinuationDetail | undefined;
  /**
   * One page of the promises not yet kept, nearest deadline first: at most `limit` (1 to `operatorPageSize`, its
   * default) after `cursor`, the `nextCursor` of the page before. `total` and `needPerson` count those of all pages.
   * Throws `invalid_page_limit` and `invalid_page_cursor`.
   */
  owedContinuations(limit?: number, cursor?: string): OwedAnswer;
  /** Durable changes as they happen. Returns what ends it. */
  watchContinuations(listener: (event: WatchEvent) => void): () => void;
  /** The text of a delivered capture continuation, else undefined. */
  capturedContinuationText(continuationId: string): string | undefined;
  /** Delivers a stored text again. Throws `ContinuationError`; `allowUnknown` only after outside proof that it is safe. */
  retryContinuation(
    continuationId: string,
    options?: { allowUnknown?: boolean },
  ): Promise<ContinuationStatus>;
  /**
   * Asks the channel now what became of an unknown or held post; resolves with what that led to. Never posts. Throws
   * `not_delivery_unknown` for any other.
   */
  proveContinuation(continuationId: string): Promise<ContinuationStatus>;
  /** Idempotent for a cancelled continuation; other terminal states throw `already_terminal`. */
  cancelContinuation(continuationId: string): Promise<ContinuationStatus>;
  /** After a restore: lets a held continuation be synthesized and posted. Throws `not_held` for any other. */
  releaseContinuation(continuationId: string): Promise<ContinuationStatus>;
  /** The same for all that are held; resolves with how many. */
  releaseContinuations(): Promise<number>;
  /** Decides a `delivery_unknown` continuation. After `not_delivered` it is posted again; the others never post. */
  resolveContinuationDelivery(continuationId: string, resolution: Resolution): Promise<ContinuationStatus>;
  /** Recomputes from disk what binds one continuation together; undefined for an unknown id or when the service is off. */
  verifyContinuation(continuationId: string): Verification | undefined;
  /**
   * Gives every MCP server a fresh start with these entries of mcp.json. Runs under way keep the servers they have to
   * their end; which servers are trusted with continuations or context does not change. Throws
   * `unsupported_continuation_server` when one of these could not hold its authority any more.
   */
  rotateMcpServers(servers: ReadonlyMap<string, McpServerSpec>): void;
  /**
   * Backs up the whole state while it goes on, to an absolute path that must not be there: a tar when it ends in
   * `.tar`, else a folder. One at a time. Throws `BackupError`.
   */
  backup(target: string): Promise<BackupReport>;
  /** Stops in order: channels take nothing new, running turns and deliveries end (bounded), stores close. Idempotent. */
  stop(): Promise<void>;
}

export type OperatorHandle = Omit<
  MonoAgentApp,
  "addresses" | "backup" | "rotateMcpServers" | "stop" | "verifyContinuation"
>;

/** The operator part of the handle over a service that may be off. */
export function operatorHandle(service: ContinuationService | undefined): OperatorHandle {
  const required = (): ContinuationService => {
    if (service !== undefined) return service;
    throw new ContinuationError("service_stopping", "The continuation service is not running.");
  };
  const take = <T>(result: Result<T>): T => {
    if (result.ok) return result.value;
    throw new ContinuationError(result.refusal.code, result.refusal.message);
  };

  return {
    continuationHealth: () => service?.operator.health(),
    listContinuations(filter = {}) {
      const all: ContinuationStatus[] = [];
      let cursor: string | undefined;
      while (service !== undefined) {
        const page = take(service.operator.list(cursor === undefined ? filter : { ...filter, cursor }));
        all.push(...page.continuations);
        cursor = page.nextCursor;
        if (cursor === undefined) break;
      }
      return all;
    },
    showContinuation(continuationId) {
      const shown = service?.operator.show(continuationId);
      return shown?.ok ? shown.value : undefined;
    },
    owedContinuations(limit, cursor) {
      if (service === undefined) return { owed: [], total: 0, needPerson: 0 };
      const query = {
        ...(limit === undefined ? {} : { limit: String(limit) }),
        ...(cursor === undefined ? {} : { cursor }),
      };
      return take(service.operator.owed(query));
    },
    watchContinuations: (listener) => service?.operator.watch(listener) ?? (() => {}),
    proveContinuation: async (continuationId) => take(await required().operator.prove(continuationId)),
    capturedContinuationText: (continuationId) => service?.operator.capturedText(continuationId),
    retryContinuation: async (continuationId, options = {}) =>
      take(await required().operator.retry(continuationId, options)),
    cancelContinuation: async (continuationId) => take(await required().operator.cancel(continuationId)),
    releaseContinuation: async (continuationId) => take(await required().operator.release(continuationId)),
    releaseContinuations: async () => take(await required().operator.releaseAll()).released,
    resolveContinuationDelivery: async (continuationId, resolution) =>
      take(await required().operator.resolve(continuationId, resolution)),
  };
}
