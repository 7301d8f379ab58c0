import { describe, expect, test } from "bun:test";
import { createLedger } from "../../src/continuation/ledger.ts";
import { createWorker } from "../../src/continuation/worker.ts";
import { createWorld } from "../support/continuation-world.ts";
import { silentLogger } from "../support/silent-logger.ts";

/** What was announced may have moved on before there is a hand for it. */

/** A record that was put off for its channel, and a worker that only notes what it would work on. */
async function announced() {
  const world = await createWorld();
  const answer = await world.claimed();
  await world.submit(answer);
  world.script.supports = () => "not_running";
  await world.settle();
  const id = answer.continuationId;
  expect(world.record(id)).toMatchObject({ synthesisDeferrals: 1, state: "result_received" });
  const begun: string[] = [];
  const worker = createWorker({
    store: world.store,
    ledger: createLedger(world.store, world.clock, silentLogger),
    hold: {
      has: () => false,
      ids: () => [],
      size: 0,
      release: async () => {},
      onRelease() {},
      async stop() {},
    },
    decider: { has: () => false, size: 0, onEnd() {} },
    clock: world.clock,
    logger: silentLogger,
    maxConcurrent: 10,
    isReady: () => true,
    async process({ continuationId }) {
      begun.push(continuationId);
    },
  });
  worker.announceReady();
  return { world, worker, id, begun };
}

describe("what was put off and announced", () => {
  test("is begun before its back-off has passed", async () => {
    const { worker, id, begun } = await announced();
    await worker.processDue(10);
    expect(begun).toEqual([id]);
  });

  test("is begun once when its back-off has passed meanwhile", async () => {
    const { world, worker, id, begun } = await announced();
    world.clock.advance(1_000);
    await worker.processDue(10);
    expect(begun).toEqual([id]);
  });

  test("is not begun when it was cancelled meanwhile", async () => {
    const { world, worker, id, begun } = await announced();
    await world.service.operator.cancel(id);
    await worker.processDue(10);
    expect(begun).toEqual([]);
  });
});
