import { checkedOptions } from "../config/embedded.ts";
import type { NamedRoute } from "../continuation/deps.ts";
import { createContinuationService } from "../continuation/service.ts";
import { hostAndPort } from "../core/address.ts";
import { ContinuationError } from "../core/errors.ts";
import type { ContinuationLimits, RetentionLimits } from "../core/limits.ts";
import type {
  DeliveryOutcome,
  DeliveryProof,
  DeliveryRequest,
  DestinationSupport,
  HistoryOutcome,
} from "../core/ports/delivery.ts";
import type { Clock, Ids, Logger } from "../core/ports/platform.ts";
import type { RunClaims, RunOrigin } from "../core/ports/run-claims.ts";
import type { ContinuationStore } from "../core/ports/store.ts";
import type { SynthesisReadiness, SynthesisRequest } from "../core/ports/synthesis.ts";
import type { ContinuationDetail } from "../core/wire.ts";
import { createContinuationApp } from "../http/continuation-app.ts";
import type { LiveEvents } from "../http/live-events.ts";
import { type HttpServer, serveHttp } from "../http/serve.ts";
import { createClock } from "../platform/clock.ts";
import { createIds } from "../platform/ids.ts";
import { type OperatorHandle, operatorHandle } from "./app.ts";
import { openStore, QUIET } from "./embedded-store.ts";

export type { NamedRoute } from "../continuation/deps.ts";
export { ConfigError, ContinuationError } from "../core/errors.ts";
export type { ContinuationLimits, RetentionLimits } from "../core/limits.ts";
export type {
  DeliveryOutcome,
  DeliveryProof,
  DeliveryRequest,
  DestinationSupport,
  HistoryOutcome,
} from "../core/ports/delivery.ts";
export type { RunClaims, RunOrigin } from "../core/ports/run-claims.ts";
export type { SynthesisReadiness, SynthesisRequest } from "../core/ports/synthesis.ts";
export { buildSnapshot, type OriginSnapshot, type SnapshotInput } from "../core/snapshot.ts";
export {
  type ContinuationDetail,
  type ContinuationHealth,
  type ContinuationStatus,
  claimAnswerSchema,
  type OwedAnswer,
  type Resolution,
  type WatchEvent,
} from "../core/wire.ts";

/** `mono-agent/continuation`: durable continuations for a host of your own. Importing it starts nothing. */

export interface ContinuationsOptions {
  /** A state directory to open and own, or a store that is open already and stays yours. */
  readonly state: { readonly stateDir: string } | { readonly store: ContinuationStore };
  /** Where services claim and submit: a loopback address with a fixed port, because result URLs must survive restarts. */
  readonly listen: { readonly host?: "127.0.0.1" | "localhost" | "::1"; readonly port: number };
  /** MCP servers that get a capability in each run. */
  readonly continuationServers?: readonly string[];
  /** Missing limits have the defaults of the configuration. */
  readonly limits?: Partial<ContinuationLimits>;
  readonly retention?: Partial<RetentionLimits>;
  readonly namedRoutes?: Readonly<Record<string, NamedRoute>>;
  /** Service name → bearer token of at least 16 characters. */
  readonly detachedServices?: Readonly<Record<string, string>>;
  readonly clock?: Clock;
  readonly ids?: Ids;
  readonly logger?: Logger;
  /** One tool-free model call; never called twice for a continuation. */
  synthesize(request: SynthesisRequest): Promise<string>;
  /**
   * Whether a model call could begin now; asked before each one. Anything but true puts it off, at no attempt, until its
   * back-off has passed (1 s doubling to 5 min); the code is shown as its `lastError`. Left out: always ready.
   */
  synthesisReady?(): SynthesisReadiness;
  /** Whether the destination can be served: `not_running` defers synthesis and delivery, `never` refuses the claim. */
  supports(destination: string): DestinationSupport;
  deliver(request: DeliveryRequest): Promise<DeliveryOutcome>;
  /** Looks a post up by its delivery key. Without it an unknown outcome waits for an operator. */
  findDelivery?(
    destination: string,
    deliveryKey: string,
    since: string,
    signal: AbortSignal,
  ): Promise<DeliveryProof>;
  /** Appends a delivered answer to history, idempotently by its delivery key. */
  recordHistory(entry: {
    readonly originConversationId: string;
    readonly destination: string;
    readonly deliveryKey: string;
    readonly text: string;
    readonly at: string;
  }): Promise<HistoryOutcome>;
  /**
   * What your ledger knows of an origin run whose claims a crash left pending: the digest of the snapshot that was
   * committed with it, `unfinished` when the run goes on, or undefined when it failed. Without it they are abandoned.
   */
  committedSnapshot?(originRunId: string): Promise<string | "unfinished" | undefined>;
}

export interface Continuations extends OperatorHandle {
  /**
   * Settles what a crash left, listens, asks what became of unknown posts, and starts the worker. With `worker: false`
   * all but the last: then you drive the work with `processDue`. Rejects with `service_stopping` when `stop` is called
   * before it has ended.
   */
  start(options?: { readonly worker?: boolean }): Promise<{ readonly url: string }>;
  /** Refuses new work, lets running work end (bounded), and closes what it opened. */
  stop(): Promise<void>;
  /** Opens the capabilities of one run; you drive release, finalize, activate or abandon. */
  issue(origin: RunOrigin): RunClaims;
  /** Works on what is due and waits for it, for hosts that drive time themselves (`worker: false`). Resolves with how many. */
  processDue(limit: number): Promise<number>;
  /**
   * Tells that what `supports` or `synthesisReady` said no to may work now: what was put off for it is looked at at once
   * (with `worker: false`, by the next `processDue`). In vain, it writes nothing.
   */
  announceReady(): void;
  /** The same as `showContinuation`. */
  status(continuationId: string): ContinuationDetail | undefined;
}

/**
 * Opens the store (unless one is given) and composes the service. Nothing runs before `start`. Rejects with a
 * `ConfigError` that lists every wrong option, before anything is opened.
 */
export async function createContinuations(options: ContinuationsOptions): Promise<Continuations> {
  const clock = options.clock ?? createClock();
  const ids = options.ids ?? createIds();
  const logger = options.logger ?? QUIET;
  const { listen, limits, namedRoutes, detachedServices, continuationServers } = checkedOptions(options);
  const { host, port } = listen;
  const given = "store" in options.state ? options.state.store : undefined;
  const store =
    given ??
    (await openStore({
      stateDir: (options.state as { stateDir: string }).stateDir,
      ...(options.retention === undefined ? {} : { retention: options.retention }),
      clock,
      ids,
      logger,
    }));
  const url = `http://${hostAndPort(listen)}`;
  const ready = options.synthesisReady?.bind(options);
  const service = createContinuationService({
    store,
    clock,
    ids,
    logger,
    limits,
    namedRoutes: new Map(Object.entries(namedRoutes)),
    detachedServices: new Map(Object.entries(detachedServices)),
    continuationServers,
    baseUrl: url,
    synthesis: {
      ...(ready === undefined ? {} : { ready }),
      synthesize: (request) => options.synthesize(request),
    },
    delivery: {
      supports: (destination) => options.supports(destination),
      deliver: (request) => options.deliver(request),
      find: async (destination, deliveryKey, since, signal) =>
        (await options.findDelivery?.(destination, deliveryKey, since, signal)) ?? { kind: "unknown" },
    },
    history: { record: (entry) => options.recordHistory(entry) },
  });
  const watchers = new Set<LiveEvents>();
  /** From the start on, also while that is under way. */
  let listening: Promise<HttpServer> | undefined;
  let starting = false;
  let stopped = false;

  const refuseStopped = () => {
    if (stopped) throw new ContinuationError("service_stopping", "it has been stopped; create another");
  };

  const settleOrigins = async () => {
    for (const group of service.origins.pending()) {
      const committed = await options.committedSnapshot?.(group.originRunId);
      // The answer may come long after a stop, when the store is closed or has another owner.
      refuseStopped();
      if (committed === "unfinished") continue;
      if (committed !== undefined) await service.origins.activate(group, committed);
      await service.origins.abandon(group);
    }
  };

  const handle = operatorHandle(service);
  return {
    ...handle,
    issue: (origin) => service.issuer.issue(origin),
    processDue: (limit) => service.processDue(limit),
    announceReady: () => service.announceReady(),
    status: handle.showContinuation,
    async start({ worker = true } = {}) {
      refuseStopped();
      if (starting) throw new ContinuationError("operation_failed", "it is started already");
      starting = true;
      try {
        await settleOrigins();
        refuseStopped();
        listening = serveHttp({
          app: (bound, unhurried) =>
            createContinuationApp({ service, bound, logger, clock, watchers, unhurried }),
          host,
          port,
          clock,
          logger,
        });
        await listening;
      } catch (error) {
        starting = false;
        throw error;
      }
      await (worker ? service.startWorker() : service.recover());
      refuseStopped();
      return { url };
    },
    async stop() {
      stopped = true;
      await service.stop();
      // Not before: one that connects meanwhile would hold the listener.
      for (const watcher of [...watchers]) watcher.close();
      // A start that is under way gets its port, or gives up, within a second.
      const listener = await listening?.catch(() => undefined);
      await listener?.stop();
      if (given === undefined) await store.close();
    },
  };
}
