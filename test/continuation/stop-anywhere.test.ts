import { describe, expect, test } from "bun:test";
import {
  claimThrough,
  commitRun,
  createWorld,
  idle,
  tokenOf,
  type World,
} from "../support/continuation-world.ts";
import { createFakeClock } from "../support/fake-clock.ts";

/** An orderly stop, or an operator's decision, at every moment of a continuation's life. */

const START_MS = createFakeClock().now();
const MINUTE_MS = 60_000;

/** From the claim to the answer, as harness and service drive it; each step may find the host stopping. */
async function live(world: World, deadlineMs = 3_600_000): Promise<string | undefined> {
  await world.service.startWorker();
  const claims = world.run();
  const deadline = new Date(START_MS + deadlineMs).toISOString();
  const claimed = await claimThrough(world, tokenOf(claims), { deadline }).catch(() => undefined);
  await claims.release();
  if (claims.hasActiveClaims()) await commitRun(world, claims, "run-1").catch(() => {});
  if (claimed === undefined) return undefined;
  await world.submit(claimed);
  await idle(30);
  return claimed.continuationId;
}

/** Calls back at the n-th durable change. Resolves with how many there were. */
function atChange(world: World, n: number, act: () => void): () => number {
  let count = 0;
  world.store.onDurable(() => {
    count += 1;
    if (count === n) act();
  });
  return () => count;
}

/** The same with `turns` microtasks between the change and the act, so that it meets jobs half-way. */
const LATER = [0, 1, 2, 3, 5, 8];
const CHANGES = 8;

function soon(turns: number, act: () => void): void {
  if (turns === 0) act();
  else queueMicrotask(() => soon(turns - 1, act));
}

test("a life makes as many durable changes as are met below", async () => {
  const world = await createWorld();
  const count = atChange(world, 0, () => {});
  const id = await live(world);
  expect(world.record(id ?? "").state).toBe("delivered");
  expect(count()).toBe(CHANGES);
});

describe("a stop while all answer: the next process ends what is left, with one model call and one post in all", () => {
  for (let change = 1; change <= CHANGES; change += 1) {
    for (const turns of LATER) {
      test(`at change ${change}, ${turns} microtasks later`, async () => {
        const world = await createWorld();
        let stopped: Promise<void> | undefined;
        atChange(world, change, () =>
          soon(turns, () => {
            stopped = world.service.stop();
          }),
        );
        await live(world);
        await (stopped ?? world.service.stop());
        await world.store.close();
        const after = await world.restart();
        const id = await live(after);
        after.clock.advance(301_000);
        await idle(30);
        expect(after.record(id ?? "")).toMatchObject({ state: "delivered", completionKind: "synthesized" });
        expect([
          world.syntheses.length + after.syntheses.length,
          world.posts.length + after.posts.length,
          world.history.length + after.history.length,
        ]).toEqual([1, 1, 1]);
      });
    }
  }
});

describe("a cancel is either done, and nothing comes of it any more, or refused, and the answer comes", () => {
  for (let change = 1; change <= CHANGES; change += 1) {
    for (const turns of LATER) {
      test(`at change ${change}, ${turns} microtasks later`, async () => {
        const world = await createWorld();
        let said: Awaited<ReturnType<World["service"]["operator"]["cancel"]>> | undefined;
        let postsThen = 0;
        atChange(world, change, () =>
          soon(turns, () => {
            const [record] = world.store.durable.page(1).records;
            void world.service.operator.cancel(record?.continuationId ?? "").then((result) => {
              said = result;
              postsThen = world.posts.length;
            });
          }),
        );
        const id = (await live(world)) ?? "";
        world.clock.advance(301_000);
        await idle(30);
        const { state } = world.record(id);
        if (said?.ok) {
          expect(state).toBe("cancelled");
          expect([postsThen, world.posts.length, world.history.length]).toEqual([0, 0, 0]);
        } else {
          expect(["continuation_in_flight", "already_terminal"]).toContain(said?.refusal.code ?? "nothing");
          expect([state, world.posts.length, world.syntheses.length]).toEqual(["delivered", 1, 1]);
        }
      });
    }
  }
});

describe("a deadline that passes ends it before its post, or the post counts", () => {
  for (let change = 1; change <= CHANGES; change += 1) {
    for (const turns of LATER) {
      test(`at change ${change}, ${turns} microtasks later`, async () => {
        const world = await createWorld();
        atChange(world, change, () => soon(turns, () => world.clock.advance(MINUTE_MS)));
        await live(world, MINUTE_MS);
        world.clock.advance(MINUTE_MS);
        await idle(30);
        const [record] = world.store.durable.page(1).records;
        const posted = world.posts.length;
        expect([record?.state, posted]).toEqual(posted === 0 ? ["expired", 0] : ["delivered", 1]);
        expect(world.syntheses.length).toBeLessThanOrEqual(1);
      });
    }
  }
});

describe("a retry while it is worked on is refused, or is one more attempt of the same text", () => {
  for (let change = 1; change <= CHANGES + 4; change += 1) {
    for (const turns of LATER) {
      test(`at change ${change}, ${turns} microtasks later`, async () => {
        const world = await createWorld();
        world.script.deliver = async () =>
          world.posts.length < 3
            ? { kind: "retryable", code: "busy", reason: "?", retryAfterMs: 1_000 }
            : { kind: "delivered", parts: [{ id: "p" }] };
        atChange(world, change, () =>
          soon(turns, () => {
            const [record] = world.store.durable.page(1).records;
            void world.service.operator.retry(record?.continuationId ?? "", { allowUnknown: true });
          }),
        );
        const id = (await live(world)) ?? "";
        for (let second = 0; second < 5; second += 1) {
          world.clock.advance(1_000);
          await idle(10);
        }
        expect(world.record(id)).toMatchObject({
          state: "delivered",
          synthesisAttempts: 1,
          deliveryAttempts: 3,
        });
        expect([world.syntheses.length, world.posts.length, world.history.length]).toEqual([1, 3, 1]);
      });
    }
  }
});
