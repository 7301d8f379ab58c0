import { describe, expect, test } from "bun:test";
import { claimThrough, createWorld, idle, tokenOf, type World } from "../support/continuation-world.ts";

/** A channel that becomes ready says so: what waits for it goes on at once, and nothing is written for nothing. */

const NOT_RUNNING = () => "not_running" as const;
const SUPPORTED = () => "supported" as const;

/** Deferred so often that its back-off is the longest. */
async function deferred(world: World, taskKey = "task"): Promise<string> {
  world.script.supports = NOT_RUNNING;
  await world.service.startWorker();
  const answer = await world.claimed(taskKey);
  await world.submit(answer);
  await idle();
  await wait(world, 600);
  return answer.continuationId;
}

async function wait(world: World, seconds: number) {
  for (let second = 0; second < seconds; second += 1) {
    world.clock.advance(1_000);
    await idle(3);
  }
}

/** How often the store commits while `work` runs. */
async function writes(world: World, work: () => Promise<void>): Promise<number> {
  let count = 0;
  const unsubscribe = world.store.onDurable(() => {
    count += 1;
  });
  await work();
  unsubscribe();
  return count;
}

describe("when a channel says that it is ready", () => {
  test("what waits for it is synthesized and posted at once, at one attempt each", async () => {
    const world = await createWorld();
    const id = await deferred(world);
    const before = world.record(id);
    expect([before.state, before.synthesisDeferrals]).toEqual(["result_received", 10]);
    world.script.supports = SUPPORTED;
    world.announce();
    await idle();
    expect(world.record(id)).toMatchObject({
      state: "delivered",
      synthesisAttempts: 1,
      deliveryAttempts: 1,
      synthesisDeferrals: 10,
    });
  });

  test("a text that waits for its post goes out at once, and the model is not asked again", async () => {
    const world = await createWorld();
    world.script.synthesize = async () => {
      world.script.supports = NOT_RUNNING;
      return "the answer";
    };
    await world.service.startWorker();
    const answer = await world.claimed();
    await world.submit(answer);
    await idle();
    await wait(world, 30);
    expect(world.record(answer.continuationId)).toMatchObject({
      state: "ready_to_deliver",
      deliveryAttempts: 0,
    });
    world.script.supports = SUPPORTED;
    world.announce();
    await idle();
    expect(world.record(answer.continuationId).state).toBe("delivered");
    expect([world.syntheses.length, world.posts.length]).toEqual([1, 1]);
  });

  test("but is not, nothing is written and the back-off stands", async () => {
    const world = await createWorld();
    const id = await deferred(world);
    const before = world.record(id);
    const count = await writes(world, async () => {
      for (let time = 0; time < 1_000; time += 1) {
        world.announce();
        await idle(1);
      }
    });
    expect(count).toBe(0);
    expect(world.record(id)).toBe(before);
  });

  test("what a busy channel asked to be tried later is still tried later", async () => {
    const world = await createWorld();
    world.script.deliver = async () => ({
      kind: "retryable",
      code: "busy",
      reason: "?",
      retryAfterMs: 60_000,
    });
    await world.service.startWorker();
    const answer = await world.claimed();
    await world.submit(answer);
    await idle();
    world.announce();
    await idle();
    expect([world.record(answer.continuationId).state, world.posts.length]).toEqual(["delivery_retry", 1]);
    // Put off after the failed post, it waits for the channel alone.
    world.script.supports = NOT_RUNNING;
    await wait(world, 61);
    expect(world.record(answer.continuationId).lastError?.code).toBe("destination_channel_unavailable");
    world.script.supports = SUPPORTED;
    world.announce();
    await idle();
    expect(world.posts.length).toBe(2);
  });

  test("while the deferral of the last look is being written, what waits goes on all the same", async () => {
    const world = await createWorld();
    await world.service.startWorker();
    const answer = await world.claimed();
    world.script.supports = () => {
      queueMicrotask(() => {
        world.script.supports = SUPPORTED;
        world.announce();
      });
      return "not_running";
    };
    await world.submit(answer);
    await idle();
    expect(world.record(answer.continuationId)).toMatchObject({ state: "delivered", synthesisDeferrals: 1 });
  });

  test("a result whose origin turn has not committed still waits for it", async () => {
    const world = await createWorld();
    await world.service.startWorker();
    const claims = world.run();
    const answer = await claimThrough(world, tokenOf(claims));
    await world.submit(answer);
    await idle();
    const before = world.record(answer.continuationId);
    expect(before.lastError?.code).toBe("origin_context_pending");
    expect(
      await writes(world, async () => {
        world.announce();
        await idle();
      }),
    ).toBe(0);
    expect(world.record(answer.continuationId)).toBe(before);
  });

  test("the oldest goes first when the slots are few, and what is due takes its place among them", async () => {
    const world = await createWorld({ limits: { maxConcurrent: 1 } });
    const first = await deferred(world, "first");
    const second = await world.claimed("second");
    await world.submit(second);
    await idle();
    // One takes the only slot, then another becomes due.
    let end = (_text: string) => {};
    world.script.supports = SUPPORTED;
    world.script.synthesize = () =>
      new Promise((resolve) => {
        end = resolve;
      });
    const order: string[] = [];
    for (const taskKey of ["hangs", "due"]) {
      const answer = await world.claimed(taskKey);
      await world.submit(answer);
      await idle();
      order.push(answer.continuationId);
      world.clock.advance(100);
    }
    expect(world.syntheses.map((request) => request.continuationId)).toEqual(order.slice(0, 1));
    world.announce();
    await idle();
    world.script.synthesize = async () => "the answer";
    end("the answer");
    await idle(80);
    const [hung, due] = order;
    expect(world.syntheses.map((request) => request.continuationId)).toEqual(
      [hung, first, second.continuationId, due].map((id) => id ?? ""),
    );
    expect(world.posts.length).toBe(4);
  });

  test("a host that drives time itself finds it with its next processDue", async () => {
    const world = await createWorld();
    world.script.supports = NOT_RUNNING;
    const answer = await world.claimed();
    await world.submit(answer);
    expect(await world.service.processDue(10)).toBe(1);
    expect(await world.service.processDue(10)).toBe(0);
    world.script.supports = SUPPORTED;
    world.announce();
    expect(await world.service.processDue(10)).toBe(1);
  });

  test("after the stop nothing begins", async () => {
    const world = await createWorld();
    await deferred(world);
    await world.service.stop();
    world.script.supports = SUPPORTED;
    world.announce();
    await idle();
    expect(world.syntheses.length).toBe(0);
  });
});

test("a host that says itself that its model is ready is believed", async () => {
  const world = await createWorld();
  world.script.ready = () => ({ code: "queue_full" });
  await world.service.startWorker();
  const answer = await world.claimed();
  await world.submit(answer);
  await idle();
  await wait(world, 30);
  const count = await writes(world, async () => {
    world.service.announceReady();
    await idle();
  });
  expect([count, world.syntheses.length]).toEqual([0, 0]);
  world.script.ready = () => true;
  world.service.announceReady();
  await idle();
  expect(world.record(answer.continuationId).state).toBe("delivered");
});

test("a channel that comes up before the worker starts ends the back-off of the last process", async () => {
  const world = await createWorld();
  const id = await deferred(world);
  await world.service.stop();
  await world.store.close();
  const after = await world.restart();
  const quiet = await writes(after, async () => {
    await after.service.startWorker();
    await idle();
  });
  expect([quiet, after.record(id).state]).toEqual([0, "result_received"]);
  await after.service.stop();
  await after.store.close();
  const last = await world.restart();
  last.announce();
  await last.service.startWorker();
  await idle();
  expect(last.record(id)).toMatchObject({ state: "delivered", synthesisDeferrals: 10 });
});
