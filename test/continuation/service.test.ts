import { describe, expect, test } from "bun:test";
import { ORIGIN_CONTEXT_UNAVAILABLE_TEXT } from "../../src/continuation/synthesis-job.ts";
import type { JsonValue } from "../../src/core/json.ts";
import {
  claimBody,
  claimThrough,
  commitRun,
  createWorld,
  snapshotOf,
  tokenOf,
  tryClaim,
} from "../support/continuation-world.ts";
import { createRecordingLogger } from "../support/silent-logger.ts";

const codeOf = (result: { ok: boolean; refusal?: { code: string } }) =>
  result.ok ? "ok" : result.refusal?.code;

describe("claims", () => {
  test("a repeated claim gives the first answer again, a changed one conflicts", async () => {
    const world = await createWorld();
    const token = tokenOf(world.run());
    const first = await claimThrough(world, token);
    const again = await claimThrough(world, token);
    expect(again).toEqual({ ...first, replayed: true });
    expect(codeOf(await tryClaim(world, token, { taskHash: "other" }))).toBe("claim_conflict");
    expect(
      codeOf(await tryClaim(world, token, { deadline: new Date(world.clock.now() + 1000).toISOString() })),
    ).toBe("claim_conflict");
  });

  test("a hundred equal claims at once make one record", async () => {
    const world = await createWorld();
    const token = tokenOf(world.run());
    const answers = await Promise.all(Array.from({ length: 100 }, () => claimThrough(world, token)));
    expect(new Set(answers.map((answer) => answer.continuationId)).size).toBe(1);
    expect(answers.filter((answer) => answer.replayed !== true).length).toBe(1);
    expect(world.store.durable.active()).toBe(1);
  });

  test("a re-issued capability of the same run claims the same continuation", async () => {
    const world = await createWorld();
    const first = await claimThrough(world, tokenOf(world.run()));
    const second = await claimThrough(world, tokenOf(world.run()));
    expect(second.continuationId).toBe(first.continuationId);
    expect(second.fingerprint).toBe(first.fingerprint);
  });

  test("the deadline must be in the future and at most 30 days away, to the millisecond", async () => {
    const world = await createWorld();
    const token = tokenOf(world.run());
    const at = (ms: number) => ({
      taskKey: `at ${ms}`,
      deadline: new Date(world.clock.now() + ms).toISOString(),
    });
    const month = 30 * 86_400_000;
    expect(codeOf(await tryClaim(world, token, at(0)))).toBe("invalid_deadline");
    expect(codeOf(await tryClaim(world, token, at(1)))).toBe("ok");
    expect(codeOf(await tryClaim(world, token, at(month)))).toBe("ok");
    expect(codeOf(await tryClaim(world, token, at(month + 1)))).toBe("deadline_too_far");
  });

  test("a claim repeated after its deadline still gets its stored answer", async () => {
    const world = await createWorld();
    const token = tokenOf(world.run());
    const body = claimBody(world);
    const first = await claimThrough(world, token, body);
    world.clock.advance(4_000_000);
    expect((await claimThrough(world, token, body)).continuationId).toBe(first.continuationId);
  });

  test("active limits refuse the next new claim, not a replay, and free up after an end", async () => {
    const world = await createWorld({ limits: { maxActiveRecords: 2, maxActivePerOrigin: 1 } });
    const claims = world.run();
    const token = tokenOf(claims);
    const first = await claimThrough(world, token, { taskKey: "a" });
    expect(codeOf(await tryClaim(world, token, { taskKey: "b" }))).toBe("active_origin_limit");
    expect((await claimThrough(world, token, { taskKey: "a" })).replayed).toBe(true);
    await claimThrough(world, tokenOf(world.run({ originRunId: "run-2" })), { taskKey: "a" });
    const third = tokenOf(world.run({ originRunId: "run-3" }));
    expect(codeOf(await tryClaim(world, third))).toBe("active_continuation_limit");
    await world.service.operator.cancel(first.continuationId);
    expect(codeOf(await tryClaim(world, third))).toBe("ok");
  });

  test("a destination that no channel can ever serve is refused at claim time; one not running is not", async () => {
    const world = await createWorld();
    expect(codeOf(await tryClaim(world, tokenOf(world.run({ replyTo: "fax:1" }))))).toBe(
      "unsupported_destination",
    );
    world.script.supports = () => "not_running";
    expect(codeOf(await tryClaim(world, tokenOf(world.run())))).toBe("ok");
  });

  test("a body that arrives after release is refused, and leaves no record", async () => {
    const world = await createWorld();
    const claims = world.run();
    const ticket = world.service.claims.authenticate(tokenOf(claims));
    await claims.release();
    if (!ticket.ok) throw new Error(ticket.refusal.code);
    expect(codeOf(await ticket.value.claim(claimBody(world)))).toBe("invalid_claim_capability");
    expect(codeOf(world.service.claims.authenticate(tokenOf(claims)))).toBe("invalid_claim_capability");
    expect(world.store.head.active()).toBe(0);
  });

  test("a claim admitted just before release is drained, and counts as active", async () => {
    const world = await createWorld();
    const claims = world.run();
    const claiming = claimThrough(world, tokenOf(claims));
    await claims.release();
    expect(claims.hasActiveClaims()).toBe(true);
    await claiming;
  });

  test("a detached claim needs the right name and token, and a configured route", async () => {
    const world = await createWorld({
      routes: {
        attention: { mode: "notify_if_actionable", conversationId: "test:ops" },
        fax: { mode: "notify_if_actionable", conversationId: "fax:1" },
        index: { mode: "silent" },
      },
      services: { "ops-control": "a-long-enough-token" },
    });
    const detached = (service: string, token: string) =>
      world.service.claims.authenticateDetached(service, token);
    expect(codeOf(detached("ops-control", "wrong"))).toBe("invalid_service_capability");
    expect(codeOf(detached("unknown", "a-long-enough-token"))).toBe("invalid_service_capability");
    expect(codeOf(detached("unknown", ""))).toBe("invalid_service_capability");
    const ticket = detached("ops-control", "a-long-enough-token");
    if (!ticket.ok) throw new Error(ticket.refusal.code);
    expect(codeOf(await ticket.value.claim({ ...claimBody(world), route: "nowhere" }))).toBe(
      "unknown_named_route",
    );
    expect(codeOf(await ticket.value.claim({ ...claimBody(world), route: "fax" }))).toBe(
      "unsupported_destination",
    );
    const claimed = await ticket.value.claim({ ...claimBody(world), route: "attention" });
    if (!claimed.ok) throw new Error(claimed.refusal.code);
    const record = world.record(claimed.value.continuationId);
    expect(record).toMatchObject({
      serverName: "detached:ops-control",
      originRunId: "detached:ops-control:task",
      originConversationId: "test:ops",
      replyToConversationId: "test:ops",
      originContextState: "detached_latest",
      mode: "notify_if_actionable",
      routeName: "attention",
    });
    const silent = await ticket.value.claim({ ...claimBody(world, { taskKey: "silent" }), route: "index" });
    expect(silent.ok && world.record(silent.value.continuationId).originConversationId).toBe(
      "continuation-route:index",
    );
  });
});

describe("settlement", () => {
  test("an early result waits for activation, in silent mode too, and then goes on", async () => {
    const world = await createWorld();
    const claims = world.run();
    const answer = await claimThrough(world, tokenOf(claims));
    expect(await world.submit(answer)).toBe("result_received");
    await world.service.processDue(10);
    expect(world.record(answer.continuationId)).toMatchObject({
      state: "result_received",
      synthesisDeferrals: 1,
      lastError: { code: "origin_context_pending" },
    });
    await claims.release();
    await commitRun(world, claims, "run-1");
    expect(world.record(answer.continuationId).lastError).toBeUndefined();
    await world.settle();
    expect(world.record(answer.continuationId).state).toBe("delivered");
    expect(world.syntheses.length).toBe(1);
  });

  test("synthesis sees exactly the pinned snapshot, and the exact bucket", async () => {
    const world = await createWorld();
    const answer = await world.claimed();
    await world.submit(answer, { summary: "numbers" });
    await world.settle();
    const [request] = world.syntheses;
    expect(request?.context).toEqual({
      policy: "pinned",
      snapshot: snapshotOf("run-of-task", world.clock.now()),
    });
    expect(request?.payload).toEqual({ summary: "numbers" });
  });

  test("an abandoned claim gets the fixed answer without a model call", async () => {
    const world = await createWorld();
    const claims = world.run();
    const answer = await claimThrough(world, tokenOf(claims));
    await claims.release();
    await claims.abandon();
    expect(world.record(answer.continuationId).originContextState).toBe("abandoned");
    await world.submit(answer);
    await world.settle();
    expect(world.syntheses.length).toBe(0);
    expect(world.posts.map((post) => post.text)).toEqual([ORIGIN_CONTEXT_UNAVAILABLE_TEXT]);
    expect(world.record(answer.continuationId)).toMatchObject({
      state: "delivered",
      completionKind: "origin_context_unavailable",
    });
  });

  test("claims of one run share one blob, which goes with the last of them", async () => {
    const world = await createWorld();
    const claims = world.run();
    const one = await claimThrough(world, tokenOf(claims), { taskKey: "one" });
    const two = await claimThrough(world, tokenOf(claims), { taskKey: "two" });
    await claims.release();
    await commitRun(world, claims, "run-1");
    const blobs = () =>
      world.fs.list("/state/origin-context-v1", "test")?.filter((name) => !name.startsWith(".")).length;
    expect(blobs()).toBe(1);
    await world.service.operator.cancel(one.continuationId);
    await world.store.sweep(world.clock.now());
    expect(blobs()).toBe(1);
    await world.service.operator.cancel(two.continuationId);
    await world.store.sweep(world.clock.now());
    expect(blobs()).toBe(0);
  });
});

describe("delivery", () => {
  test("the text is posted to the bound route with its key, recorded in history, and the receipt tells both", async () => {
    const world = await createWorld();
    const answer = await world.claimed();
    await world.submit(answer);
    await world.settle();
    expect(
      world.posts.map(({ destination, text, deliveryKey }) => ({ destination, text, deliveryKey })),
    ).toEqual([
      { destination: "test:room", text: "the answer", deliveryKey: `continuation:${answer.continuationId}` },
    ]);
    expect(world.history.length).toBe(1);
    expect(world.record(answer.continuationId).receipt).toMatchObject({
      kind: "delivered",
      deliveryId: "post-1",
      channelId: "test",
      historyRecorded: true,
    });
  });

  test("a text with a lone surrogate is made well-formed before it is bound, so history holds the same", async () => {
    const world = await createWorld();
    world.script.synthesize = async () => "broken \ud800 text";
    const answer = await world.claimed();
    await world.submit(answer);
    await world.settle();
    expect(world.posts.map((post) => post.text)).toEqual(["broken \ufffd text"]);
    expect(world.history.map((entry) => entry.text)).toEqual(["broken \ufffd text"]);
  });

  test("a history failure after the post degrades health and posts nothing again", async () => {
    const world = await createWorld();
    world.script.record = async () => ({ recorded: false, code: "history_record_failed" });
    const answer = await world.claimed();
    await world.submit(answer);
    await world.settle();
    expect(world.record(answer.continuationId).receipt).toMatchObject({
      historyRecorded: false,
      historyErrorCode: "history_record_failed",
    });
    expect(world.posts.length).toBe(1);
    expect(world.service.operator.health().status).toBe("degraded");
  });

  test("retryable failures back off and end dead-lettered after 20 attempts with the text kept", async () => {
    const world = await createWorld();
    world.script.deliver = async () => ({ kind: "retryable", code: "busy", reason: "try later" });
    const answer = await claimThrough(world, tokenOf(world.run()), {
      deadline: new Date(world.clock.now() + 29 * 86_400_000).toISOString(),
    });
    await world.run().abandon();
    await world.submit(answer);
    await world.settle();
    for (let attempt = 1; attempt < 20; attempt += 1) {
      expect(world.record(answer.continuationId)).toMatchObject({
        state: "delivery_retry",
        deliveryAttempts: attempt,
      });
      const next = Date.parse(world.record(answer.continuationId).nextAttemptAt ?? "");
      world.clock.advance(next - world.clock.now() - 1);
      expect(await world.service.processDue(10)).toBe(0);
      world.clock.advance(1);
      await world.settle();
    }
    expect(world.posts.length).toBe(20);
    expect(world.record(answer.continuationId)).toMatchObject({
      state: "dead_lettered",
      lastError: { code: "delivery_attempts_exhausted" },
      synthesizedText: ORIGIN_CONTEXT_UNAVAILABLE_TEXT,
    });
  });

  test("permanent is dead-lettered, unknown and thrown wait for an operator, and no word of a throw is kept", async () => {
    const logger = createRecordingLogger();
    const world = await createWorld({ logger });
    const end = async (taskKey: string) => {
      const answer = await world.claimed(taskKey);
      await world.submit(answer);
      await world.settle();
      const record = world.record(answer.continuationId);
      return [record.state, record.lastError?.code];
    };
    world.script.deliver = async () => ({ kind: "permanent", code: "channel_gone", reason: "gone" });
    expect(await end("p")).toEqual(["dead_lettered", "channel_gone"]);
    world.script.deliver = async () => ({ kind: "unknown", code: "socket_closed", reason: "?" });
    expect(await end("u")).toEqual(["delivery_unknown", "socket_closed"]);
    world.script.deliver = ({ destination, text }) => Promise.reject(new Error(`${destination}: ${text}`));
    expect(await end("t")).toEqual(["delivery_unknown", "delivery_threw"]);
    const threw = world.service.operator.list({ state: "delivery_unknown" });
    expect(logger.lines.join("\n")).toContain("delivery threw");
    expect(JSON.stringify([threw, logger.lines])).not.toMatch(/test:room|the answer/);
    expect(world.service.operator.health().status).toBe("unhealthy");
  });

  test("a destination revoked after the synthesis gets nothing, and nobody else does", async () => {
    const world = await createWorld();
    const answer = await world.claimed();
    await world.submit(answer);
    world.script.synthesize = async () => {
      world.script.supports = () => "never";
      return "secret answer";
    };
    await world.settle();
    expect(world.posts.length).toBe(0);
    expect(world.record(answer.continuationId)).toMatchObject({
      state: "dead_lettered",
      lastError: { code: "destination_not_allowed" },
    });
  });

  test("a channel that is not running defers at no attempt", async () => {
    const world = await createWorld();
    const answer = await world.claimed();
    world.script.supports = () => "not_running";
    await world.submit(answer);
    await world.service.processDue(10);
    expect(world.record(answer.continuationId)).toMatchObject({
      state: "result_received",
      synthesisAttempts: 0,
      synthesisDeferrals: 1,
    });
    world.script.supports = () => "supported";
    world.clock.advance(1000);
    await world.settle();
    expect(world.record(answer.continuationId).state).toBe("delivered");
  });
});

describe("modes", () => {
  const routes = {
    notify: { mode: "notify_if_actionable", conversationId: "test:ops" },
    capture: { mode: "capture", conversationId: "test:ops" },
    silent: { mode: "silent" },
  } as const;
  const detached = async (
    route: keyof typeof routes,
    payload: Parameters<Awaited<ReturnType<typeof createWorld>>["submit"]>[1],
  ) => {
    const world = await createWorld({ routes, services: { ops: "a-long-enough-token" } });
    const ticket = world.service.claims.authenticateDetached("ops", "a-long-enough-token");
    if (!ticket.ok) throw new Error(ticket.refusal.code);
    const claimed = await ticket.value.claim({ ...claimBody(world), route });
    if (!claimed.ok) throw new Error(claimed.refusal.code);
    await world.submit(claimed.value, payload);
    await world.settle();
    return { world, record: world.record(claimed.value.continuationId), id: claimed.value.continuationId };
  };

  test("not actionable is suppressed without model and post; actionable is synthesized from the latest history", async () => {
    const quiet: JsonValue[] = [
      { actionable: false },
      { status: " Nothing_To_Report " },
      { status: "not_applicable" },
    ];
    for (const payload of quiet) {
      const { world, record } = await detached("notify", payload);
      expect([record.receipt?.kind, world.syntheses.length, world.posts.length]).toEqual([
        "suppressed",
        0,
        0,
      ]);
    }
    const { world, record } = await detached("notify", { status: "disk full" });
    expect(record.receipt?.kind).toBe("delivered");
    expect(world.syntheses[0]?.context).toEqual({ policy: "detached_latest" });
  });

  test("capture keeps the text and posts nothing; only a delivered capture shows its text", async () => {
    const { world, record, id } = await detached("capture", { x: 1 });
    expect([record.receipt?.kind, world.posts.length]).toEqual(["captured", 0]);
    expect(world.service.operator.capturedText(id)).toBe("the answer");
  });

  test("silent needs no model and no channel", async () => {
    const { world, record } = await detached("silent", { x: 1 });
    expect([record.state, record.receipt?.kind, world.syntheses.length, world.posts.length]).toEqual([
      "delivered",
      "silent",
      0,
      0,
    ]);
  });
});

describe("restart", () => {
  test("an interrupted synthesis is dead-lettered and the model is not asked again", async () => {
    const world = await createWorld();
    const answer = await world.claimed();
    await world.submit(answer);
    const { promise: reached, resolve: reach } = Promise.withResolvers<void>();
    world.script.synthesize = () => {
      reach();
      return new Promise(() => {});
    };
    void world.service.processDue(10);
    await reached;
    const next = await world.restart();
    await next.service.startWorker();
    await next.store.whenDurable();
    expect(next.record(answer.continuationId)).toMatchObject({
      state: "dead_lettered",
      lastError: { code: "synthesis_outcome_unknown" },
    });
    expect(next.syntheses.length).toBe(0);
  });

  test("an interrupted post becomes unknown; a proof by the channel settles it without another post", async () => {
    const world = await createWorld();
    const answer = await world.claimed();
    await world.submit(answer);
    const { promise: reached, resolve: reach } = Promise.withResolvers<void>();
    world.script.deliver = () => {
      reach();
      return new Promise(() => {});
    };
    await world.service.processDue(10);
    void world.service.processDue(10);
    await reached;
    const next = await world.restart();
    next.script.find = async () => ({ kind: "delivered", parts: [{ id: "post-7" }], evidence: "row 7" });
    const { promise: proved, resolve: prove } = Promise.withResolvers<void>();
    next.store.onDurable(() => {
      if (next.record(answer.continuationId).state === "delivered") prove();
    });
    await next.service.startWorker();
    await proved;
    expect(next.record(answer.continuationId).receipt).toMatchObject({
      kind: "delivered",
      deliveryId: "post-7",
      proof: { by: "channel", evidence: "row 7" },
    });
    expect(next.posts.length).toBe(0);
    expect(next.history.length).toBe(1);
  });

  test("a text that was durable before the restart is delivered with the same bytes, without a second synthesis", async () => {
    const world = await createWorld();
    const answer = await world.claimed();
    await world.submit(answer);
    await world.service.processDue(10);
    expect(world.record(answer.continuationId).state).toBe("ready_to_deliver");
    const next = await world.restart();
    await next.settle();
    expect(next.posts.map((post) => post.text)).toEqual(["the answer"]);
    expect(next.syntheses.length).toBe(0);
  });
});

describe("operator", () => {
  test("a page names no record twice and skips none, while others are inserted", async () => {
    const world = await createWorld({ limits: { operatorPageSize: 3 } });
    const token = tokenOf(world.run());
    for (let index = 0; index < 10; index += 1) {
      await claimThrough(world, token, { taskKey: `t${index}` });
      world.clock.advance(index % 2);
    }
    const seen: string[] = [];
    let cursor: string | undefined;
    do {
      const page = world.service.operator.list(cursor === undefined ? {} : { cursor });
      if (!page.ok) throw new Error(page.refusal.code);
      seen.push(...page.value.continuations.map((row) => row.taskKey));
      cursor = page.value.nextCursor;
      world.clock.advance(10);
      await claimThrough(world, token, { taskKey: `later${seen.length}` });
    } while (cursor !== undefined);
    expect(seen.length).toBe(10);
    expect(new Set(seen).size).toBe(10);
  });

  test("an oversized limit and a bad cursor are refused", async () => {
    const world = await createWorld({ limits: { operatorPageSize: 3 } });
    for (const limit of ["4", "0", "-1", "1.5", "", "x"]) {
      expect(codeOf(world.service.operator.list({ limit }))).toBe("invalid_page_limit");
    }
    for (const cursor of ["", "!", "e30", Buffer.from('["x","y"]').toString("base64url"), "a".repeat(513)]) {
      expect(codeOf(world.service.operator.list({ cursor }))).toBe("invalid_page_cursor");
    }
  });

  test("resolve delivered records history and cannot post", async () => {
    const world = await createWorld();
    world.script.deliver = async () => ({ kind: "unknown", code: "socket_closed", reason: "?" });
    const answer = await world.claimed();
    await world.submit(answer);
    await world.settle();
    const posts = world.posts.length;
    const resolved = await world.service.operator.resolve(answer.continuationId, {
      kind: "delivered",
      deliveryId: "seen",
    });
    expect(resolved.ok && resolved.value.receipt).toMatchObject({
      kind: "delivered",
      deliveryId: "seen",
      historyRecorded: true,
    });
    expect(world.history.map((entry) => entry.text)).toEqual(["the answer"]);
    await world.settle();
    expect(world.posts.length).toBe(posts);
  });

  test("resolve not-delivered makes it deliverable again, dead-lettered keeps it from the worker", async () => {
    const world = await createWorld();
    world.script.deliver = async () => ({ kind: "unknown", code: "socket_closed", reason: "?" });
    const one = await world.claimed("one");
    const two = await world.claimed("two");
    await world.submit(one);
    await world.submit(two);
    await world.settle();
    world.script.deliver = async () => ({ kind: "delivered", parts: [{ id: "p" }] });
    await world.service.operator.resolve(one.continuationId, { kind: "not_delivered" });
    await world.service.operator.resolve(two.continuationId, { kind: "dead_lettered" });
    await world.settle();
    expect(world.record(one.continuationId).state).toBe("delivered");
    expect(world.record(two.continuationId)).toMatchObject({
      state: "dead_lettered",
      lastError: { code: "operator_dead_lettered" },
    });
  });
});

test("one hung provider holds neither the other continuations nor the stop", async () => {
  const world = await createWorld({ limits: { maxConcurrent: 4 } });
  const hung = await world.claimed("hung");
  const others = await Promise.all(Array.from({ length: 30 }, (_, index) => world.claimed(`n${index}`)));
  world.script.synthesize = (request) =>
    request.continuationId === hung.continuationId ? new Promise(() => {}) : Promise.resolve("fine");
  const { promise: allDone, resolve: done } = Promise.withResolvers<void>();
  world.store.onDurable(() => {
    if (others.every((answer) => world.record(answer.continuationId).state === "delivered")) done();
  });
  await world.submit(hung);
  for (const answer of others) await world.submit(answer);
  await world.service.startWorker();
  await allDone;
  expect(world.record(hung.continuationId).state).toBe("synthesizing");
  const stopped = world.service.stop();
  world.clock.advance(10_000);
  await stopped;
  expect(world.record(hung.continuationId).state).toBe("synthesizing");
});
