import type { ContinuationService } from "../../src/continuation/api.ts";
import type { NamedRoute } from "../../src/continuation/deps.ts";
import type { RestoreHold } from "../../src/continuation/hold.ts";
import { createContinuationService } from "../../src/continuation/service.ts";
import { payloadHash } from "../../src/core/derive.ts";
import { sha256Hex } from "../../src/core/digest.ts";
import type { JsonValue } from "../../src/core/json.ts";
import { limitsSchema, type RetentionLimits, retentionSchema } from "../../src/core/limits.ts";
import type {
  DeliveryOutcome,
  DeliveryProof,
  DeliveryRequest,
  DestinationSupport,
  HistoryOutcome,
} from "../../src/core/ports/delivery.ts";
import type { FileSystem, Logger } from "../../src/core/ports/platform.ts";
import type { RunOrigin } from "../../src/core/ports/run-claims.ts";
import type { ContinuationStore } from "../../src/core/ports/store.ts";
import type { SynthesisReadiness, SynthesisRequest } from "../../src/core/ports/synthesis.ts";
import { buildSnapshot } from "../../src/core/snapshot.ts";
import type { ClaimAnswer } from "../../src/core/wire.ts";
import { createMemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import type { CarryLimits } from "../../src/store/journal.ts";
import { openContinuationStore } from "../../src/store/open.ts";
import { createFakeClock, type FakeClock } from "./fake-clock.ts";
import { createFakeIds } from "./fake-ids.ts";
import { silentLogger } from "./silent-logger.ts";

/** The real service over the real store, with the disk, the clock, the model and the channel in the test's hands. */

export const STATE_DIR = "/state";

export interface World {
  readonly clock: FakeClock;
  readonly fs: FileSystem;
  readonly store: ContinuationStore;
  readonly service: ContinuationService;
  readonly syntheses: SynthesisRequest[];
  readonly posts: DeliveryRequest[];
  readonly history: { originConversationId: string; deliveryKey: string; text: string }[];
  readonly script: Script;
  /** A channel says that it can post now; how many heard it. */
  announce(): number;
  /** Opens claims for a run, as the harness does. */
  run(origin?: Partial<RunOrigin>): ReturnType<ContinuationService["issuer"]["issue"]>;
  /** A committed run with one claim: claimed, finalized, activated. */
  claimed(taskKey?: string): Promise<ClaimAnswer>;
  /** Drives the worker until nothing is due any more. */
  settle(): Promise<void>;
  submit(answer: ClaimAnswer, payload?: JsonValue): Promise<unknown>;
  record(continuationId: string): NonNullable<ReturnType<ContinuationStore["durable"]["get"]>>;
  /** The process dies and starts again on the same disk: nothing in memory survives. */
  restart(more?: Pick<WorldOptions, "hold">): Promise<World>;
}

/** What the outside answers; a test changes it at any time. */
export interface Script {
  synthesize: (request: SynthesisRequest) => Promise<string>;
  ready: () => SynthesisReadiness;
  deliver: (request: DeliveryRequest) => Promise<DeliveryOutcome>;
  find: (deliveryKey: string) => Promise<DeliveryProof>;
  supports: (destination: string) => DestinationSupport;
  record: () => Promise<HistoryOutcome>;
}

export interface WorldOptions {
  limits?: Record<string, number>;
  routes?: Record<string, NamedRoute>;
  services?: Record<string, string>;
  servers?: string[];
  fs?: FileSystem;
  clock?: FakeClock;
  seed?: string;
  /** After a restore. */
  hold?: RestoreHold;
  logger?: Logger;
  retention?: RetentionLimits;
  carryLimits?: CarryLimits;
  /** Puts something between the service and its store. */
  wrapStore?: (store: ContinuationStore) => ContinuationStore;
}

let generation = 0;

export async function createWorld(options: WorldOptions = {}): Promise<World> {
  const clock = options.clock ?? createFakeClock();
  const fs = options.fs ?? createMemoryFileSystem();
  generation += 1;
  const ids = createFakeIds(options.seed ?? `world-${generation}`);
  const opened = await openContinuationStore({
    stateDir: STATE_DIR,
    fs,
    clock,
    ids,
    logger: silentLogger,
    retention: options.retention ?? retentionSchema.parse({}),
    ...(options.carryLimits === undefined ? {} : { carryLimits: options.carryLimits }),
    acquireLock: () => ({ release: () => {} }),
  });
  const store = options.wrapStore?.(opened) ?? opened;
  const syntheses: SynthesisRequest[] = [];
  const posts: DeliveryRequest[] = [];
  const history: World["history"] = [];
  const listeners = new Set<() => void>();
  const script: Script = {
    synthesize: async () => "the answer",
    ready: () => true,
    deliver: async () => ({ kind: "delivered", parts: [{ id: `post-${posts.length}` }], channelId: "test" }),
    find: async () => ({ kind: "unknown" }),
    supports: (destination) => (destination.startsWith("test:") ? "supported" : "never"),
    record: async () => ({ recorded: true }),
  };
  const service = createContinuationService({
    store,
    clock,
    ids,
    logger: options.logger ?? silentLogger,
    limits: limitsSchema.parse(options.limits ?? {}),
    namedRoutes: new Map(Object.entries(options.routes ?? {})),
    detachedServices: new Map(Object.entries(options.services ?? {})),
    continuationServers: options.servers ?? ["work-control"],
    baseUrl: "http://127.0.0.1:4319",
    hold: options.hold,
    synthesis: {
      ready: () => script.ready(),
      synthesize(request) {
        syntheses.push(request);
        return script.synthesize(request);
      },
    },
    delivery: {
      supports: (destination) => script.supports(destination),
      deliver(request) {
        posts.push(request);
        return script.deliver(request);
      },
      find: (_destination, deliveryKey) => script.find(deliveryKey),
      onReady(listener) {
        listeners.add(listener);
        return () => void listeners.delete(listener);
      },
    },
    history: {
      async record(entry) {
        const outcome = await script.record();
        if (outcome.recorded) history.push(entry);
        return outcome;
      },
    },
  });

  const run: World["run"] = (origin = {}) =>
    service.issuer.issue({
      originRunId: "run-1",
      conversationId: "test:room",
      replyTo: "test:room",
      ...origin,
    });

  const world: World = {
    clock,
    fs,
    store,
    service,
    syntheses,
    posts,
    history,
    script,
    announce() {
      for (const listener of listeners) listener();
      return listeners.size;
    },
    run,
    async claimed(taskKey = "task") {
      const claims = run({ originRunId: `run-of-${taskKey}` });
      const answer = await claimThrough(world, tokenOf(claims), { taskKey });
      await claims.release();
      await commitRun(world, claims, `run-of-${taskKey}`);
      return answer;
    },
    async settle() {
      while ((await service.processDue(100)) > 0);
    },
    async submit(answer, payload = { summary: "done" }) {
      const entry = service.results.authenticate(answer.continuationId, answer.token);
      if (!entry.ok) return entry.refusal.code;
      const submitted = await entry.value.submit({
        idempotencyKey: "result-key",
        payloadHash: payloadHash(payload),
        payload,
      });
      return submitted.ok ? submitted.value.state : submitted.refusal.code;
    },
    record(continuationId) {
      const record = store.durable.get(continuationId);
      if (record === undefined) throw new Error(`no record ${continuationId}`);
      return record;
    },
    restart: (more = {}) => createWorld({ ...options, fs, clock, ...more }),
  };
  return world;
}

export function tokenOf(claims: ReturnType<World["run"]>, server = "work-control"): string {
  const capability = claims.capabilities.get(server);
  if (capability === undefined) throw new Error(`no capability for ${server}`);
  return capability.token;
}

export function claimBody(
  world: Pick<World, "clock">,
  patch: Partial<{ taskKey: string; taskHash: string; deadline: string }> = {},
) {
  return {
    taskKey: "task",
    taskHash: sha256Hex("task"),
    deadline: new Date(world.clock.now() + 3_600_000).toISOString(),
    ...patch,
  };
}

export async function tryClaim(world: World, token: string, patch: Parameters<typeof claimBody>[1] = {}) {
  const ticket = world.service.claims.authenticate(token);
  if (!ticket.ok) return ticket;
  return ticket.value.claim(claimBody(world, patch));
}

export async function claimThrough(world: World, token: string, patch: Parameters<typeof claimBody>[1] = {}) {
  const claimed = await tryClaim(world, token, patch);
  if (!claimed.ok) throw new Error(`claim refused: ${claimed.refusal.code}`);
  return claimed.value;
}

export function snapshotOf(originRunId: string, capturedAtMs: number, conversationId = "test:room") {
  const snapshot = buildSnapshot({
    conversationId,
    originRunId,
    capturedAt: new Date(capturedAtMs).toISOString(),
    history: [],
    userText: "please do it",
    assistantText: "accepted",
  });
  if (snapshot === undefined) throw new Error("the snapshot does not fit");
  return snapshot;
}

/** Finalize and activate, as a harness does around its commit. */
export async function commitRun(world: World, claims: ReturnType<World["run"]>, originRunId: string) {
  const bound = await claims.finalize(snapshotOf(originRunId, world.clock.now()));
  if (!bound.ok) throw new Error(`finalize refused: ${bound.refusal.code}`);
  await claims.activate(bound.value.snapshotDigest);
}

/** Lets everything that needs no clock go on: a few turns of the event loop. */
export async function idle(turns = 10): Promise<void> {
  for (let turn = 0; turn < turns; turn += 1) await new Promise<void>((resolve) => setImmediate(resolve));
}
