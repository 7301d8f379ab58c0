import { createDeliveredHistory } from "../../src/channels/delivered-history.ts";
import type { ContinuationService } from "../../src/continuation/api.ts";
import { createContinuationService } from "../../src/continuation/service.ts";
import { baseConversationId, resultToken } from "../../src/core/derive.ts";
import { limitsSchema, retentionSchema } from "../../src/core/limits.ts";
import type { DeliveryRequest } from "../../src/core/ports/delivery.ts";
import type { Model } from "../../src/core/ports/model.ts";
import type { FileSystem } from "../../src/core/ports/platform.ts";
import type { ContinuationStore } from "../../src/core/ports/store.ts";
import type { SynthesisRequest } from "../../src/core/ports/synthesis.ts";
import type { ToolHost } from "../../src/core/ports/tools.ts";
import type { TurnStore } from "../../src/core/ports/turns.ts";
import { failInterruptedTurns } from "../../src/harness/recovery.ts";
import { createTurnEngine, type RunningTurnEngine } from "../../src/harness/turn-engine.ts";
import { reconcileOrigins } from "../../src/host/reconcile.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { openContinuationStore } from "../../src/store/open.ts";
import { openTurnStore } from "../../src/turns/turn-store.ts";
import type { FakeClock } from "./fake-clock.ts";
import { createFakeIds } from "./fake-ids.ts";
import { createFakeTools, createScriptedModel, says } from "./harness-fakes.ts";
import { createRecordingLogger } from "./turns-fixture.ts";

/**
 * A host of both stores, put together as `host/start.ts` does, with a disk in memory for the continuations, a real
 * host.sqlite, and no channel but rows of that database. Model and tools are the test's.
 */

export const ROOM = "terminal:room";
export const SERVERS = ["work", "other"] as const;

export interface HostOptions {
  readonly fs: FileSystem;
  readonly database: string;
  readonly clock: FakeClock;
  readonly seed: string;
  readonly model?: Model;
  /** What each tool does with the capabilities of its run. */
  readonly tools?: Record<string, (host: Host) => Promise<string>>;
  /** Puts something between the host and its stores. */
  readonly wrapTurns?: (turns: TurnStore, host: () => Host) => TurnStore;
  readonly wrapStore?: (store: ContinuationStore) => ContinuationStore;
  readonly limits?: Record<string, number>;
}

export interface Host {
  readonly turns: TurnStore;
  readonly store: ContinuationStore;
  readonly service: ContinuationService;
  readonly engine: RunningTurnEngine;
  readonly syntheses: SynthesisRequest[];
  readonly posts: DeliveryRequest[];
  readonly log: ReturnType<typeof createRecordingLogger>["lines"];
  readonly clock: FakeClock;
  /** The token of one server in the newest run. */
  token(server?: string): string;
  /** Claims as a tool server would in the newest run; the continuation id, or the code of the refusal. */
  claim(taskKey: string, options?: { server?: string; minutes?: number }): Promise<string>;
  submit(continuationId: string, payload?: string): Promise<string>;
  /** Orderly end of everything. */
  close(): Promise<void>;
}

/** Opens both stores and decides about what a crash left, in the order of the host; the worker and the turns run. */
export async function startHost(options: HostOptions): Promise<Host> {
  const { clock } = options;
  const ids = createFakeIds(options.seed);
  const logger = createRecordingLogger();
  const opened = await openContinuationStore({
    stateDir: "/state",
    fs: options.fs,
    clock,
    ids,
    logger,
    retention: retentionSchema.parse({}),
    acquireLock: () => ({ release: () => {} }),
  });
  const store = options.wrapStore?.(opened) ?? opened;
  let host: Host | undefined;
  const theHost = (): Host => {
    if (host === undefined) throw new Error("the host is not up yet");
    return host;
  };
  const ledger = await openTurnStore({ path: options.database, fs: createFileSystem(), logger });
  const turns = options.wrapTurns?.(ledger, theHost) ?? ledger;
  const fakeTools = createFakeTools(
    Object.fromEntries(
      Object.entries(options.tools ?? {}).map(([name, run]) => [
        name,
        async () => ({ text: await run(theHost()), isError: false }),
      ]),
    ),
  );
  const tools: ToolHost = fakeTools;
  const syntheses: SynthesisRequest[] = [];
  const posts: DeliveryRequest[] = [];

  let service: ContinuationService | undefined;
  const engine = createTurnEngine({
    turns,
    model: options.model ?? createScriptedModel([says("accepted")]),
    tools,
    claims: {
      issue(origin) {
        if (service === undefined) throw new Error("no service yet");
        return service.issuer.issue(origin);
      },
    },
    clock,
    ids,
    logger,
    systemPrompt: "",
    limits: { maxSteps: 5, queue: 100, maxConcurrentRuns: 4 },
  });
  await failInterruptedTurns({ turns, clock, logger });
  service = createContinuationService({
    store,
    clock,
    ids,
    logger,
    limits: limitsSchema.parse(options.limits ?? {}),
    namedRoutes: new Map(),
    detachedServices: new Map(),
    continuationServers: SERVERS,
    baseUrl: "http://127.0.0.1:4319",
    synthesis: {
      async synthesize(request) {
        syntheses.push(request);
        return `answer to ${request.continuationId}`;
      },
    },
    delivery: {
      supports: (destination) => (destination.startsWith("terminal:") ? "supported" : "never"),
      async deliver(request) {
        posts.push(request);
        const appended = await turns.appendDelivered({
          conversationId: request.destination,
          baseId: baseConversationId(request.destination),
          deliveryKey: request.deliveryKey,
          text: request.text,
          now: new Date(clock.now()).toISOString(),
          mirror: false,
        });
        return appended.ok
          ? { kind: "delivered", parts: [{ id: String(appended.value.message.seq) }] }
          : { kind: "permanent", code: "delivery_key_conflict", reason: "another text has this key" };
      },
      async find(destination, deliveryKey) {
        const row = await turns.findDelivered(baseConversationId(destination), deliveryKey);
        return row === undefined
          ? { kind: "absent", exact: true, evidence: "no row" }
          : { kind: "delivered", parts: [{ id: String(row.seq) }], evidence: "row" };
      },
    },
    history: createDeliveredHistory({
      turns,
      session: { rollover: "none", timezone: "UTC" },
      clock,
      logger,
      publish: engine.publish,
    }),
  });
  const running = service;
  const token = (server: string = SERVERS[0]) =>
    fakeTools.opened.at(-1)?.capabilities.get(server)?.token ?? "no run";
  host = {
    turns,
    store,
    service: running,
    engine,
    syntheses,
    posts,
    log: logger.lines,
    clock,
    token,
    async claim(taskKey, { server, minutes = 60 } = {}) {
      const ticket = running.claims.authenticate(token(server));
      if (!ticket.ok) return ticket.refusal.code;
      const deadline = new Date(clock.now() + minutes * 60_000).toISOString();
      const claimed = await ticket.value.claim({ taskKey, taskHash: "hash", deadline });
      return claimed.ok ? claimed.value.continuationId : claimed.refusal.code;
    },
    async submit(continuationId, payload = "done") {
      const record = store.durable.get(continuationId);
      if (record === undefined) return "not_found";
      const entry = running.results.authenticate(
        continuationId,
        resultToken(store.secret, record.continuationId, record.taskHash),
      );
      if (!entry.ok) return entry.refusal.code;
      const submitted = await entry.value.submit({ idempotencyKey: "key", payload });
      return submitted.ok ? submitted.value.state : submitted.refusal.code;
    },
    async close() {
      await engine.stop();
      await running.stop();
      await turns.close();
      await store.close();
    },
  };
  await reconcileOrigins({ origins: running.origins, turns, clock, logger });
  await running.startWorker();
  await engine.recover();
  return host;
}

/** Submits one question and waits for its visible end; the status of its turn. */
export async function ask(host: Host, text = "question"): Promise<string> {
  const ended = Promise.withResolvers<string>();
  const stop = host.engine.observe(ROOM, (event) => {
    if (event.type === "turn" && !["queued", "running"].includes(event.status)) ended.resolve(event.status);
  });
  const admitted = await host.engine.submit({
    requestId: `request of ${text}`,
    conversationId: ROOM,
    text,
    replyTo: ROOM,
  });
  if (!admitted.ok) throw new Error(`not admitted: ${admitted.refusal.code}`);
  const status = await ended.promise;
  stop();
  return status;
}

/** Every record of a store, by task key. */
export function recordsByTask(store: ContinuationStore) {
  return new Map(store.durable.page(1000).records.map((record) => [record.taskKey, record] as const));
}
