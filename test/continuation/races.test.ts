import { expect, test } from "bun:test";
import { recordFileBytes } from "../../src/core/record.ts";
import { reconcileOrigins } from "../../src/host/reconcile.ts";
import { createMemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { claimThrough, createWorld, idle, snapshotOf, tokenOf } from "../support/continuation-world.ts";
import { createGate } from "../support/harness-fakes.ts";
import { silentLogger } from "../support/silent-logger.ts";

/** Races and accidents between the worker, settlement, operators, proofs and the stop. Each was a bug once. */

// A poisoned store with one due record: does the worker yield the event loop?
test("a poisoned store leaves the worker idle, and the event loop free", async () => {
  const fs = createMemoryFileSystem();
  const world = await createWorld({ fs });
  const answer = await world.claimed();
  await world.submit(answer);
  let looks = 0;
  world.script.supports = () => {
    if (++looks > 20_000) {
      console.error(`SPIN: ${looks} attempts without one turn of the event loop`);
      process.exit(3);
    }
    return "supported";
  };
  fs.failWhen(() => "ENOSPC");
  await world.service.startWorker();
  await idle();
  if (looks > 2) throw new Error(`spun ${looks}`);
});
// A channel breaks its contract once (retryAfterMs NaN / 1e300): later, when the lease is over, begin_delivery is refused for ever.
for (const retryAfterMs of [Number.NaN, 1e300]) {
  test(`a channel that gives a senseless delay (${retryAfterMs}) leaves an unknown outcome, and no endless loop when the lease is over`, async () => {
    const world = await createWorld();
    const answer = await world.claimed();
    await world.submit(answer);
    world.script.deliver = async () => ({ kind: "retryable", code: "busy", reason: "r", retryAfterMs });
    await world.service.startWorker();
    await idle();
    world.record(answer.continuationId);
    let looks = 0;
    world.script.supports = () => {
      if (++looks > 20_000) {
        console.error(`SPIN: ${looks} attempts without one turn of the event loop`);
        process.exit(3);
      }
      return "supported";
    };
    world.clock.advance(31 * 60_000);
    await idle();
    if (looks > 3) throw new Error("spun");
  });
}

test("with more than 100 overdue records nothing is posted or synthesized after its deadline", async () => {
  const world = await createWorld({ limits: { maxConcurrent: 16 } });
  const claims = [];
  for (let i = 0; i < 130; i++) {
    const a = await world.claimed(`t${i}`);
    await world.submit(a);
    claims.push(a);
  }
  world.script.supports = () => "supported";
  world.clock.advance(3_600_001); // all deadlines have passed (as after a long downtime)
  await world.service.processDue(100);
  expect(world.syntheses.length).toBe(0);
});

test("with more than 100 overdue records that are ready, none is posted after its deadline", async () => {
  const world = await createWorld();
  for (let i = 0; i < 130; i++) {
    const a = await world.claimed(`t${i}`);
    await world.submit(a);
    world.script.deliver = async () => ({ kind: "retryable", code: "busy", reason: "r", retryAfterMs: 1000 });
  }
  await world.settle();
  world.posts.length = 0;
  world.script.deliver = async () => ({ kind: "delivered", parts: [{ id: "p" }] });
  world.clock.advance(3_600_001);
  await world.service.startWorker();
  await idle();
  await idle();
  expect(world.posts.length).toBe(0);
});

test("a resolve during the stop's drain writes history", async () => {
  const world = await createWorld();
  const a = await world.claimed("a");
  await world.submit(a);
  world.script.deliver = async () => ({ kind: "unknown", code: "x", reason: "y" });
  await world.settle();
  expect(world.record(a.continuationId).state).toBe("delivery_unknown");
  const b = await world.claimed("b");
  await world.submit(b);
  const gate = createGate();
  world.script.synthesize = async () => {
    await gate.opened;
    return "late";
  };
  await world.service.startWorker();
  await idle();
  const stopping = world.service.stop();
  const r = await world.service.operator.resolve(a.continuationId, { kind: "delivered" });
  gate.open();
  await stopping;
  if (r.ok) expect(world.history.length).toBe(1);
});

test("a result handed in while the stop drains is refused as service_stopping", async () => {
  const world = await createWorld();
  const a = await world.claimed("a");
  const b = await world.claimed("b");
  await world.submit(b);
  const gate = createGate();
  world.script.synthesize = async () => {
    await gate.opened;
    return "late";
  };
  await world.service.startWorker();
  await idle();
  const stopping = world.service.stop();
  const r = await world.submit(a);
  gate.open();
  await stopping;
  expect(r).toBe("service_stopping");
});

test("processDue after the stop began starts no model call", async () => {
  const world = await createWorld();
  const a = await world.claimed("a");
  await world.submit(a);
  const b = await world.claimed("b");
  const gate = createGate();
  const gate2 = createGate();
  world.script.synthesize = async () => {
    await gate.opened;
    return "one";
  };
  await world.service.startWorker();
  await idle();
  const stopping = world.service.stop();
  world.script.synthesize = async () => {
    await gate2.opened;
    return "two";
  };
  await world.submit(b);
  const due = world.service.processDue(10);
  await idle();
  gate.open();
  await idle();
  await stopping;
  gate2.open();
  await due;
  expect(world.record(b.continuationId).state).not.toBe("synthesizing");
});

test("a running job past its deadline does not hide the next deadline", async () => {
  const world = await createWorld({ limits: { deliveryTimeoutMs: 86_400_000 } });
  const a = await world.claimed("a");
  await world.submit(a);
  const claims = world.run({ originRunId: "r2" });
  const b = await claimThrough(world, tokenOf(claims), {
    taskKey: "b",
    deadline: new Date(world.clock.now() + 3_700_000).toISOString(),
  });
  world.script.deliver = () => new Promise(() => {});
  await world.service.startWorker();
  await idle();
  world.clock.advance(3_600_000);
  await idle();
  world.clock.advance(200_000);
  await idle();
  expect(world.record(b.continuationId).state).toBe("expired");
});

test("resolve delivered checks the delivery binding before it writes history", async () => {
  const world = await createWorld();
  const a = await world.claimed("a");
  await world.submit(a);
  world.script.deliver = async () => ({ kind: "unknown", code: "x", reason: "y" });
  await world.settle();
  const r = world.record(a.continuationId);
  await world.store.commit({
    puts: [{ ...r, originConversationId: "test:other", replyToConversationId: "test:other" }],
  });
  await world.service.operator.resolve(a.continuationId, { kind: "delivered" });
  expect(world.history.length).toBe(0);
});
test("a worker that looks during an activation does not put off the pinned record", async () => {
  const world = await createWorld();
  const claims = world.run({ originRunId: "r" });
  const a = await claimThrough(world, tokenOf(claims));
  await claims.release();
  await world.submit(a);
  for (let i = 0; i < 10; i++) {
    await world.service.processDue(1);
    world.clock.advance(300_000);
  }
  const bound = await claims.finalize(snapshotOf("r", world.clock.now()));
  if (!bound.ok) throw new Error();
  const activating = claims.activate(bound.value.snapshotDigest);
  await world.service.processDue(1);
  await activating;
  world.record(a.continuationId);
  await world.settle();
  expect(world.record(a.continuationId).state).toBe("delivered");
});

test("a result that arrives while the turn activates is answered at once", async () => {
  const world = await createWorld();
  const claims = world.run({ originRunId: "r" });
  const a = await claimThrough(world, tokenOf(claims));
  await claims.release();
  await world.service.startWorker();
  const bound = await claims.finalize(snapshotOf("r", world.clock.now()));
  if (!bound.ok) throw new Error();
  const put = world.submit(a);
  const activating = claims.activate(bound.value.snapshotDigest);
  await Promise.all([put, activating]);
  await idle();
  const r = world.record(a.continuationId);
  expect(r.state).toBe("delivered");
});

test("resolving as not delivered after the deadline is refused and keeps the text", async () => {
  const world = await createWorld();
  const a = await world.claimed("a");
  await world.submit(a);
  world.script.deliver = async () => ({ kind: "unknown", code: "x", reason: "y" });
  await world.settle();
  world.clock.advance(4_000_000);
  await world.service.operator.resolve(a.continuationId, { kind: "not_delivered" });
  await world.settle();
  const rec = world.record(a.continuationId);
  expect(rec.synthesizedText).toBe("the answer");
});

test("a proof found while the host stops is left to the next start, history included", async () => {
  const world = await createWorld();
  const a = await world.claimed("a");
  await world.submit(a);
  world.script.deliver = async () => ({ kind: "unknown", code: "x", reason: "y" });
  await world.settle();
  world.script.find = async () => ({ kind: "delivered", parts: [{ id: "p" }], evidence: "e" });
  world.script.record = () => new Promise(() => {});
  await world.service.startWorker();
  await idle();
  await world.service.stop();
  const rec = world.record(a.continuationId);
  expect(rec.receipt?.historyRecorded).not.toBe(false);
});

test("start-up asks for at most maxConcurrent proofs at a time", async () => {
  const world = await createWorld();
  world.script.deliver = async () => ({ kind: "unknown", code: "x", reason: "y" });
  for (let i = 0; i < 200; i++) {
    const a = await world.claimed(`a${i}`);
    await world.submit(a);
  }
  await world.settle();
  let now = 0,
    most = 0;
  world.script.find = async () => {
    most = Math.max(most, ++now);
    await idle(1);
    now--;
    return { kind: "unknown" };
  };
  await world.service.startWorker();
  await idle();
  await idle();
  expect(most).toBeLessThanOrEqual(16);
});

test("one record at the size limit does not keep the worker from starting", async () => {
  const world = await createWorld();
  const a = await world.claimed("a");
  await world.submit(a);
  const b = await world.claimed("b");
  await world.submit(b);
  const { timeline, ...r } = world.record(a.continuationId);
  const begun = {
    ...r,
    state: "ready_to_deliver" as const,
    originContextRef: undefined,
    originContextDigest: undefined,
    synthesizedText: "t",
    deliveryStartedAt: r.updatedAt,
    resultPayload: "",
  };
  const room = 2 * 1024 * 1024 - recordFileBytes(begun) - 10;
  await world.store.commit({ puts: [{ ...begun, resultPayload: "x".repeat(room) }] });
  await world.store.close();
  const next = await world.restart();
  await next.service.startWorker();
  await idle();
  expect(next.record(b.continuationId).state).toBe("delivered");
});

test("one overdue record at the size limit does not stop the worker", async () => {
  const world = await createWorld();
  const a = await world.claimed("a");
  await world.submit(a);
  await claimThrough(world, tokenOf(world.run({ originRunId: "x" })), {
    taskKey: "b",
    deadline: new Date(world.clock.now() + 7_200_000).toISOString(),
  });
  const { timeline, ...r } = world.record(a.continuationId);
  const begun = {
    ...r,
    state: "ready_to_deliver" as const,
    originContextRef: undefined,
    originContextDigest: undefined,
    synthesizedText: "t",
    deliveryStartedAt: r.updatedAt,
    leaseUntil: new Date(world.clock.now() + 1000).toISOString(),
    resultPayload: "",
  };
  const room = 2 * 1024 * 1024 - recordFileBytes(begun) - 10;
  await world.store.commit({ puts: [{ ...begun, resultPayload: "x".repeat(room) }] });
  world.clock.advance(3_700_000);
  let failed = "";
  await world.service.processDue(10).catch((e) => {
    failed = String(e);
  });
  expect(failed).toBe("");
});

test("an unreadable ledger decides nothing at start, and the start goes on", async () => {
  const world = await createWorld();
  const claims = world.run();
  await claimThrough(world, tokenOf(claims));
  const turns = new Proxy(
    {},
    {
      get: () => async () => {
        throw new Error("disk I/O error");
      },
    },
  ) as never;
  await reconcileOrigins({ origins: world.service.origins, turns, clock: world.clock, logger: silentLogger });
});

for (const who of ["proof", "resolve"] as const)
  test(`while a ${who} as delivered is under way, no other decision can lead to a second post`, async () => {
    const world = await createWorld();
    const a = await world.claimed("a");
    await world.submit(a);
    world.script.deliver = async () => ({ kind: "unknown", code: "x", reason: "y" });
    await world.settle();
    const gate = createGate();
    world.script.record = async () => {
      await gate.opened;
      return { recorded: true };
    };
    if (who === "proof") {
      world.script.find = async () => ({ kind: "delivered", parts: [{ id: "p" }], evidence: "e" });
    }
    await world.service.startWorker();
    await idle();
    const first =
      who === "resolve" ? world.service.operator.resolve(a.continuationId, { kind: "delivered" }) : undefined;
    await idle();
    who === "proof"
      ? await world.service.operator.resolve(a.continuationId, { kind: "not_delivered" })
      : await world.service.operator.retry(a.continuationId, { allowUnknown: true });
    await idle();
    gate.open();
    await idle();
    await first;
    await world.service.stop();
    expect(world.posts.length).toBe(1);
  });
test("an operator's retry after exhausted attempts is a fresh budget", async () => {
  const world = await createWorld({});
  const a = await world.claimed("a");
  await world.submit(a);
  world.script.deliver = async () => ({ kind: "retryable", code: "busy", reason: "r", retryAfterMs: 1 });
  for (let i = 0; i < 25; i++) {
    await world.settle();
    world.clock.advance(10);
  }
  world.posts.length;
  await world.service.operator.retry(a.continuationId, {});
  await world.settle();
  expect(world.record(a.continuationId).state).toBe("delivery_retry");
});

test("starting the worker again, or after processDue has begun to work, does not end a call of this process", async () => {
  const world = await createWorld();
  const answer = await world.claimed();
  await world.submit(answer);
  const gate = createGate();
  world.script.synthesize = async () => {
    await gate.opened;
    return "late";
  };
  const working = world.service.processDue(1);
  await idle();
  await world.service.startWorker();
  await world.service.startWorker();
  expect(world.record(answer.continuationId).state).toBe("synthesizing");
  gate.open();
  await working;
  await idle();
  expect(world.record(answer.continuationId).state).toBe("delivered");
});
