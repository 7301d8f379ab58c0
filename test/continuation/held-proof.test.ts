import { describe, expect, test } from "bun:test";
import type { DeliveryProof, HistoryOutcome } from "../../src/core/ports/delivery.ts";
import { createWorld, idle } from "../support/continuation-world.ts";

/**
 * While a proof of what is held after a restore is written down, history first, nothing else decides the continuation:
 * history would hold an answer that the record knows nothing of.
 */

/** The channel has found the post; its answer is on the way into history and waits there. */
async function proving() {
  const before = await createWorld();
  // In the backup its text is stored and its post put off.
  before.script.deliver = async () => ({ kind: "retryable", code: "later", reason: "later" });
  const answer = await before.claimed();
  await before.submit(answer);
  await before.settle();
  await before.service.stop();
  await before.store.close();
  const id = answer.continuationId;
  const world = await before.restart({ hold: { held: [id], keep: async () => {} } });
  world.clock.advance(Date.parse(world.record(id).deadline) - world.clock.now() - 1_000);
  const history = Promise.withResolvers<HistoryOutcome>();
  world.script.find = async () => ({ kind: "delivered", parts: [{ id: "p" }], evidence: "row 7" });
  world.script.record = () => history.promise;
  const proved = world.service.operator.prove(id);
  await idle();
  const recorded = async () => {
    history.resolve({ recorded: true });
    await proved;
    await idle();
    return { state: world.record(id).state, posts: world.posts.length, rows: world.history.length };
  };
  return { world, id, recorded };
}

describe("while a proof is written down", () => {
  test("a cancel is refused, and the proof counts", async () => {
    const { world, id, recorded } = await proving();
    const cancelled = await world.service.operator.cancel(id);
    expect(cancelled.ok || cancelled.refusal.code).toBe("resolution_in_progress");
    expect(await recorded()).toEqual({ state: "delivered", posts: 0, rows: 1 });
    const later = await world.service.operator.cancel(id);
    expect(later.ok || later.refusal.code).toBe("already_terminal");
  });

  test("a deadline that passes does not end it, and the proof counts", async () => {
    const { world, recorded } = await proving();
    await world.service.startWorker();
    world.clock.advance(2_000);
    await idle();
    expect(await recorded()).toEqual({ state: "delivered", posts: 0, rows: 1 });
  });

  test("a release does not post it again", async () => {
    const { world, id, recorded } = await proving();
    await world.service.startWorker();
    expect((await world.service.operator.release(id)).ok).toBe(true);
    await idle();
    expect(await recorded()).toEqual({ state: "delivered", posts: 0, rows: 1 });
  });
});

test("after a look that proved nothing, what passed or was released meanwhile is dealt with at once", async () => {
  for (const then of ["expired", "delivered"] as const) {
    const before = await createWorld();
    const answer = await before.claimed();
    await before.submit(answer);
    await before.service.stop();
    await before.store.close();
    const id = answer.continuationId;
    const world = await before.restart({ hold: { held: [id], keep: async () => {} } });
    const found = Promise.withResolvers<{ kind: "unknown" }>();
    world.script.find = () => found.promise;
    await world.service.startWorker();
    await idle();
    if (then === "expired") world.clock.advance(3_600_000);
    else await world.service.operator.release(id);
    await idle();
    found.resolve({ kind: "unknown" });
    await idle();
    expect(world.record(id).state).toBe(then);
  }
});

test("a post that is found counts also when it was released during the look: it is not posted again", async () => {
  const before = await createWorld();
  const answer = await before.claimed();
  await before.submit(answer);
  await before.service.stop();
  await before.store.close();
  const id = answer.continuationId;
  const world = await before.restart({ hold: { held: [id], keep: async () => {} } });
  const found = Promise.withResolvers<DeliveryProof>();
  world.script.find = () => found.promise;
  await world.service.startWorker();
  await idle();
  await world.service.operator.release(id);
  await idle();
  found.resolve({ kind: "delivered", parts: [{ id: "p" }], evidence: "row 7" });
  await idle();
  expect(world.record(id)).toMatchObject({ state: "delivered", receipt: { proof: { evidence: "row 7" } } });
  expect(world.posts).toEqual([]);
});

describe("at the stop", () => {
  async function stopped(settle: readonly string[]) {
    const before = await createWorld();
    const answers = [await before.claimed("a"), await before.claimed("b")];
    await before.service.stop();
    await before.store.close();
    const ids = answers.map(({ continuationId }) => continuationId);
    const kept: (readonly string[])[] = [];
    const hold = {
      held: ids,
      async keep(held: readonly string[]) {
        kept.push(held);
      },
    };
    const world = await before.restart({ hold });
    for (const [index, id] of ids.entries()) {
      if (settle.includes("ab"[index] ?? "")) await world.service.operator.cancel(id);
    }
    expect(kept.length).toBe(settle.length === 2 ? 1 : 0);
    await world.service.stop();
    return { kept, ids };
  }

  test("what was settled meanwhile is kept as held no more", async () => {
    const { kept, ids } = await stopped(["a"]);
    expect(kept).toEqual([[ids[1] ?? ""]]);
  });

  test("a hold that did not change, or has ended, is not written again", async () => {
    expect((await stopped([])).kept).toEqual([]);
    expect((await stopped(["a", "b"])).kept).toEqual([[]]);
  });
});
