import { describe, expect, test } from "bun:test";
import { claimBody, createWorld, idle, type World } from "../support/continuation-world.ts";
import { createFakeClock, type FakeClock } from "../support/fake-clock.ts";

/** The worker keeps to the wall time, also when it jumps: after the sleep of a laptop, or when somebody sets the clock. */

const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;

/** A clock whose wall time can jump while its timers count on, as after a laptop's sleep or a set clock. */
function jumping(): { clock: FakeClock; jump(ms: number): void } {
  const inner = createFakeClock();
  let offset = 0;
  return {
    clock: { ...inner, now: () => inner.now() + offset },
    jump(ms) {
      offset += ms;
    },
  };
}

/** Time goes on by single steps, with the work between them. */
async function pass(clock: FakeClock, ms: number, stepMs: number): Promise<void> {
  for (let passed = 0; passed < ms; passed += stepMs) {
    clock.advance(stepMs);
    await idle(3);
  }
}

describe("after the wall time jumped forward", () => {
  test("a deadline that passed is seen within a minute", async () => {
    const { clock, jump } = jumping();
    const world = await createWorld({ clock });
    await world.service.startWorker();
    const answer = await world.claimed();
    await idle();
    jump(2 * HOUR_MS);
    await pass(clock, MINUTE_MS, 1_000);
    expect(world.record(answer.continuationId).state).toBe("expired");
  });

  test("a post that was put off for an hour is tried again within a minute", async () => {
    const { clock, jump } = jumping();
    const world = await createWorld({ clock, routes: { alert: ALERT }, services: { svc: "token" } });
    await world.service.startWorker();
    world.script.deliver = async () => ({
      kind: "retryable",
      code: "later",
      reason: "later",
      retryAfterMs: HOUR_MS,
    });
    await detached(world, 10 * HOUR_MS);
    await idle();
    expect(world.posts.length).toBe(1);
    jump(HOUR_MS);
    await pass(clock, MINUTE_MS, 1_000);
    expect(world.posts.length).toBe(2);
  });
});

for (const mode of ["capture", "notify_if_actionable"] as const) {
  test(`a text that the model gives after the deadline is too late: ${mode}`, async () => {
    const { clock, jump } = jumping();
    const world = await createWorld({
      clock,
      routes: { alert: { mode, conversationId: "test:alert" } },
      services: { svc: "token" },
    });
    await world.service.startWorker();
    const answered = Promise.withResolvers<string>();
    world.script.synthesize = () => answered.promise;
    const id = await detached(world, HOUR_MS);
    await idle();
    expect(world.record(id).state).toBe("synthesizing");
    jump(HOUR_MS);
    answered.resolve("too late");
    await idle();
    expect(world.record(id)).toMatchObject({ state: "expired", lastError: { code: "deadline_expired" } });
    expect([world.record(id).synthesizedText, world.posts.length]).toEqual([undefined, 0]);
  });
}

test("after the wall time was set back, what is due by it is worked on when its time comes again", async () => {
  const { clock, jump } = jumping();
  const world = await createWorld({
    clock,
    routes: { alert: ALERT },
    services: { svc: "token" },
    limits: { maxConcurrent: 1 },
  });
  await world.service.startWorker();
  // One keeps the only slot, another becomes due meanwhile, and then the clock is set back.
  const hanging = Promise.withResolvers<string>();
  world.script.synthesize = () => hanging.promise;
  await detached(world, 10 * HOUR_MS, "hangs");
  await idle();
  world.script.synthesize = async () => "the answer";
  const id = await detached(world, 10 * HOUR_MS, "waits");
  await idle();
  expect(world.store.durable.dueCount(clock.now())).toBe(1);
  jump(-HOUR_MS);
  expect(world.store.durable.dueCount(clock.now())).toBe(0);
  hanging.resolve("the answer");
  await idle();
  // `hangs` is due by its own new time; `waits` was due an hour from now.
  expect(world.record(id).state).toBe("result_received");
  await pass(clock, HOUR_MS + 2 * MINUTE_MS, MINUTE_MS / 2);
  expect(world.record(id).state).toBe("delivered");
});

test("a clock that is set back while many deadlines are dealt with does not hold the host up", async () => {
  const { clock, jump } = jumping();
  const world = await createWorld({
    clock,
    routes: { alert: ALERT },
    services: { svc: "token" },
    limits: { maxActivePerOrigin: 1_000, maxActiveRecords: 1_000 },
  });
  // More than one batch of them, so that the clock is set back between two.
  for (let index = 0; index < 300; index += 1) await detached(world, HOUR_MS, `task-${index}`);
  jump(2 * HOUR_MS);
  let changes = 0;
  world.store.onDurable(() => {
    changes += 1;
    if (changes === 1) jump(-2 * HOUR_MS);
  });
  await world.service.processDue(1);
  expect(changes).toBeGreaterThan(0);
  jump(2 * HOUR_MS);
  await world.service.processDue(1);
  expect(world.store.durable.counts().expired).toBe(300);
});

const ALERT = { mode: "notify_if_actionable" as const, conversationId: "test:alert" };

async function detached(world: World, deadlineMs: number, taskKey = "task"): Promise<string> {
  const service = world.service.claims.authenticateDetached("svc", "token");
  if (!service.ok) throw new Error(service.refusal.code);
  const deadline = new Date(world.clock.now() + deadlineMs).toISOString();
  const claimed = await service.value.claim({ ...claimBody(world, { taskKey, deadline }), route: "alert" });
  if (!claimed.ok) throw new Error(claimed.refusal.code);
  await world.submit(claimed.value);
  return claimed.value.continuationId;
}
