import { describe, expect, test } from "bun:test";
import { createWorld, idle, type World } from "../support/continuation-world.ts";

/** What channel, history, model and embedder answer is parsed at the door: nothing malformed reaches a record. */

const LOST = { kind: "unknown", code: "socket_closed", reason: "?" } as const;

async function submitted(deliver?: World["script"]["deliver"]) {
  const world = await createWorld();
  if (deliver !== undefined) world.script.deliver = deliver;
  const answer = await world.claimed();
  await world.submit(answer);
  return { world, id: answer.continuationId };
}

/** Throws when a record on the disk is damaged. */
async function reopened(world: World, id: string) {
  await world.service.stop();
  await world.store.close();
  const after = await world.restart();
  return after.record(id);
}

describe("a proof that can't be read proves nothing", () => {
  const POST = { kind: "delivered", parts: [{ id: "p" }], evidence: "row 7" };
  for (const proof of [
    undefined,
    "delivered",
    { kind: "found" },
    { ...POST, evidence: "" },
    { ...POST, evidence: undefined },
    { ...POST, parts: [{ id: "" }] },
    { ...POST, parts: "p" },
    { ...POST, channelId: "" },
    { ...POST, channelId: 7 },
    { kind: "absent", exact: "yes", evidence: "none" },
  ]) {
    test(JSON.stringify(proof) ?? "undefined", async () => {
      const { world, id } = await submitted(async () => LOST);
      world.script.find = async () => proof as never;
      await world.settle();
      await idle();
      world.clock.advance(600_000);
      await idle();
      const proved = await world.service.operator.prove(id);
      expect(proved.ok && proved.value.state).toBe("delivery_unknown");
      expect([world.posts.length, world.history.length]).toEqual([1, 0]);
      expect((await reopened(world, id)).state).toBe("delivery_unknown");
    });
  }

  test("evidence as long as a book is cut, and still proves", async () => {
    const { world, id } = await submitted(async () => LOST);
    world.script.find = async () => ({ kind: "delivered", parts: [], evidence: "e".repeat(3_000_000) });
    await world.settle();
    await idle();
    expect((await reopened(world, id)).receipt?.proof?.evidence.length).toBe(500);
  });
});

describe("a history outcome that can't be read is a failed append, after a post and after a proof", () => {
  for (const outcome of [
    {},
    { recorded: "yes" },
    { recorded: false },
    { recorded: false, code: "" },
    { recorded: false, code: 7 },
  ]) {
    const failed = { kind: "delivered", historyRecorded: false, historyErrorCode: "history_record_failed" };
    test(`${JSON.stringify(outcome)} after a post`, async () => {
      const { world, id } = await submitted();
      world.script.record = async () => outcome as never;
      await world.settle();
      expect(world.record(id).receipt).toMatchObject(failed);
      expect((await reopened(world, id)).receipt).toMatchObject(failed);
    });
    test(`${JSON.stringify(outcome)} after a proof`, async () => {
      const { world, id } = await submitted(async () => LOST);
      world.script.record = async () => outcome as never;
      world.script.find = async () => ({ kind: "delivered", parts: [{ id: "p" }], evidence: "row" });
      await world.settle();
      await idle();
      expect((await reopened(world, id)).receipt).toMatchObject(failed);
    });
  }
});

test("an answer of the model that is no text ends the synthesis, once", async () => {
  for (const answer of [undefined, null, 7, { text: "x" }]) {
    const { world, id } = await submitted();
    world.script.synthesize = async () => answer as never;
    await world.settle();
    await idle();
    expect(world.record(id)).toMatchObject({
      state: "dead_lettered",
      lastError: { code: "synthesis_failed" },
    });
    expect(world.syntheses.length).toBe(1);
  }
});

test("a resolution that the wire would refuse is refused to an embedder too", async () => {
  const { world, id } = await submitted(async () => LOST);
  await world.settle();
  for (const resolution of [
    { kind: "delivered", deliveryId: "" },
    { kind: "delivered", deliveryId: "x".repeat(257) },
    { kind: "posted" },
    { kind: "not_delivered", deliveryId: "p" },
  ]) {
    const resolved = await world.service.operator.resolve(id, resolution as never);
    expect(resolved.ok || resolved.refusal.code).toBe("invalid_resolution");
  }
  expect((await reopened(world, id)).state).toBe("delivery_unknown");
});

test("a run origin with an empty name gets no capability, so that no claim of it can damage the store", async () => {
  const world = await createWorld();
  for (const origin of [{ originRunId: "" }, { conversationId: "" }, { replyTo: "" }]) {
    expect(() => world.run(origin)).toThrow("must not be empty");
  }
});

describe("an answer about a destination that can't be read", () => {
  const ANSWERS: [string, () => unknown][] = [
    [
      "a throw",
      () => {
        throw new Error("not now");
      },
    ],
    ["true", () => true],
    ["false", () => false],
    ["undefined", () => undefined],
    ["another word", () => "yes"],
    ["an object", () => ({ kind: "supported" })],
  ];
  for (const [name, answer] of ANSWERS) {
    test(`puts off the synthesis and the post at no attempt, and refuses no claim: ${name}`, async () => {
      const world = await createWorld();
      const { supports } = world.script;
      world.script.supports = answer as World["script"]["supports"];
      const claimed = await world.claimed();
      const id = claimed.continuationId;
      await world.submit(claimed);
      await world.settle();
      expect(world.record(id)).toMatchObject({
        state: "result_received",
        synthesisAttempts: 0,
        synthesisDeferrals: 1,
        lastError: { code: "destination_channel_unavailable" },
      });
      world.script.supports = supports;
      world.script.synthesize = async () => {
        world.script.supports = answer as World["script"]["supports"];
        return "the answer";
      };
      world.clock.advance(1_000);
      await world.settle();
      expect(world.record(id)).toMatchObject({
        state: "ready_to_deliver",
        deliveryAttempts: 0,
        synthesisDeferrals: 2,
        lastError: { code: "destination_channel_unavailable" },
      });
      world.script.supports = supports;
      world.clock.advance(2_000);
      await world.settle();
      expect((await reopened(world, id)).state).toBe("delivered");
    });
  }
});
