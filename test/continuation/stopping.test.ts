import { describe, expect, test } from "bun:test";
import { createMemoryFileSystem, type MemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import {
  claimBody,
  createWorld,
  idle,
  snapshotOf,
  tokenOf,
  tryClaim,
  type World,
  type WorldOptions,
} from "../support/continuation-world.ts";
import { createGate } from "../support/harness-fakes.ts";
import { held } from "./settlement-rig.ts";

/** What still happens between the begin of the stop and its end, and what does not. */

const STOP_TIMEOUT_MS = 10_000;
const STOPPING = { ok: false, refusal: { code: "service_stopping" } };

/** A world whose stop has begun and waits for a synthesis until `end` is called. */
async function stopping(options: WorldOptions = {}) {
  const world = await createWorld(options);
  const busy = await world.claimed("busy");
  await world.submit(busy);
  const gate = createGate();
  world.script.synthesize = () => gate.opened.then(() => "late");
  await world.service.startWorker();
  await idle();
  const run = world.run({ originRunId: "run-2" });
  return {
    world,
    run,
    stop() {
      const stopped = world.service.stop();
      return async () => {
        gate.open();
        await stopped;
      };
    },
  };
}

describe("a claim that comes while the stop drains is refused, and leaves no record", () => {
  const records = (world: World) => world.store.durable.page(10).records.length;

  test("of a run that is under way", async () => {
    const { world, run, stop } = await stopping();
    const end = stop();
    expect(await tryClaim(world, tokenOf(run))).toMatchObject(STOPPING);
    expect(records(world)).toBe(1);
    await end();
  });

  test("of a detached service", async () => {
    const { world, stop } = await stopping({
      routes: { r: { mode: "silent" } },
      services: { ops: "0123456789abcdef" },
    });
    const end = stop();
    const desk = world.service.claims.authenticateDetached("ops", "0123456789abcdef");
    if (!desk.ok) throw new Error(desk.refusal.code);
    expect(await desk.value.claim({ ...claimBody(world), route: "r" })).toMatchObject(STOPPING);
    expect(records(world)).toBe(1);
    await end();
  });

  test("also one that repeats an earlier one", async () => {
    const { world, run, stop } = await stopping();
    const body = claimBody(world);
    expect(await tryClaim(world, tokenOf(run), body)).toMatchObject({ ok: true });
    const end = stop();
    expect(await tryClaim(world, tokenOf(run), body)).toMatchObject(STOPPING);
    await end();
  });
});

describe("what was counted as begun, but is on the disk only after the stop's patience", () => {
  /** The next due one is begun; its commit hangs until the stop has given up waiting. */
  async function begunTooLate(world: World, fs: MemoryFileSystem) {
    const gate = held(fs, "transaction.sync");
    const working = world.service.processDue(1);
    await gate.reached;
    const stopped = world.service.stop();
    world.clock.advance(STOP_TIMEOUT_MS);
    gate.open();
    await Promise.all([working, stopped]);
  }

  test("asks no model", async () => {
    const fs = createMemoryFileSystem();
    const world = await createWorld({ fs });
    const answer = await world.claimed();
    await world.submit(answer);
    await begunTooLate(world, fs);
    expect(world.record(answer.continuationId).state).toBe("synthesizing");
    expect(world.syntheses).toEqual([]);
  });

  test("posts nothing", async () => {
    const fs = createMemoryFileSystem();
    const world = await createWorld({ fs });
    const answer = await world.claimed();
    await world.submit(answer);
    await world.service.processDue(1);
    await begunTooLate(world, fs);
    expect(world.record(answer.continuationId).deliveryStartedAt).toBeDefined();
    expect(world.posts).toEqual([]);
  });
});

test("a turn that ends after the stop is told that its claims were not bound", async () => {
  const world = await createWorld();
  const run = world.run();
  expect(await tryClaim(world, tokenOf(run))).toMatchObject({ ok: true });
  await run.release();
  await world.service.stop();
  expect(await run.finalize(snapshotOf("run-1", world.clock.now()))).toMatchObject(STOPPING);
});

test("a service that has stopped does not listen to its channels any more", async () => {
  const world = await createWorld();
  expect(world.announce()).toBe(1);
  await world.service.stop();
  expect(world.announce()).toBe(0);
});

test("a resolution that the stop interrupts decides nothing, and says so", async () => {
  const world = await createWorld();
  const { continuationId, ...answer } = await world.claimed();
  await world.submit({ ...answer, continuationId });
  world.script.deliver = async () => ({ kind: "unknown", code: "x", reason: "y" });
  await world.settle();
  world.script.record = () => new Promise(() => {});
  const resolving = world.service.operator.resolve(continuationId, { kind: "delivered" });
  await idle();
  await world.service.stop();
  expect(await resolving).toMatchObject(STOPPING);
  expect(world.record(continuationId).state).toBe("delivery_unknown");
});
