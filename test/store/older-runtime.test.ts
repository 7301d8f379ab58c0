import { describe, expect, test } from "bun:test";
import { payloadHash } from "../../src/core/derive.ts";
import type { ContinuationRecord } from "../../src/core/record.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { createMemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import {
  claimBody,
  claimThrough,
  commitRun,
  createWorld,
  idle,
  STATE_DIR,
  tokenOf,
  type World,
} from "../support/continuation-world.ts";
import { readAsOlderRuntime } from "../support/older-runtime-reader.ts";
import { openReal, writeFullDirectory } from "../support/store-directory.ts";
import { recordsOf, withFolder } from "../support/store-harness.ts";

/** The other direction: at any moment an independent reader of the format finds in our directory what we hold durable. */

const plain = (record: ContinuationRecord | undefined) =>
  record === undefined ? undefined : JSON.parse(JSON.stringify(record));

function agree(world: World): number {
  const older = readAsOlderRuntime(world.fs, STATE_DIR);
  const ours = recordsOf(world.store);
  const theirs = Object.fromEntries(
    [...older].map(([id, record]) => [id, plain(record)] as const).sort(([a], [b]) => (a < b ? -1 : 1)),
  );
  expect(theirs).toEqual(ours);
  return older.size;
}

const ROUTES = {
  quiet: { mode: "silent" as const },
  kept: { mode: "capture" as const, conversationId: "test:kept" },
  alert: { mode: "notify_if_actionable" as const, conversationId: "test:alert" },
};

describe("the older runtime's rules", () => {
  test("read what we hold durable after every step of every mode, and after the close", async () => {
    const fs = createMemoryFileSystem();
    const world = await createWorld({ fs, services: { svc: "s" }, routes: ROUTES });
    let checks = 0;
    const step = async <T>(act: Promise<T>): Promise<T> => {
      const value = await act;
      agree(world);
      checks += 1;
      return value;
    };
    let outcome = 0;
    world.script.deliver = async () => {
      outcome += 1;
      if (outcome % 4 === 1) return { kind: "retryable", code: "rate_limited", reason: "later" };
      if (outcome % 4 === 2) return { kind: "unknown", code: "socket_closed", reason: "lost" };
      if (outcome % 4 === 3) return { kind: "permanent", code: "gone", reason: "gone" };
      return { kind: "delivered", parts: [{ id: "p" }], channelId: "test" };
    };
    for (let round = 0; round < 12; round += 1) {
      const runId = `run-${round}`;
      const claims = world.run({ originRunId: runId });
      const answer = await step(claimThrough(world, tokenOf(claims), { taskKey: `a-${round}` }));
      await step(claimThrough(world, tokenOf(claims), { taskKey: `b-${round}` }));
      await claims.release();
      if (round % 3 === 2) await step(claims.abandon());
      else await step(commitRun(world, claims, runId));
      await step(world.submit(answer, { round, filler: "x".repeat(60_000) }));
      for (const route of Object.keys(ROUTES)) {
        const authority = world.service.claims.authenticateDetached("svc", "s");
        if (!authority.ok) throw new Error("refused");
        const taskKey = `${route}-${round}`;
        const claimed = await step(authority.value.claim({ ...claimBody(world, { taskKey }), route }));
        if (!claimed.ok) throw new Error(claimed.refusal.code);
        const entry = world.service.results.authenticate(claimed.value.continuationId, claimed.value.token);
        if (!entry.ok) throw new Error("refused");
        const payload = { route };
        await step(
          entry.value.submit({ idempotencyKey: taskKey, payload, payloadHash: payloadHash(payload) }),
        );
      }
      await step(world.settle());
      await step(world.service.operator.cancel(answer.continuationId));
      world.clock.advance(1_200_000);
      await step(world.settle());
      await step(idle());
    }
    expect(checks).toBeGreaterThan(120);
    const counts = world.store.durable.counts();
    for (const state of ["delivered", "delivery_unknown", "dead_lettered", "expired"] as const) {
      expect([state, counts[state] > 0]).toEqual([state, true]);
    }
    await world.service.stop();
    await world.store.close();
    expect(agree(world)).toBeGreaterThan(50);
  });

  test("read a directory on the real disk before and after we opened it", () =>
    withFolder(async (stateDir) => {
      await writeFullDirectory(stateDir);
      const fs = createFileSystem();
      const before = readAsOlderRuntime(fs, stateDir);
      const store = await openReal(stateDir);
      expect(recordsOf(store)).toEqual(Object.fromEntries([...before].sort(([a], [b]) => (a < b ? -1 : 1))));
      await store.close();
      expect(readAsOlderRuntime(fs, stateDir)).toEqual(before);
    }));
});
