import { createContinuationService } from "../../src/continuation/service.ts";
import { resultToken } from "../../src/core/derive.ts";
import { limitsSchema, retentionSchema } from "../../src/core/limits.ts";
import type { DeliveryOutcome, DeliveryProof, DeliveryRequest } from "../../src/core/ports/delivery.ts";
import type { Clock } from "../../src/core/ports/platform.ts";
import type { RunClaims } from "../../src/core/ports/run-claims.ts";
import type { ContinuationStore } from "../../src/core/ports/store.ts";
import type { SynthesisRequest } from "../../src/core/ports/synthesis.ts";
import { type ContinuationRecord, type ContinuationState, STATES } from "../../src/core/record.ts";
import { createMemoryFileSystem, type MemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { openContinuationStore } from "../../src/store/open.ts";
import { createFakeIds } from "../support/fake-ids.ts";
import { LIMITS, type Setup, type Weather } from "../support/reference-terms.ts";
import { silentLogger } from "../support/silent-logger.ts";

/**
 * The real service over the real store on a disk that can lose power, one process after another, and what must hold of
 * it whatever the reference model says. A violation is thrown by `check`.
 */

export const START_MS = Date.UTC(2026, 10, 30, 12);
export const ROUTES = {
  notify: { mode: "notify_if_actionable", conversationId: "test:ops" },
  capture: { mode: "capture" },
  silent: { mode: "silent", conversationId: "test:ops" },
} as const;
const TEXT = "the answer to";
const GRACE_MS = 300_000;

export type Process = Awaited<ReturnType<ReturnType<typeof createSystem>["boot"]>>;

/** What of the unsynced changes a power cut leaves: all, none, or a choice made from a seed. */
export type Survivors = "all" | "none" | number;

/** Everything that needs no clock has run: the disk and the fakes take nothing but microtasks. */
export const quiet = () => new Promise<void>((resolve) => setImmediate(resolve));

/** What a call has come to when all is quiet. */
export async function outcome<T>(call: Promise<T>): Promise<T | "pending" | "fault"> {
  let result: T | "pending" | "fault" = "pending";
  call.then(
    (value) => {
      result = value;
    },
    () => {
      result = "fault";
    },
  );
  await quiet();
  return result;
}

/** A clock whose timers die with the process that set them. */
function createTime() {
  let now = START_MS;
  let timers: { due: number; fire: () => void; owner: object }[] = [];
  return {
    now: () => now,
    of: (owner: object): Clock => ({
      now: () => now,
      timer(delayMs, fire) {
        const timer = { due: now + Math.max(0, delayMs), fire, owner };
        timers.push(timer);
        return () => {
          timers = timers.filter((other) => other !== timer);
        };
      },
    }),
    forget(owner: object) {
      timers = timers.filter((timer) => timer.owner !== owner);
    },
    /** One timer at a time, each followed by what it starts, until `until` or until nothing is left to wait for. */
    async advance(until: number, done: () => boolean = () => false) {
      while (!done()) {
        let next: (typeof timers)[number] | undefined;
        for (const timer of timers) if (next === undefined || timer.due < next.due) next = timer;
        if (next === undefined || next.due > until) break;
        const due = next;
        timers = timers.filter((other) => other !== due);
        now = Math.max(now, due.due);
        due.fire();
        await quiet();
      }
      if (!done()) now = Math.max(now, until);
    },
  };
}

/** What the world outside knows of one continuation, over all processes. */
interface Outside {
  calls: number;
  /** Posts that may have happened: every one whose outcome nobody knows to be "not delivered". */
  doubtful: number;
  emptyLooks: number;
  lastPostAt: number;
  versions: ContinuationRecord[];
}

const MAY_FOLLOW: Partial<Record<ContinuationState, readonly ContinuationState[]>> = {
  delivered: [],
  expired: [],
  cancelled: [],
  delivery_unknown: ["delivered", "ready_to_deliver", "dead_lettered"],
  dead_lettered: ["ready_to_deliver"],
};

const SETTLED: readonly ContinuationState[] = ["delivered", "expired", "cancelled", "dead_lettered"];

let boots = 0;

export function createSystem(weather: () => Weather, { workers, keep }: Setup) {
  const time = createTime();
  const outside = new Map<string, Outside>();
  const violations: string[] = [];
  let disk: MemoryFileSystem = emptyDisk.afterPowerCut("all");

  const of = (id: string): Outside => {
    const known = outside.get(id);
    if (known !== undefined) return known;
    const made = { calls: 0, doubtful: 0, emptyLooks: 0, lastPostAt: 0, versions: [] };
    outside.set(id, made);
    return made;
  };
  const violated = (what: string) => void violations.push(what);

  async function boot() {
    boots += 1;
    const owner = {};
    const clock = time.of(owner);
    const ids = createFakeIds(`boot-${boots}`);
    const store = await openContinuationStore({
      stateDir: "/state",
      fs: disk,
      clock,
      ids,
      logger: silentLogger,
      retention: retentionSchema.parse(keep),
      acquireLock: () => ({ release: () => {} }),
    });
    const listeners = new Set<() => void>();
    const hung = new Map<string, (how: string) => void>();
    const hang = <T>(id: string, answer: (how: string) => Promise<T>) =>
      new Promise<T>((resolve, reject) => {
        hung.set(id, (how) => {
          hung.delete(id);
          answer(how).then(resolve, reject);
        });
      });

    async function synthesis(id: string, how: string): Promise<string> {
      if (how === "throw") throw new Error("the model is down");
      return how === "empty" ? "  " : `${TEXT} ${id}`;
    }
    async function delivery(id: string, how: string): Promise<DeliveryOutcome> {
      const known = of(id);
      if (how === "retry" || how === "retry_in_5s" || how === "permanent") known.doubtful = 0;
      switch (how) {
        case "delivered":
          return { kind: "delivered", parts: [{ id: `post-${id}` }], channelId: "test" };
        case "retry":
          return { kind: "retryable", code: "busy", reason: "busy" };
        case "retry_in_5s":
          return { kind: "retryable", code: "busy", reason: "busy", retryAfterMs: 5000 };
        case "permanent":
          return { kind: "permanent", code: "channel_not_found", reason: "gone" };
        case "unknown":
          return { kind: "unknown", code: "socket_closed", reason: "closed" };
        default:
          throw new Error("the channel broke");
      }
    }

    const service = createContinuationService({
      store,
      clock,
      ids,
      logger: silentLogger,
      limits: limitsSchema.parse({ ...LIMITS, maxConcurrent: workers, operatorPageSize: 100 }),
      namedRoutes: new Map(Object.entries(ROUTES)),
      detachedServices: new Map([["svc", "a-token-of-a-service"]]),
      continuationServers: ["work-control"],
      baseUrl: "http://127.0.0.1:4319",
      synthesis: {
        synthesize(request) {
          const id = request.continuationId;
          of(id).calls += 1;
          if (of(id).calls > 1) violated(`the model was asked ${of(id).calls} times for ${id}`);
          checkRequest(request, store.durable.get(id));
          const how = weather().synthesis;
          return how === "hang" ? hang(id, (late) => synthesis(id, late)) : synthesis(id, how);
        },
      },
      delivery: {
        supports: (destination) => (destination.startsWith("test:") ? weather().support : "never"),
        deliver(request) {
          const id = request.deliveryKey.slice("continuation:".length);
          const known = of(id);
          known.doubtful += 1;
          known.emptyLooks = 0;
          known.lastPostAt = clock.now();
          if (known.doubtful > 1) violated(`${id} was posted although an earlier post may have happened`);
          checkPost(request, store.durable.get(id));
          const how = weather().delivery;
          return how === "hang" ? hang(id, (late) => delivery(id, late)) : delivery(id, how);
        },
        onReady(listener) {
          listeners.add(listener);
          return () => void listeners.delete(listener);
        },
        async find(_destination, key): Promise<DeliveryProof> {
          const id = key.slice("continuation:".length);
          const known = of(id);
          const how = weather().find;
          if (how === "found") {
            return { kind: "delivered", parts: [{ id: "found" }], channelId: "test", evidence: "row" };
          }
          if (how === "throw") throw new Error("no permission");
          if (how === "hang") return new Promise(() => {});
          if (how === "unknown") return { kind: "unknown" };
          known.emptyLooks += 1;
          const late = clock.now() >= known.lastPostAt + LIMITS.deliveryTimeoutMs + GRACE_MS;
          if (how === "absent_exact" || (late && known.emptyLooks > 1)) known.doubtful = 0;
          return { kind: "absent", exact: how === "absent_exact", evidence: "looked" };
        },
      },
      history: {
        record: async () =>
          weather().history === "ok" ? { recorded: true } : { recorded: false, code: "history_unavailable" },
      },
    });
    // A process may have died between a commit and its news.
    const found = new Set(store.durable.inStates(STATES).map((record) => record.continuationId));
    for (const [id, { versions }] of outside) {
      if (!found.has(id) && versions.length > 0) checkDropped(id, store);
    }
    for (const id of found) look(id, store);
    store.onDurable((changed) => {
      for (const id of changed) look(id, store);
    });
    const runs = new Map<number, RunClaims>();
    return {
      owner,
      store,
      service,
      hung,
      runs,
      announce() {
        for (const listener of listeners) listener();
      },
      issue(run: number) {
        const issued =
          runs.get(run) ??
          service.issuer.issue({
            originRunId: `run-${run}`,
            conversationId: "test:room",
            replyTo: "test:room",
          });
        runs.set(run, issued);
        return issued;
      },
      tokenFor: (record: ContinuationRecord) =>
        resultToken(store.secret, record.continuationId, record.taskHash),
    };
  }

  function look(id: string, store: ContinuationStore) {
    const record = store.durable.get(id);
    if (record === undefined) checkDropped(id, store);
    else observe(id, record);
  }

  /** Each version that became durable: what may never change has not changed. */
  function observe(id: string, next: ContinuationRecord) {
    const { versions } = of(id);
    const last = versions.at(-1);
    versions.push(next);
    if (last === undefined) return;
    if (last.state !== next.state && MAY_FOLLOW[last.state]?.includes(next.state) === false) {
      violated(`${id} went from ${last.state} to ${next.state}`);
    }
    for (const key of ["taskHash", "deadline", "claimFingerprint", "replyToConversationId"] as const) {
      if (last[key] !== next[key]) violated(`${key} of ${id} changed`);
    }
    for (const key of ["resultPayloadHash", "resultIdempotencyKey"] as const) {
      if (last[key] !== undefined && last[key] !== next[key]) violated(`${key} of ${id} changed`);
    }
    if (last.receipt !== undefined && !Bun.deepEquals(last.receipt, next.receipt)) {
      violated(`the receipt of ${id} changed`);
    }
    const { versions: _, ...counts } = of(id);
    if (next.synthesisAttempts < counts.calls) violated(`a model call of ${id} is not counted`);
  }

  /** A record is gone: it was settled, and beyond its age or as many newer ones as are kept. */
  function checkDropped(id: string, { durable }: ContinuationStore) {
    const { versions } = of(id);
    const last = versions.at(-1);
    if (last === undefined) return violated(`${id} disappeared before it was there`);
    // It may have ended in the very change that dropped it.
    const at = last.updatedAt;
    const newer = durable
      .inStates(SETTLED)
      .filter((other) => other.updatedAt > at || (other.updatedAt === at && other.continuationId > id));
    const aged = time.now() - Date.parse(at) > keep.terminalMaxAgeMs;
    if (newer.length < keep.terminalMaxRecords && !aged) violated(`${id} disappeared within retention`);
    of(id).versions = [];
  }

  function checkRequest(request: SynthesisRequest, record: ContinuationRecord | undefined) {
    const id = request.continuationId;
    if (record?.state !== "synthesizing") violated(`the model is asked for ${id} in ${record?.state}`);
    if (!Bun.deepEquals(request.payload, record?.resultPayload)) violated(`${id} has a foreign payload`);
    if (request.context.policy === "pinned") {
      const { messages, originRunId } = request.context.snapshot;
      const told = messages.at(-1)?.content;
      if (
        originRunId !== record?.originRunId ||
        told !== textOfDigest.get(record.originContextDigest ?? "")
      ) {
        violated(`${id} is synthesized from a foreign context`);
      }
    }
  }

  function checkPost({ destination, text }: DeliveryRequest, record: ContinuationRecord | undefined) {
    const id = record?.continuationId;
    const wanted = record?.completionKind === "synthesized" ? `${TEXT} ${id}` : undefined;
    if (destination !== record?.replyToConversationId) violated(`${id} is posted to a foreign place`);
    if (wanted !== undefined && text !== wanted) violated(`${id} is posted with a foreign text`);
    if (record?.deliveryStartedAt === undefined) violated(`${id} is posted before it is said so`);
  }

  const textOfDigest = new Map<string, string>();

  return {
    time,
    boot,
    outside: of,
    textOfDigest,
    get disk() {
      return disk;
    },
    /** The power goes now; the next process finds what survives. */
    powerCut(owner: object, survival: Survivors) {
      time.forget(owner);
      let random = typeof survival === "number" ? survival : 0;
      const coin = () => {
        random = (Math.imul(random, 1_664_525) + 1_013_904_223) >>> 0;
        const draw = random >>> 29;
        return draw === 0 ? "torn" : draw === 1 ? "zeros" : draw > 4;
      };
      disk = disk.afterPowerCut(typeof survival === "number" ? coin : survival);
    },
    /** The process has ended in order; the next one goes on with the same disk. */
    handOver(owner: object) {
      time.forget(owner);
      disk = disk.takeOver();
    },
    violation: () => violations[0],
  };
}

/** A state directory that was opened and closed once. */
const emptyDisk = createMemoryFileSystem();
const first: ContinuationStore = await openContinuationStore({
  stateDir: "/state",
  fs: emptyDisk,
  clock: createTime().of({}),
  ids: createFakeIds("first"),
  logger: silentLogger,
  retention: retentionSchema.parse({}),
  acquireLock: () => ({ release: () => {} }),
});
await first.close();
