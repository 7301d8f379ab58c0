import { describe, expect, test } from "bun:test";
import type { RestoreHold } from "../../src/continuation/hold.ts";
import type { ClaimAnswer } from "../../src/core/wire.ts";
import { createWorld, idle, type World } from "../support/continuation-world.ts";

/** The first start after a restore: what was unfinished in the backup waits for a proof or a release. */

interface Kept extends RestoreHold {
  /** Each list that was made durable. */
  readonly writes: string[][];
  /** What the next start gets. */
  next(): Kept;
}

function keptHold(held: readonly string[]): Kept {
  const writes: string[][] = [];
  return {
    held,
    writes,
    async keep(now) {
      writes.push([...now]);
    },
    next: () => keptHold(writes.at(-1) ?? held),
  };
}

const ids = (...answers: ClaimAnswer[]) => answers.map((answer) => answer.continuationId);

/** One continuation in each state that a backup may catch, in a world that never worked on them. */
async function backedUp() {
  const world = await createWorld();
  const claimed = await world.claimed("claimed");
  const received = await world.claimed("received");
  await world.submit(received);
  return { world, claimed, received };
}

async function started(world: World, hold: RestoreHold): Promise<World> {
  const next = await world.restart({ hold });
  return next;
}

describe("what is held", () => {
  test("is neither synthesized nor posted, while claims, results, status and health go on", async () => {
    const { world, claimed, received } = await backedUp();
    const hold = keptHold(ids(claimed, received));
    const restored = await started(world, hold);
    await restored.service.startWorker();
    await restored.settle();
    await idle();
    expect(restored.syntheses).toEqual([]);
    expect(restored.record(received.continuationId).state).toBe("result_received");
    expect(await restored.submit(received)).toBe("result_received");

    // The result of a claim in the backup may have been answered already after it: it is kept, and held.
    expect(await restored.submit(claimed)).toBe("result_received");
    await restored.settle();
    expect(restored.syntheses).toEqual([]);

    const health = restored.service.operator.health();
    expect([health.status, health.held, health.due]).toEqual(["degraded", 2, 0]);
    const shown = restored.service.operator.show(received.continuationId);
    expect(shown.ok && shown.value.waitsFor).toContain("a release after the restore");
    const owed = restored.service.operator.owed({});
    expect(owed.ok && owed.value.needPerson).toBe(2);
    await restored.service.stop();
  });

  test("does not hold what is claimed after the restore", async () => {
    const { world, received } = await backedUp();
    const restored = await started(world, keptHold(ids(received)));
    const fresh = await restored.claimed("fresh");
    await restored.submit(fresh);
    await restored.settle();
    expect(restored.record(fresh.continuationId).state).toBe("delivered");
    expect(restored.syntheses.map((request) => request.continuationId)).toEqual(ids(fresh));
  });

  test("expires at its deadline, because an expiry posts nothing", async () => {
    const { world, received } = await backedUp();
    const hold = keptHold(ids(received));
    const restored = await started(world, hold);
    restored.clock.advance(3_600_001);
    await restored.settle();
    expect(restored.record(received.continuationId).state).toBe("expired");
    await idle();
    expect(hold.writes).toEqual([[]]);
    expect(restored.service.operator.health().held).toBeUndefined();
  });

  test("can be cancelled", async () => {
    const { world, received } = await backedUp();
    const restored = await started(world, keptHold(ids(received)));
    const cancelled = await restored.service.operator.cancel(received.continuationId);
    expect(cancelled.ok && cancelled.value.state).toBe("cancelled");
  });
});

describe("a release", () => {
  test("of one allows exactly one model call and one post, and counts only once it is durable", async () => {
    const { world, claimed, received } = await backedUp();
    const hold = keptHold(ids(claimed, received));
    const gate = Promise.withResolvers<void>();
    const slow: RestoreHold = {
      held: hold.held,
      async keep(now) {
        await gate.promise;
        await hold.keep(now);
      },
    };
    const restored = await started(world, slow);
    const releasing = restored.service.operator.release(received.continuationId);
    await restored.settle();
    expect(restored.syntheses).toEqual([]);
    gate.resolve();
    expect((await releasing).ok).toBe(true);
    expect(hold.writes).toEqual([ids(claimed)]);
    await restored.settle();
    expect(restored.record(received.continuationId).state).toBe("delivered");
    expect([restored.syntheses.length, restored.posts.length]).toEqual([1, 1]);
    const again = await restored.service.operator.release(received.continuationId);
    expect(!again.ok && again.refusal.code).toBe("not_held");
    const unknown = await restored.service.operator.release("nobody");
    expect(!unknown.ok && unknown.refusal.code).toBe("not_found");
  });

  test("wakes the worker", async () => {
    const { world, received } = await backedUp();
    const restored = await started(world, keptHold(ids(received)));
    await restored.service.startWorker();
    await idle();
    expect(restored.syntheses).toEqual([]);
    await restored.service.operator.release(received.continuationId);
    await idle(50);
    expect(restored.record(received.continuationId).state).toBe("delivered");
    await restored.service.stop();
  });

  test("survives restarts, and so does the hold of the others, until all are released", async () => {
    const { world, claimed, received } = await backedUp();
    const first = keptHold(ids(claimed, received));
    const restored = await started(world, first);
    await restored.service.operator.release(claimed.continuationId);
    const second = first.next();
    const again = await restored.restart({ hold: second });
    await again.settle();
    expect(again.syntheses).toEqual([]);
    expect(again.service.operator.health().held).toBe(1);
    const all = await again.service.operator.releaseAll();
    expect(all.ok && all.value.released).toBe(1);
    expect(second.writes).toEqual([[]]);
    await again.settle();
    expect(again.syntheses.length).toBe(1);
    const none = await again.service.operator.releaseAll();
    expect(none.ok && none.value.released).toBe(0);
  });

  test("ends a hold over nothing at once", async () => {
    const world = await createWorld();
    const hold = keptHold([]);
    await started(world, hold);
    await idle();
    expect(hold.writes).toEqual([[]]);
  });

  test("of a synthesis that was under way in the backup never asks the model again", async () => {
    const world = await createWorld();
    const answer = await world.claimed();
    await world.submit(answer);
    world.script.synthesize = () => new Promise(() => {});
    void world.service.processDue(1);
    await idle(30);
    expect(world.record(answer.continuationId).state).toBe("synthesizing");
    const restored = await started(world, keptHold(ids(answer)));
    await restored.service.startWorker();
    await idle(30);
    // Held, it is not decided: it may have been posted after the backup.
    expect(restored.record(answer.continuationId).state).toBe("synthesizing");
    await restored.service.operator.release(answer.continuationId);
    await idle(30);
    const { state, lastError } = restored.record(answer.continuationId);
    expect([state, lastError?.code]).toEqual(["dead_lettered", "synthesis_outcome_unknown"]);
    expect(restored.syntheses).toEqual([]);
    await restored.service.stop();
  });

  test("is what an operator's retry of a held delivery means, too", async () => {
    const world = await createWorld();
    const answer = await world.claimed();
    await world.submit(answer);
    world.script.deliver = async () => ({ kind: "retryable", code: "busy", reason: "later" });
    await world.settle();
    expect(world.record(answer.continuationId).state).toBe("delivery_retry");
    const restored = await started(world, keptHold(ids(answer)));
    restored.clock.advance(60_000);
    await restored.settle();
    expect(restored.posts).toEqual([]);
    expect((await restored.service.operator.retry(answer.continuationId, {})).ok).toBe(true);
    await restored.settle();
    expect(restored.record(answer.continuationId).state).toBe("delivered");
    expect([restored.syntheses.length, restored.posts.length]).toEqual([0, 1]);
  });
});

describe("the channel's proof", () => {
  const delivered = async () =>
    ({ kind: "delivered", parts: [{ id: "p1" }], channelId: "chan", evidence: "a row" }) as const;

  test("settles what was posted after the backup, without a text as with one, and never posts", async () => {
    const { world, claimed, received } = await backedUp();
    const hold = keptHold(ids(claimed, received));
    const restored = await started(world, hold);
    restored.script.find = delivered;
    await restored.service.startWorker();
    await idle(50);
    const { state, receipt } = restored.record(received.continuationId);
    expect(state).toBe("delivered");
    expect(receipt).toMatchObject({
      kind: "delivered",
      deliveryId: "p1",
      historyRecorded: false,
      historyErrorCode: "text_lost_in_restore",
      proof: { by: "channel", evidence: "a row" },
    });
    // The claim itself is not decided by a post; its result is, when it comes again.
    expect(restored.record(claimed.continuationId).state).toBe("claimed");
    await restored.submit(claimed);
    await idle(50);
    expect(restored.record(claimed.continuationId).state).toBe("delivered");
    expect([restored.syntheses.length, restored.posts.length]).toEqual([0, 0]);
    expect(hold.writes.at(-1)).toEqual([]);
    await restored.service.stop();
  });

  test("of a stored answer also completes its history", async () => {
    const world = await createWorld();
    const answer = await world.claimed();
    await world.submit(answer);
    world.script.deliver = async () => ({ kind: "retryable", code: "busy", reason: "later" });
    await world.settle();
    const restored = await started(world, keptHold(ids(answer)));
    restored.script.find = delivered;
    const proved = await restored.service.operator.prove(answer.continuationId);
    expect(proved.ok && proved.value.receipt?.historyRecorded).toBe(true);
    expect(restored.history.map((entry) => entry.text)).toEqual(["the answer"]);
  });

  test("of an absence releases nothing: the backup knows nothing of the days after it", async () => {
    const { world, received } = await backedUp();
    const restored = await started(world, keptHold(ids(received)));
    restored.script.find = async () => ({ kind: "absent", exact: true, evidence: "no row" });
    await restored.service.startWorker();
    await idle(50);
    const proved = await restored.service.operator.prove(received.continuationId);
    expect(proved.ok && proved.value.state).toBe("result_received");
    expect([restored.syntheses.length, restored.posts.length]).toEqual([0, 0]);
    await restored.service.stop();
  });

  test("of an absence makes a post that was begun in the backup deliverable, and that is held as well", async () => {
    const world = await createWorld();
    const answer = await world.claimed();
    await world.submit(answer);
    world.script.deliver = () => new Promise(() => {});
    while (world.posts.length === 0) {
      void world.service.processDue(1);
      await idle(30);
    }
    const restored = await started(world, keptHold(ids(answer)));
    restored.script.find = async () => ({ kind: "absent", exact: true, evidence: "no row" });
    await restored.service.startWorker();
    await idle(100);
    restored.clock.advance(60_000);
    await idle(50);
    expect(restored.record(answer.continuationId).state).toBe("ready_to_deliver");
    expect(restored.posts).toEqual([]);
    await restored.service.operator.release(answer.continuationId);
    await idle(50);
    expect(restored.record(answer.continuationId).state).toBe("delivered");
    expect(restored.posts.length).toBe(1);
    await restored.service.stop();
  });
});
