import { describe, expect, test } from "bun:test";
import {
  claimThrough,
  commitRun,
  createWorld,
  idle,
  tokenOf,
  type World,
} from "../support/continuation-world.ts";

/** What becomes of posts whose outcome is unknown (protocol.md, last paragraph; limits deliveryTimeoutMs + 5 min). */

const GRACE_MS = 120_000 + 300_000;
const UNKNOWN = { kind: "unknown", code: "socket_closed", reason: "?" } as const;
const ABSENT = { kind: "absent", exact: false, evidence: "two pages" } as const;

/** A record that is `delivery_unknown` after one post, with the worker running. */
async function unknown(): Promise<{ world: World; id: string }> {
  const world = await createWorld();
  world.script.deliver = async () => UNKNOWN;
  const answer = await world.claimed();
  await world.submit(answer);
  await world.service.startWorker();
  await idle();
  expect(world.record(answer.continuationId).state).toBe("delivery_unknown");
  return { world, id: answer.continuationId };
}

test("an unknown outcome is looked up at once; a proof settles it with its evidence and one history row", async () => {
  const world = await createWorld();
  world.script.deliver = async () => UNKNOWN;
  world.script.find = async () => ({
    kind: "delivered",
    parts: [{ id: "p6" }, { id: "p7" }],
    channelId: "room",
    evidence: "row 7",
  });
  const answer = await world.claimed();
  await world.submit(answer);
  await world.service.startWorker();
  await idle();
  expect(world.record(answer.continuationId).receipt).toMatchObject({
    kind: "delivered",
    deliveryId: "p7",
    channelId: "room",
    historyRecorded: true,
    proof: { by: "channel", evidence: "row 7" },
  });
  const at = world.record(answer.continuationId).receipt?.deliveredAt ?? "";
  expect(world.record(answer.continuationId).deliveryParts).toEqual([
    { id: "p6", at },
    { id: "p7", at },
  ]);
  expect([world.posts.length, world.history.length]).toEqual([1, 1]);
});

test("a proof of what is held after a restore keeps the id of every part too", async () => {
  const before = await createWorld();
  const answer = await before.claimed();
  await before.submit(answer);
  await before.service.stop();
  await before.store.close();
  const world = await before.restart({ hold: { held: [answer.continuationId], keep: async () => {} } });
  world.script.find = async () => ({
    kind: "delivered",
    parts: [{ id: "p6" }, { id: "p7" }],
    evidence: "row 7",
  });
  expect((await world.service.operator.prove(answer.continuationId)).ok).toBe(true);
  const { state, receipt, deliveryParts } = world.record(answer.continuationId);
  expect([state, receipt?.deliveryId, deliveryParts?.map(({ id }) => id)]).toEqual([
    "delivered",
    "p7",
    ["p6", "p7"],
  ]);
});

describe("absence", () => {
  test("counts only after the time-out plus five minutes, and only when two looks agree", async () => {
    const { world, id } = await unknown();
    let looks = 0;
    world.script.find = async () => {
      looks += 1;
      return ABSENT;
    };
    expect((await world.service.operator.prove(id)).ok).toBe(true);
    world.clock.advance(GRACE_MS - 1);
    await world.service.operator.prove(id);
    expect([looks, world.record(id).state]).toEqual([2, "delivery_unknown"]);
    world.script.deliver = async () => ({ kind: "delivered", parts: [{ id: "second" }] });
    world.clock.advance(1);
    await idle();
    expect(looks).toBe(4);
    expect(world.record(id)).toMatchObject({ state: "delivered", receipt: { deliveryId: "second" } });
    expect(world.posts.length).toBe(2);
  });

  test("of a later post is not looked for at the time that was planned for an earlier one", async () => {
    const { world, id } = await unknown();
    let looks = 0;
    world.clock.advance(60_000);
    await world.service.operator.retry(id, { allowUnknown: true });
    await idle();
    expect([world.record(id).state, world.posts.length]).toEqual(["delivery_unknown", 2]);
    world.script.find = async () => {
      looks += 1;
      return { kind: "unknown" };
    };
    world.clock.advance(GRACE_MS - 1);
    await idle();
    expect(looks).toBe(0);
    world.clock.advance(1);
    await idle();
    expect(looks).toBe(1);
  });

  test("that a second look contradicts leaves it unknown", async () => {
    const { world, id } = await unknown();
    let looks = 0;
    world.script.find = async () => {
      looks += 1;
      return looks % 2 === 1 ? ABSENT : { kind: "unknown" };
    };
    world.clock.advance(GRACE_MS);
    await idle();
    expect([looks, world.record(id).state, world.posts.length]).toEqual([2, "delivery_unknown", 1]);
  });

  test("that is exact counts at once", async () => {
    const { world, id } = await unknown();
    world.script.find = async () => ({ kind: "absent", exact: true, evidence: "no row" });
    world.script.deliver = async () => ({ kind: "delivered", parts: [{ id: "second" }] });
    await world.service.operator.prove(id);
    await idle();
    expect([world.record(id).state, world.posts.length]).toEqual(["ready_to_deliver", 1]);
    world.clock.advance(1000);
    await idle();
    expect([world.record(id).state, world.posts.length]).toEqual(["delivered", 2]);
  });
});

test("an exact absence counts after a time-out only with time for the call, which may still post", async () => {
  const world = await createWorld();
  world.script.deliver = () => new Promise(() => {});
  world.script.find = async () => ({ kind: "absent", exact: true, evidence: "no row" });
  const { continuationId: id, ...answer } = await world.claimed();
  await world.submit({ ...answer, continuationId: id });
  await world.service.startWorker();
  await idle();
  world.clock.advance(GRACE_MS - 1);
  await idle();
  await world.service.operator.prove(id);
  expect([world.record(id).state, world.posts.length]).toEqual(["delivery_unknown", 1]);
  world.clock.advance(1);
  await idle();
  expect(world.posts.length).toBe(2);
});

test("a channel that fails and proves it each time is asked with back-off, and at most 20 times", async () => {
  const world = await createWorld();
  world.script.deliver = async () => {
    if (world.posts.length > 30) return new Promise(() => {});
    throw new Error("database is locked");
  };
  world.script.find = async () => ({ kind: "absent", exact: true, evidence: "no row" });
  const claims = world.run({ originRunId: "r" });
  const answer = await claimThrough(world, tokenOf(claims), {
    deadline: new Date(world.clock.now() + 20 * 24 * 3_600_000).toISOString(),
  });
  await claims.release();
  await commitRun(world, claims, "r");
  await world.submit(answer);
  await world.service.startWorker();
  await idle();
  expect([world.record(answer.continuationId).state, world.posts.length]).toEqual(["ready_to_deliver", 1]);
  for (let hour = 0; hour < 40; hour += 1) {
    for (let minute = 0; minute < 60; minute += 1) {
      world.clock.advance(60_000);
      await idle(2);
    }
  }
  expect(world.posts.length).toBe(20);
  expect(world.record(answer.continuationId)).toMatchObject({
    state: "dead_lettered",
    lastError: { code: "delivery_attempts_exhausted" },
  });
});

describe("a channel that is not up when it is asked", () => {
  /** An unknown post from long ago, a host that starts, and a channel that comes up later. */
  async function restarted() {
    const world = await createWorld();
    world.script.deliver = async () => ({ kind: "unknown", code: "socket_closed", reason: "?" });
    const answer = await world.claimed();
    await world.submit(answer);
    await world.settle();
    await idle();
    world.clock.advance(600_000);
    await idle();
    await world.service.stop();
    await world.store.close();
    const after = await world.restart();
    let looks = 0;
    after.script.supports = () => "not_running";
    after.script.find = async () => {
      looks += 1;
      return after.script.supports("") === "supported"
        ? { kind: "delivered", parts: [{ id: "p" }], evidence: "found" }
        : { kind: "unknown" };
    };
    return { after, id: answer.continuationId, looks: () => looks };
  }

  test("is asked again when it is, once, and its proof counts", async () => {
    const { after, id, looks } = await restarted();
    await after.service.startWorker();
    await idle();
    after.announce();
    after.clock.advance(600_000);
    await idle();
    expect([after.record(id).state, looks()]).toEqual(["delivery_unknown", 1]);
    after.script.supports = () => "supported";
    after.announce();
    await idle();
    expect(after.record(id)).toMatchObject({ state: "delivered", receipt: { proof: { evidence: "found" } } });
    expect([looks(), after.posts.length]).toEqual([2, 0]);
  });

  test("is asked again when it comes up while it is asked", async () => {
    const { after, id } = await restarted();
    const { find } = after.script;
    after.script.find = async (deliveryKey) => {
      const found = await find(deliveryKey);
      after.script.supports = () => "supported";
      after.announce();
      return found;
    };
    await after.service.startWorker();
    await idle();
    expect(after.record(id).state).toBe("delivered");
  });

  test("is not asked again and again when it is up and knows nothing", async () => {
    const { after, id, looks } = await restarted();
    after.script.supports = () => "supported";
    after.script.find = async () => {
      await idle(1);
      return { kind: "unknown" };
    };
    let asked = 0;
    const { find } = after.script;
    after.script.find = (deliveryKey) => {
      asked += 1;
      return find(deliveryKey);
    };
    await after.service.startWorker();
    await idle();
    for (let time = 0; time < 20; time += 1) {
      after.announce();
      await idle(3);
    }
    expect([after.record(id).state, asked, looks()]).toEqual(["delivery_unknown", 1, 0]);
  });
});

test("the next start asks for the oldest first, one after the other where one worker is allowed", async () => {
  const world = await createWorld({ limits: { maxConcurrent: 1 } });
  world.script.deliver = async () => ({ kind: "unknown", code: "socket_closed", reason: "?" });
  const made: string[] = [];
  for (const taskKey of ["a", "b", "c", "d"]) {
    const answer = await world.claimed(taskKey);
    made.push(`continuation:${answer.continuationId}`);
    await world.submit(answer);
    await world.settle();
    world.clock.advance(1_000);
  }
  await world.service.stop();
  await world.store.close();
  const after = await world.restart();
  const asked: string[] = [];
  after.script.find = async (deliveryKey) => {
    asked.push(deliveryKey);
    return { kind: "unknown" };
  };
  await after.service.recover();
  await idle(30);
  expect(asked).toEqual(made);
});

test("a look-up that fails, hangs or knows nothing leaves the record unknown and posts nothing", async () => {
  const { world, id } = await unknown();
  world.script.find = () => Promise.reject(new Error("boom"));
  const failed = await world.service.operator.prove(id);
  expect(failed.ok && failed.value.state).toBe("delivery_unknown");
  world.script.find = () => new Promise(() => {});
  const asked = world.service.operator.prove(id);
  await idle();
  world.clock.advance(120_000);
  await asked;
  expect([world.record(id).state, world.posts.length]).toEqual(["delivery_unknown", 1]);
});

test("only delivery_unknown can be proved", async () => {
  const world = await createWorld();
  const answer = await world.claimed();
  const proved = await world.service.operator.prove(answer.continuationId);
  expect(proved.ok || proved.refusal.code).toBe("not_delivery_unknown");
  const nobody = await world.service.operator.prove("nobody");
  expect(nobody.ok || nobody.refusal.code).toBe("not_found");
});

test("a stop cancels planned look-ups and ends those under way", async () => {
  const { world, id } = await unknown();
  world.script.find = () => new Promise(() => {});
  const asked = world.service.operator.prove(id);
  await idle();
  await world.service.stop();
  await asked;
  await world.store.close();
  expect(world.clock.pending()).toBe(0);
  expect(world.record(id).state).toBe("delivery_unknown");
});

describe("owed and watch", () => {
  test("owed names every promise not yet kept by deadline, and counts those that need a person", async () => {
    const { world, id } = await unknown();
    world.script.deliver = async () => ({ kind: "permanent", code: "channel_gone", reason: "gone" });
    const dead = await world.claimed("dead");
    await world.submit(dead);
    await idle();
    const open = await world.claimed("open");
    world.clock.advance(1000);
    const owed = world.service.operator.owed({});
    if (!owed.ok) throw new Error(owed.refusal.code);
    const rows = owed.value.owed.map((item) => [item.continuationId, item.needsPerson, item.ageMs >= 1000]);
    expect(rows.sort()).toEqual(
      [
        [id, true, true],
        [dead.continuationId, true, true],
        [open.continuationId, false, true],
      ].sort(),
    );
    expect([owed.value.total, owed.value.needPerson]).toEqual([3, 2]);
    expect(JSON.stringify(owed.value)).not.toContain("test:room");
  });

  test("a dead letter that nobody can retry any more is owed no more, and one of its unknown siblings still is", async () => {
    const { world, id } = await unknown();
    world.script.deliver = async () => ({ kind: "permanent", code: "channel_gone", reason: "gone" });
    const dead = await world.claimed("dead");
    await world.submit(dead);
    const { continuationId } = dead;
    await idle();
    const seen = () => {
      const owed = world.service.operator.owed({});
      const detail = world.service.operator.show(continuationId);
      if (!owed.ok || !detail.ok) throw new Error("refused");
      const ids = owed.value.owed.map((item) => item.continuationId);
      return { ids: ids.sort(), needPerson: owed.value.needPerson, waitsFor: detail.value.waitsFor };
    };
    const until = Date.parse(world.record(continuationId).deadline);
    world.clock.advance(until - 1 - world.clock.now());
    expect(seen()).toEqual({
      ids: [id, continuationId].sort(),
      needPerson: 2,
      waitsFor: "an operator's retry, if it is still wanted",
    });
    world.clock.advance(1);
    const retried = await world.service.operator.retry(continuationId, {});
    expect(retried.ok || retried.refusal.code).toBe("continuation_expired");
    expect(seen()).toEqual({ ids: [id], needPerson: 1, waitsFor: undefined });
  });

  test("watch tells each durable change with its state and what it was", async () => {
    const world = await createWorld();
    const seen: string[] = [];
    const end = world.service.operator.watch((event) => seen.push(`${event.state} ${event.what}`));
    const answer = await world.claimed();
    await world.submit(answer);
    await world.settle();
    expect(seen).toEqual([
      "claimed claimed",
      "claimed origin_prepared",
      "claimed origin_pinned",
      "result_received result_received",
      "synthesizing synthesis_started",
      "ready_to_deliver synthesized",
      "ready_to_deliver delivery_started",
      "delivered delivered",
    ]);
    end();
    await world.claimed("more");
    expect(seen.length).toBe(8);
  });

  test("watch tells of what was put off after its origin was pinned by its state and code", async () => {
    const world = await createWorld();
    const seen: string[] = [];
    world.service.operator.watch((event) => seen.push([event.what, event.code ?? "-"].join(" ")));
    const claims = world.run();
    const answer = await claimThrough(world, tokenOf(claims));
    await world.submit(answer);
    await claims.release();
    await commitRun(world, claims, "run-1");
    world.script.supports = () => "not_running";
    world.clock.advance(1);
    await world.settle();
    expect(seen).toEqual([
      "claimed -",
      "result_received -",
      "origin_prepared -",
      "origin_pinned -",
      "result_received destination_channel_unavailable",
    ]);
  });
});
