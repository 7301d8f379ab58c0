import { expect, test } from "bun:test";
import { createWorld, idle } from "../support/continuation-world.ts";
import { createFakeClock, type FakeClock } from "../support/fake-clock.ts";

test("a job that changed nothing does not make the worker spin while every slot is taken", async () => {
  const inner = createFakeClock();
  let fired = 0;
  const clock: FakeClock = {
    ...inner,
    timer: (delayMs, fire) =>
      inner.timer(delayMs, () => {
        fired += 1;
        fire();
      }),
  };
  const world = await createWorld({ clock, limits: { maxConcurrent: 1 } });
  const supports = world.script.supports;
  await world.service.startWorker();
  const [throws, hangs] = [await world.claimed("throws"), await world.claimed("hangs")];
  world.script.supports = () => {
    throw new Error("not now");
  };
  await world.submit(throws);
  await idle();
  // The next one waits in the model and keeps the only slot; then the time of the first one comes and goes.
  world.script.supports = supports;
  world.script.synthesize = () => new Promise(() => {});
  await world.submit(hangs);
  await idle();
  expect(world.syntheses.length).toBe(1);
  fired = 0;
  for (let ms = 0; ms < 5_000; ms += 1) {
    clock.advance(1);
    await idle(2);
  }
  expect(fired).toBeLessThan(10);
});
