import { describe, expect, test } from "bun:test";
import { interactiveFingerprint } from "../../src/core/derive.ts";
import {
  claimBody,
  claimThrough,
  createWorld,
  idle,
  tokenOf,
  tryClaim,
  type World,
} from "../support/continuation-world.ts";

/** What a producer may repeat, for how long, and what of it is written. */

const DAY_MS = 86_400_000;

function resubmit(world: World, continuationId: string, token: string, key: string, payload: string) {
  const entry = world.service.results.authenticate(continuationId, token);
  return entry.ok ? entry.value.submit({ idempotencyKey: key, payload }) : Promise.resolve(entry);
}

test("a result repeated a thousand times is one transition and one write; a changed one conflicts", async () => {
  const world = await createWorld();
  const { continuationId, token } = await world.claimed();
  let writes = 0;
  world.store.onDurable(() => {
    writes += 1;
  });
  const answers = await Promise.all(
    Array.from({ length: 1_000 }, () => resubmit(world, continuationId, token, "key", "payload")),
  );
  expect(answers.every((it) => it.ok && it.value.accepted && it.value.state === "result_received")).toBe(
    true,
  );
  expect(writes).toBe(1);
  const stored = world.record(continuationId);
  for (const [key, payload] of [
    ["other", "payload"],
    ["key", "other"],
  ] as const) {
    const changed = await resubmit(world, continuationId, token, key, payload);
    expect(changed.ok || changed.refusal.code).toBe("result_conflict");
  }
  expect(world.record(continuationId)).toBe(stored);
});

describe("after the end", () => {
  async function ended() {
    const world = await createWorld();
    const claims = world.run();
    const body = claimBody(world);
    const answer = await claimThrough(world, tokenOf(claims), body);
    await claims.release();
    await claims.abandon();
    const first = await resubmit(world, answer.continuationId, answer.token, "key", "payload");
    expect(first.ok).toBe(true);
    await world.settle();
    expect(world.record(answer.continuationId)).toMatchObject({ state: "delivered" });
    expect(world.record(answer.continuationId).compactedAt).toBeDefined();
    return { world, answer, body };
  }

  /** The run goes on in a recovery run, with the same origin run id. */
  const claimAgain = (world: World, body: ReturnType<typeof claimBody>) =>
    tryClaim(world, tokenOf(world.run()), body);

  test("claim and result still get their answers, without payload and text, for as long as tombstones are kept", async () => {
    const { world, answer, body } = await ended();
    world.clock.advance(364 * DAY_MS);
    await createChange(world, "a");
    const again = await claimAgain(world, body);
    expect(again).toEqual({ ok: true, value: { ...answer, replayed: true } });
    const other = await claimAgain(world, { ...body, taskHash: "other" });
    expect(other.ok || other.refusal.code).toBe("claim_conflict");
    const result = await resubmit(world, answer.continuationId, answer.token, "key", "payload");
    expect(result.ok && result.value.state).toBe("delivered");
    const conflict = await resubmit(world, answer.continuationId, answer.token, "key", "other");
    expect(conflict.ok || conflict.refusal.code).toBe("result_conflict");
    expect([world.posts.length, world.record(answer.continuationId).resultPayload]).toEqual([1, undefined]);
  });

  test("beyond that they are forgotten: the result is gone, and the claim is a new one", async () => {
    const { world, answer, body } = await ended();
    world.clock.advance(365 * DAY_MS + 1);
    await createChange(world, "b");
    const result = await resubmit(world, answer.continuationId, answer.token, "key", "payload");
    expect(result.ok || result.refusal.code).toBe("not_found");
    const again = await claimAgain(world, { ...body, deadline: claimBody(world).deadline });
    expect(again.ok && [again.value.replayed, again.value.continuationId === answer.continuationId]).toEqual([
      undefined,
      false,
    ]);
  });

  /** Retention goes with the changes of the store. */
  async function createChange(world: World, taskKey: string) {
    await claimThrough(world, tokenOf(world.run({ originRunId: `run-of-${taskKey}` })), { taskKey });
  }
});

describe("notify_if_actionable whose origin context is lost", () => {
  async function lost(payload: { status: string }) {
    const world = await createWorld();
    const claims = world.run();
    const answer = await claimThrough(world, tokenOf(claims));
    await claims.release();
    await claims.abandon();
    // No route of today makes one, other runtimes did.
    const record = world.record(answer.continuationId);
    const mode = "notify_if_actionable";
    const claimFingerprint = interactiveFingerprint({
      serverName: record.serverName,
      originRunId: record.originRunId,
      originConversationId: record.originConversationId,
      replyToConversationId: record.replyToConversationId,
      historyBoundary: record.historyBoundary ?? "",
      mode,
    });
    await world.store.commit({ puts: [{ ...record, mode, claimFingerprint }] });
    await world.submit(answer, payload);
    await world.settle();
    await idle();
    return { world, record: world.record(answer.continuationId) };
  }

  test("and that is not actionable is suppressed: no fixed text, no model, no post", async () => {
    const { world, record } = await lost({ status: "nothing_to_report" });
    expect(record).toMatchObject({ state: "delivered", receipt: { kind: "suppressed" }, actionable: false });
    expect([world.syntheses.length, world.posts.length, world.history.length]).toEqual([0, 0, 0]);
  });

  test("and that is actionable gets the fixed text, without a model", async () => {
    const { world, record } = await lost({ status: "failed" });
    expect(record).toMatchObject({
      state: "delivered",
      completionKind: "origin_context_unavailable",
      receipt: { kind: "delivered" },
    });
    expect([world.syntheses.length, world.posts.length]).toEqual([0, 1]);
  });
});
