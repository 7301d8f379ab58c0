import { expect, test } from "bun:test";
import { createLedger } from "../../src/continuation/ledger.ts";
import { createWorker } from "../../src/continuation/worker.ts";
import { createWorld, idle } from "../support/continuation-world.ts";
import { createFakeClock, type FakeClock } from "../support/fake-clock.ts";
import { silentLogger } from "../support/silent-logger.ts";

test("a job that changed nothing does not make the worker spin while every slot is taken", async () => {
  const clock = createFakeClock();
  let fired = 0;
  const counting: FakeClock = {
    ...clock,
    timer: (delayMs, fire) =>
      clock.timer(delayMs, () => {
        fired += 1;
        fire();
      }),
  };
  const world = await createWorld({ clock });
  const [throws, hangs] = [await world.claimed("throws"), await world.claimed("hangs")];
  const begun: string[] = [];
  const worker = createWorker({
    store: world.store,
    ledger: createLedger(world.store, clock, silentLogger),
    hold: {
      has: () => false,
      ids: () => [],
      size: 0,
      release: async () => {},
      onRelease() {},
      async stop() {},
    },
    decider: { has: () => false, size: 0, onEnd() {} },
    clock: counting,
    logger: silentLogger,
    maxConcurrent: 1,
    isReady: () => true,
    process({ continuationId }) {
      begun.push(continuationId);
      return continuationId === throws.continuationId
        ? Promise.reject(new Error("not now"))
        : new Promise(() => {});
    },
  });
  worker.start();
  await world.submit(throws);
  await idle();
  // The next one keeps the only slot; then the time of the first one comes and goes.
  await world.submit(hangs);
  await idle();
  expect(begun).toEqual([throws.continuationId, hangs.continuationId]);
  fired = 0;
  for (let ms = 0; ms < 5_000; ms += 1) {
    clock.advance(1);
    await idle(2);
  }
  expect(fired).toBeLessThan(10);
  expect(begun.length).toBe(2);
});
