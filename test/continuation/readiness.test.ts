import { expect, test } from "bun:test";
import { createWorld, idle, type World } from "../support/continuation-world.ts";

/** A host that can't ask its model now puts the synthesis off, at no attempt and no oftener than the back-off. */

async function waiting(ready: World["script"]["ready"]) {
  const world = await createWorld();
  let asked = 0;
  world.script.ready = () => {
    asked += 1;
    return ready();
  };
  await world.service.startWorker();
  const answer = await world.claimed();
  await world.submit(answer);
  await idle();
  return { world, id: answer.continuationId, asked: () => asked };
}

test("a model that is not ready defers with its own code, and costs no attempt", async () => {
  const { world, id } = await waiting(() => ({ code: "queue_full" }));
  expect(world.record(id)).toMatchObject({
    state: "result_received",
    synthesisAttempts: 0,
    synthesisDeferrals: 1,
    lastError: { code: "queue_full" },
  });
  const shown = world.service.operator.show(id);
  expect(shown.ok && shown.value.waitsFor).toContain("queue_full to pass");
  expect(world.syntheses.length).toBe(0);
});

test("it is asked again after 1 s doubling to 5 min, writes no oftener, and then works", async () => {
  const { world, id, asked } = await waiting(() => ({ code: "queue_full" }));
  let writes = 0;
  world.store.onDurable(() => {
    writes += 1;
  });
  for (let second = 0; second < 1_000; second += 1) {
    world.clock.advance(1_000);
    await idle(3);
  }
  // 1, 3, 7, 15, 31, 63, 127, 255, 511, then 300 s apart: 811.
  expect([asked(), writes, world.record(id).synthesisDeferrals]).toEqual([11, 10, 11]);
  world.script.ready = () => true;
  for (let second = 0; second < 300; second += 1) {
    world.clock.advance(1_000);
    await idle(3);
  }
  expect(world.record(id)).toMatchObject({ state: "delivered", synthesisAttempts: 1 });
  expect(world.syntheses.length).toBe(1);
});

test("an answer that can't be read, or a throw, is not ready", async () => {
  const fails = () => {
    throw new Error("boom");
  };
  for (const ready of [fails, () => undefined, () => false, () => ({}), () => ({ code: "" })]) {
    const { world, id } = await waiting(ready as World["script"]["ready"]);
    expect(world.record(id)).toMatchObject({
      state: "result_received",
      lastError: { code: "synthesis_preflight_failed" },
    });
    expect(world.syntheses.length).toBe(0);
  }
});

test("what needs no model is not put off, and a post is not either", async () => {
  const { world, id } = await waiting(() => true);
  expect(world.record(id).state).toBe("delivered");
  world.script.ready = () => ({ code: "queue_full" });
  const claims = world.run({ originRunId: "run-2" });
  const ticket = world.service.claims.authenticate(claims.capabilities.get("work-control")?.token ?? "");
  if (!ticket.ok) throw new Error(ticket.refusal.code);
  const deadline = new Date(world.clock.now() + 3_600_000).toISOString();
  const claimed = await ticket.value.claim({ taskKey: "t", taskHash: "h", deadline });
  if (!claimed.ok) throw new Error(claimed.refusal.code);
  await claims.release();
  await claims.abandon();
  await world.submit(claimed.value);
  await idle();
  expect(world.record(claimed.value.continuationId)).toMatchObject({
    state: "delivered",
    completionKind: "origin_context_unavailable",
  });
});
