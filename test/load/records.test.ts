import { expect, test } from "bun:test";
import { MAX_ACTIVE_PER_ORIGIN, MAX_ACTIVE_RECORDS } from "../../src/core/limits.ts";
import type { ClaimAnswer, ContinuationStatus } from "../../src/core/wire.ts";
import {
  claimThrough,
  commitRun,
  createWorld,
  snapshotOf,
  tokenOf,
  tryClaim,
} from "../support/continuation-world.ts";

/** The service filled up to its default limits, then worked empty. */

test("10,000 active records: only the limits refuse, pages show each once, and the worker keeps every promise", async () => {
  const world = await createWorld();
  const answers: ClaimAnswer[] = [];
  for (let origin = 0; origin < MAX_ACTIVE_RECORDS / MAX_ACTIVE_PER_ORIGIN; origin += 1) {
    const originRunId = `run-${origin}`;
    const conversationId = `test:room-${origin}`;
    const run = world.run({ originRunId, conversationId, replyTo: conversationId });
    const token = tokenOf(run);
    const keys = Array.from({ length: MAX_ACTIVE_PER_ORIGIN }, (_, index) => ({ taskKey: `task ${index}` }));
    answers.push(...(await Promise.all(keys.map((key) => claimThrough(world, token, key)))));
    if (origin === 0) {
      const over = await tryClaim(world, token, { taskKey: "one too many" });
      expect(over.ok ? "claimed" : over.refusal.code).toBe("active_origin_limit");
    }
    await run.release();
    const bound = await run.finalize(snapshotOf(originRunId, world.clock.now(), conversationId));
    if (!bound.ok) throw new Error(bound.refusal.code);
    await run.activate(bound.value.snapshotDigest);
  }
  expect(world.service.operator.health().pending).toBe(MAX_ACTIVE_RECORDS);

  const late = world.run({ originRunId: "late", conversationId: "test:late", replyTo: "test:late" });
  const over = await tryClaim(world, tokenOf(late), { taskKey: "over" });
  expect(over.ok ? "claimed" : over.refusal).toMatchObject({
    code: "active_continuation_limit",
    retryAfterMs: expect.any(Number),
  });

  const listed = new Set<string>();
  let cursor: string | undefined;
  do {
    const page = world.service.operator.list(cursor === undefined ? {} : { cursor });
    if (!page.ok) throw new Error(page.refusal.code);
    for (const row of page.value.continuations as ContinuationStatus[]) listed.add(row.continuationId);
    cursor = page.value.nextCursor;
  } while (cursor !== undefined);
  expect(listed.size).toBe(MAX_ACTIVE_RECORDS);

  const accepted = await Promise.all(answers.map((answer, n) => world.submit(answer, { n })));
  expect(new Set(accepted)).toEqual(new Set(["result_received"]));
  await world.service.startWorker();
  while (world.store.durable.active() > 0) await new Promise((resolve) => setImmediate(resolve));

  expect(world.store.durable.counts().delivered).toBe(MAX_ACTIVE_RECORDS);
  expect(world.syntheses.length).toBe(MAX_ACTIVE_RECORDS);
  expect(new Set(world.posts.map(({ deliveryKey }) => deliveryKey)).size).toBe(MAX_ACTIVE_RECORDS);
  expect(world.posts.length).toBe(MAX_ACTIVE_RECORDS);
  // The places that became free are free again.
  await claimThrough(world, tokenOf(late), { taskKey: "over" });
  await late.release();
  await commitRun(world, late, "late");
  await world.service.stop();
  await world.store.close();
}, 60_000);
