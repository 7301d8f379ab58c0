import { describe, expect, test } from "bun:test";
import type { ContinuationRecord } from "../../src/core/record.ts";
import { createWorld, idle, type World } from "../support/continuation-world.ts";

/** How much runs at a time, and for how long: model and channel are given up, and never hold others or the stop. */

const MINUTE_MS = 60_000;

async function started(count: number, limits: Record<string, number> = {}) {
  const world = await createWorld({ limits });
  await world.service.startWorker();
  const ids: string[] = [];
  return {
    world,
    ids,
    async submitAll() {
      for (let index = 0; index < count; index += 1) {
        const answer = await world.claimed(`task-${index}`);
        ids.push(answer.continuationId);
        await world.submit(answer);
      }
      await idle(30);
    },
  };
}

const statesOf = (world: World, ids: readonly string[]) => ids.map((id) => world.record(id).state);

describe("no more than maxConcurrent run at a time, and each that ends makes room for the oldest", () => {
  test("model calls", async () => {
    const { world, ids, submitAll } = await started(10, { maxConcurrent: 3 });
    const ends: (() => void)[] = [];
    world.script.synthesize = () => new Promise((resolve) => ends.push(() => resolve("the answer")));
    await submitAll();
    expect(ends.length).toBe(3);
    for (let ended = 0; ended < 10; ended += 1) {
      ends[ended]?.();
      await idle(30);
      expect(ends.length).toBe(Math.min(10, ended + 4));
    }
    expect(world.syntheses.map((request) => request.continuationId).slice(0, 3)).toEqual(ids.slice(0, 3));
    expect(new Set(statesOf(world, ids))).toEqual(new Set(["delivered"]));
  });

  test("posts", async () => {
    const { world, submitAll } = await started(10, { maxConcurrent: 3 });
    world.script.deliver = () => new Promise(() => {});
    await submitAll();
    expect(world.posts.length).toBe(3);
  });
});

test("one hung channel holds neither the other continuations nor the stop", async () => {
  const { world, ids, submitAll } = await started(30, { maxConcurrent: 4 });
  world.script.deliver = async ({ deliveryKey }) =>
    deliveryKey === `continuation:${ids[0]}`
      ? new Promise(() => {})
      : { kind: "delivered", parts: [{ id: "p" }] };
  await submitAll();
  await idle(60);
  const [first, ...others] = statesOf(world, ids);
  expect(first).toBe("ready_to_deliver");
  expect(new Set(others)).toEqual(new Set(["delivered"]));
  let stopped = false;
  const stopping = world.service.stop().then(() => {
    stopped = true;
  });
  world.clock.advance(9_999);
  await idle();
  expect(stopped).toBe(false);
  world.clock.advance(1);
  await stopping;
  expect(world.posts[0]?.signal.aborted).toBe(true);
});

describe("a call that takes too long is told so, given up for good, and what comes of it later changes nothing", () => {
  async function after(minutes: number, answer: (world: World, late: Promise<void>) => void) {
    const { world, ids, submitAll } = await started(1);
    const late = Promise.withResolvers<void>();
    answer(world, late.promise);
    await submitAll();
    const signal = () => world.posts[0]?.signal ?? world.syntheses[0]?.signal;
    world.clock.advance(minutes * MINUTE_MS - 1);
    await idle();
    expect(signal()?.aborted).toBe(false);
    world.clock.advance(1);
    await idle();
    expect(signal()?.aborted).toBe(true);
    const [id = ""] = ids;
    const given: ContinuationRecord = world.record(id);
    late.resolve();
    await idle();
    expect(world.record(id)).toEqual(given);
    return { record: given, world };
  }

  test("a synthesis after 10 minutes, and no second one follows", async () => {
    const { record, world } = await after(10, (it, late) => {
      it.script.synthesize = () => late.then(() => "too late");
    });
    expect(record).toMatchObject({
      state: "dead_lettered",
      lastError: { code: "synthesis_timeout_outcome_unknown" },
    });
    const retried = await world.service.operator.retry(record.continuationId, { allowUnknown: true });
    expect(retried.ok || retried.refusal.code).toBe("synthesis_not_retryable");
    expect(world.syntheses.length).toBe(1);
  });

  test("a post after 2 minutes, and no second one follows", async () => {
    const { record, world } = await after(2, (it, late) => {
      it.script.deliver = () => late.then(() => ({ kind: "delivered", parts: [{ id: "p" }] }));
    });
    expect(record).toMatchObject({
      state: "delivery_unknown",
      lastError: { code: "delivery_timeout_outcome_unknown" },
    });
    world.clock.advance(30 * MINUTE_MS);
    await idle();
    expect(world.posts.length).toBe(1);
  });

  test("history after 30 seconds: the post counts, its history does not", async () => {
    const { world, ids, submitAll } = await started(1);
    world.script.record = () => new Promise(() => {});
    await submitAll();
    world.clock.advance(30_000);
    await idle();
    expect(world.record(ids[0] ?? "")).toMatchObject({
      state: "delivered",
      receipt: { historyRecorded: false, historyErrorCode: "history_record_timeout" },
    });
    expect(world.posts.length).toBe(1);
  });
});

test("a synthesis whose deadline comes before its time-out ends with the deadline", async () => {
  const world = await createWorld();
  await world.service.startWorker();
  world.script.synthesize = () => new Promise(() => {});
  const answer = await world.claimed();
  world.clock.advance(55 * MINUTE_MS);
  await world.submit(answer);
  await idle();
  world.clock.advance(5 * MINUTE_MS);
  await idle();
  expect(world.record(answer.continuationId)).toMatchObject({
    state: "expired",
    lastError: { code: "deadline_expired" },
  });
  expect(world.syntheses[0]?.signal.aborted).toBe(true);
});
