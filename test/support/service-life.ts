import { deliveryKey } from "../../src/core/derive.ts";
import type { DeliveryOutcome } from "../../src/core/ports/delivery.ts";
import type { FileSystem } from "../../src/core/ports/platform.ts";
import type { ContinuationStore } from "../../src/core/ports/store.ts";
import type { ClaimAnswer } from "../../src/core/wire.ts";
import { createMemoryFileSystem, type MemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { createInflicted, type Inflicted } from "../../src/store/explore/inflicted.ts";
import { createLedger, type Ledger } from "../../src/store/explore/ledger.ts";
import type { CrashState } from "../../src/store/explore/recorder.ts";
import { createRandom, type Random } from "../../src/store/explore/simulated.ts";
import { survivals } from "../../src/store/explore/survivals.ts";
import { generateWorkload, type Workload } from "../../src/store/explore/workload.ts";
import {
  claimBody,
  createWorld,
  idle,
  snapshotOf,
  tokenOf,
  tryClaim,
  type World,
} from "./continuation-world.ts";
import { createFakeClock, type FakeClock } from "./fake-clock.ts";

/**
 * The real continuation service at work over the real store, from a seed: claims of turns and of detached services,
 * snapshots, activations, results, synthesis, delivery, receipts, operators and faults, much of it at the same time; and
 * at each operation of its disk what a power cut just before it may leave.
 */

/** What the world outside saw, in order. */
export type Event =
  | { kind: "accepted" | "synthesis" | "post"; id: string }
  | { kind: "outcome"; id: string; outcome: DeliveryOutcome["kind"] };

export interface Moment extends CrashState {
  /** How many of the events had been seen. */
  readonly events: number;
}

export interface ServiceLife {
  readonly workload: Workload;
  readonly images: readonly { readonly disk: MemoryFileSystem; readonly nowMs: number }[];
  readonly moments: readonly Moment[];
  readonly events: readonly Event[];
  /** A fault of its disk ended its writing. */
  readonly poisoned: boolean;
  /** What went wrong before any power cut. */
  readonly failure: string | undefined;
}

export const ROUTES = {
  quiet: { mode: "silent" },
  kept: { mode: "capture", conversationId: "test:room" },
  alert: { mode: "notify_if_actionable", conversationId: "test:room" },
} as const;
export const SERVICES = { svc: "token" };
const ROUTE_NAMES = ["quiet", "kept", "alert"] as const;

const OUTCOMES: readonly [DeliveryOutcome, ...DeliveryOutcome[]] = [
  { kind: "delivered", parts: [{ id: "part-1" }], channelId: "test" },
  { kind: "delivered", parts: [{ id: "part-1" }, { id: "part-2" }] },
  { kind: "retryable", code: "busy", reason: "come back" },
  { kind: "permanent", code: "gone", reason: "no such room" },
  { kind: "unknown", code: "silence", reason: "no answer" },
];

/** The id that a delivery key stands for. */
export const idOf = (key: string) => key.slice(deliveryKey("").length);

/** The store, with each change of head in the ledger and each promise of it acknowledged there. */
export function witnessed(store: ContinuationStore, ledger: Ledger, failed: (what: string) => void) {
  store.onDurable(() => {
    if (!ledger.show(store.durable)) failed("the durable view shows a state that no order explains");
  });
  async function watched<T>(act: () => Promise<T>): Promise<T> {
    const before = ledger.note(store.head);
    const work = act();
    const state = ledger.note(store.head);
    const result = await work;
    if (state > before) ledger.acknowledge(state);
    return result;
  }
  return {
    ...store,
    commit(change) {
      for (const put of change.puts) ledger.know(put.continuationId);
      return watched(() => store.commit(change));
    },
    activate: (group, digest, at) => watched(() => store.activate(group, digest, at)),
    sweep: (nowMs) => watched(() => store.sweep(nowMs)),
  } satisfies ContinuationStore;
}

/** `wrap` puts something between the store and its disk; tests plant bugs with it. */
export async function recordServiceLife(
  seed: number,
  wrap: (fs: FileSystem) => FileSystem = (fs) => fs,
): Promise<ServiceLife> {
  const random = createRandom(seed ^ 0x5e41);
  const cuts = createRandom(seed ^ 0xc075);
  const workload: Workload = { ...generateWorkload(seed), steps: [] };
  const clock = createFakeClock();
  const disk = createMemoryFileSystem();
  const ledger = createLedger(new Map());
  const images: { disk: MemoryFileSystem; nowMs: number }[] = [];
  const moments: Moment[] = [];
  const known = new Map<string, number>();
  const events: Event[] = [];
  let recovering = true;
  let secret: Uint8Array | undefined;
  let operations = 0;
  let failure: string | undefined;
  const faultAt = random.chance(0.25) ? 40 + random.below(300) : Number.POSITIVE_INFINITY;
  const errno = random.pick(["ENOSPC", "EIO", "EROFS", "EMFILE"]);
  const fault = random.chance(0.5) ? errno : { errno, done: true as const };
  const failed = (what: string) => {
    failure ??= `seed ${seed}, after ${operations} operations: ${what}`;
  };

  function take(label: string): void {
    const promised = { ledger, floor: ledger.floor, top: ledger.states.length - 1, recovering, secret };
    const unsynced = [...disk.unsynced()];
    for (const { name, survival } of survivals(unsynced, cuts)) {
      const left = disk.afterPowerCut(survival);
      const key = `${left.digest()}@${clock.now()}`;
      let image = known.get(key);
      if (image === undefined) {
        image = images.push({ disk: left, nowMs: clock.now() }) - 1;
        known.set(key, image);
      }
      const cut = { operation: operations, label, survival: name, unsynced, survives: survival };
      moments.push({ image, promised, ...cut, events: events.length });
    }
  }

  const inflicted = createInflicted();
  disk.failWhen(({ label }) => {
    operations += 1;
    take(label);
    if (operations !== faultAt) return undefined;
    inflicted.add(errno);
    return fault;
  });
  const world = await createWorld({
    fs: wrap(disk),
    clock,
    seed: `service life ${seed}`,
    routes: ROUTES,
    services: SERVICES,
    retention: workload.retention,
    carryLimits: workload.carryLimits,
    wrapStore(store) {
      secret = store.secret;
      recovering = false;
      return witnessed(store, ledger, failed);
    },
  });
  script(world, random, events);
  await world.service.startWorker();
  await live({ world, random, clock, events, inflicted, failed });
  await idle(3);
  await world.service.stop();
  await world.store.close();
  const poisoned = world.store.fault() !== undefined;
  const surprise = inflicted.poison(world.store);
  if (surprise !== undefined) failed(surprise);
  take("the end");
  return { workload, images, moments, events, poisoned, failure };
}

function script(world: World, random: Random, events: Event[]): void {
  world.script.synthesize = async ({ continuationId }) => {
    events.push({ kind: "synthesis", id: continuationId });
    await idle(random.below(3));
    if (random.chance(0.1)) throw new Error("the provider is down");
    return `answer to ${continuationId}`;
  };
  world.script.deliver = async (request) => {
    const id = idOf(request.deliveryKey);
    events.push({ kind: "post", id });
    await idle(random.below(3));
    const outcome = random.chance(0.6) ? OUTCOMES[0] : random.pick(OUTCOMES);
    events.push({ kind: "outcome", id, outcome: outcome.kind });
    return outcome;
  };
  world.script.record = async () =>
    random.chance(0.9) ? { recorded: true } : { recorded: false, code: "history_busy" };
}

interface Living {
  readonly world: World;
  readonly random: Random;
  readonly clock: FakeClock;
  readonly events: Event[];
  readonly inflicted: Inflicted;
  readonly failed: (what: string) => void;
}

async function live({ world, random, clock, events, inflicted, failed }: Living): Promise<void> {
  const underWay = new Set<Promise<unknown>>();
  const claimed: ClaimAnswer[] = [];
  let tasks = 0;

  /** A store whose disk was made to fail refuses with its code; anything else is a surprise. */
  function track(work: Promise<unknown>): void {
    const tracked = work
      .catch((error: unknown) => {
        const surprise = inflicted.rejection(error, world.store);
        if (surprise !== undefined) failed(surprise);
      })
      .finally(() => underWay.delete(tracked));
    underWay.add(tracked);
  }

  const next = () => {
    tasks += 1;
    return `task-${tasks}`;
  };

  async function detached(): Promise<void> {
    const entry = world.service.claims.authenticateDetached("svc", "token");
    if (!entry.ok) return failed(entry.refusal.code);
    const answer = await entry.value.claim({
      ...claimBody(world, { taskKey: next() }),
      route: random.pick(ROUTE_NAMES),
    });
    if (answer.ok) claimed.push(answer.value);
  }

  async function turn(): Promise<void> {
    const originRunId = `run-of-${next()}`;
    const claims = world.run({ originRunId });
    const answers = await Promise.all(
      Array.from({ length: 1 + random.below(3) }, () =>
        tryClaim(world, tokenOf(claims), { taskKey: next() }),
      ),
    );
    for (const answer of answers) if (answer.ok) claimed.push(answer.value);
    if (random.chance(0.3)) await idle(random.below(3));
    await claims.release();
    if (random.chance(0.15)) return claims.abandon();
    const bound = await claims.finalize(snapshotOf(originRunId, clock.now()));
    // A turn that never ends leaves its claims pending.
    if (!bound.ok || random.chance(0.1)) return;
    await claims.activate(bound.value.snapshotDigest);
  }

  async function submit(answer: ClaimAnswer): Promise<void> {
    const code = await world.submit(answer, {
      summary: "done",
      filler: "f".repeat(random.pick([0, 200, 4_000])),
    });
    if (code === "result_received") events.push({ kind: "accepted", id: answer.continuationId });
  }

  const actions: readonly [() => void, ...(() => void)[]] = [
    () => track(detached()),
    () => track(detached()),
    () => track(turn()),
    () => track(turn()),
    ...Array.from({ length: 5 }, () => () => {
      const answer = claimed[random.below(claimed.length)];
      if (answer !== undefined) track(submit(answer));
    }),
    () => {
      const answer = claimed[random.below(claimed.length)];
      if (answer !== undefined) track(world.service.operator.cancel(answer.continuationId));
    },
    () => {
      const unknown = world.store.durable.inStates(["delivery_unknown"])[0];
      const resolution = random.pick([{ kind: "delivered" }, { kind: "dead_lettered" }] as const);
      if (unknown !== undefined) track(world.service.operator.resolve(unknown.continuationId, resolution));
    },
    () => clock.advance(random.pick([10, 1_500, 70_000])),
  ];
  for (let left = 25 + random.below(30); left > 0; left -= 1) {
    random.pick(actions)();
    const pace = random.below(4);
    if (pace < 2) for (let turns = random.below(20); turns > 0; turns -= 1) await Promise.resolve();
    if (pace === 2) await idle(1);
  }
  while (underWay.size > 0) {
    await Promise.all(underWay);
    await idle(2);
  }
}
