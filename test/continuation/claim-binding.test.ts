import { describe, expect, test } from "bun:test";
import type { ContinuationRecord } from "../../src/core/record.ts";
import {
  claimBody,
  claimThrough,
  createWorld,
  snapshotOf,
  tokenOf,
  type World,
} from "../support/continuation-world.ts";

/** What a claim was bound to is recomputed before the model is asked and before anything is bound to its text. */

const ROUTES = {
  alert: { mode: "notify_if_actionable" as const, conversationId: "test:alert" },
  kept: { mode: "capture" as const },
};

const world = () => createWorld({ routes: ROUTES, services: { svc: "token" } });

async function pinned(world: World): Promise<string> {
  const answer = await world.claimed();
  await world.submit(answer);
  return answer.continuationId;
}

async function abandoned(world: World): Promise<string> {
  const claims = world.run();
  const answer = await claimThrough(world, tokenOf(claims));
  await claims.release();
  await claims.abandon();
  await world.submit(answer);
  return answer.continuationId;
}

const detached = (route: keyof typeof ROUTES) => async (world: World) => {
  const service = world.service.claims.authenticateDetached("svc", "token");
  if (!service.ok) throw new Error(service.refusal.code);
  const claimed = await service.value.claim({ ...claimBody(world), route });
  if (!claimed.ok) throw new Error(claimed.refusal.code);
  await world.submit(claimed.value);
  return claimed.value.continuationId;
};

/** As another program would leave it on the disk. */
async function alter(world: World, id: string, change: Partial<ContinuationRecord>): Promise<void> {
  const next: ContinuationRecord = { ...world.record(id), ...change };
  for (const key of Object.keys(change)) if (next[key] === undefined) delete next[key];
  await world.store.commit({ puts: [next] });
}

async function expectRejected(world: World, id: string): Promise<void> {
  await world.settle();
  expect(world.record(id)).toMatchObject({
    state: "dead_lettered",
    lastError: { code: "origin_context_binding_invalid" },
  });
  expect([world.syntheses.length, world.posts.length, world.history.length]).toEqual([0, 0, 0]);
}

const INTERACTIVE: Partial<ContinuationRecord>[] = [
  { serverName: "other" },
  { originRunId: "other" },
  { originConversationId: "test:other" },
  { replyToConversationId: "test:other" },
  { replyToConversationId: undefined },
  { historyBoundary: "other" },
  { mode: "notify_if_actionable" },
  { mode: "silent" },
  { mode: "capture" },
  { routeName: "alert" },
  { claimFingerprint: "0".repeat(64) },
];
const DETACHED: Partial<ContinuationRecord>[] = [
  { serverName: "detached:other" },
  { serverName: "DETACHED:svc" },
  { originRunId: "other" },
  { originConversationId: "test:other" },
  { replyToConversationId: "test:other" },
  { mode: "reply" },
  { mode: "silent" },
  { routeName: "other" },
  { routeName: undefined },
  { claimFingerprint: "0".repeat(64) },
];
const PINNED: Partial<ContinuationRecord>[] = [
  { taskHash: "other" },
  { deadline: "2099-01-01T00:00:00.000Z" },
  { originContextDigest: undefined },
  { originContextDigest: "0".repeat(64) },
  { originContextFingerprint: undefined },
  { originContextBindingMac: undefined },
  // The latest history is for claims without an origin run.
  { originContextState: "detached_latest" },
];

const CASES = [
  { of: "a pinned claim", make: pinned, changes: [...INTERACTIVE, ...PINNED] },
  { of: "an abandoned claim", make: abandoned, changes: INTERACTIVE },
  { of: "a detached claim", make: detached("alert"), changes: DETACHED },
  { of: "a detached claim without a conversation", make: detached("kept"), changes: DETACHED },
];

describe("a claim altered on disk before its synthesis asks no model and posts nothing", () => {
  for (const { of, make, changes } of CASES) {
    for (const change of changes) {
      test(`${of}: ${JSON.stringify(change, (_key, value) => value ?? null)}`, async () => {
        const w = await world();
        const id = await make(w);
        await alter(w, id, change);
        await expectRejected(w, id);
      });
    }
    test(`${of}: as it is, it is worked on`, async () => {
      const w = await world();
      const id = await make(w);
      await w.settle();
      expect(w.record(id).state).toBe("delivered");
    });
  }
});

describe("a text of an older runtime, which has no delivery binding", () => {
  async function withText(make: (world: World) => Promise<string>, change: Partial<ContinuationRecord> = {}) {
    const w = await world();
    w.script.deliver = async () => ({ kind: "retryable", code: "later", reason: "later" });
    const id = await make(w);
    await w.settle();
    expect(w.record(id).state).toBe("delivery_retry");
    await alter(w, id, { deliveryBindingMac: undefined, ...change });
    w.script.deliver = async () => ({ kind: "delivered", parts: [{ id: "p" }] });
    w.clock.advance(5_000);
    const posts = w.posts.length;
    await w.settle();
    return { record: w.record(id), posted: w.posts.length - posts, history: w.history.length };
  }

  const WITHOUT_REFERENCE: Partial<ContinuationRecord>[] = [
    {},
    // Nobody knows by what rule the oldest runtimes made it.
    { claimFingerprint: "0".repeat(64) },
  ];

  test("with its snapshot reference: is posted where the snapshot binding says", async () => {
    const { record, posted, history } = await withText(pinned);
    expect([record.state, posted, history]).toEqual(["delivered", 1, 1]);
  });

  for (const change of [{ replyToConversationId: "test:other" }, { claimFingerprint: "0".repeat(64) }]) {
    test(`with its snapshot reference, altered in ${Object.keys(change)}: is posted nowhere`, async () => {
      const { record, posted, history } = await withText(pinned, change);
      expect(record).toMatchObject({
        state: "dead_lettered",
        lastError: { code: "delivery_binding_invalid" },
      });
      expect([posted, history]).toEqual([0, 0]);
    });
  }

  for (const change of WITHOUT_REFERENCE) {
    for (const [of, make, gone] of [
      ["pinned once", pinned, { originContextRef: undefined }],
      ["detached", detached("alert"), {}],
    ] as const) {
      test(`without a reference is accepted: ${of}, ${JSON.stringify(change)}`, async () => {
        const { record, posted, history } = await withText(make, { ...gone, ...change });
        expect([record.state, posted, history]).toEqual(["delivered", 1, 1]);
        expect(record.receipt).toMatchObject({ historyRecorded: true });
      });
    }
  }
});

describe("a snapshot that a host bound by mistake", () => {
  test.each([
    ["of another run", "run-2", "test:room"],
    ["of another conversation", "run-1", "test:other"],
  ])("%s is shown to no model: the fixed text is the answer", async (_, originRunId, conversationId) => {
    const w = await createWorld();
    const claims = w.run();
    const answer = await claimThrough(w, tokenOf(claims));
    await claims.release();
    const bound = await claims.finalize(snapshotOf(originRunId, w.clock.now(), conversationId));
    if (!bound.ok) throw new Error(bound.refusal.code);
    await claims.activate(bound.value.snapshotDigest);
    await w.submit(answer);
    await w.settle();
    const { state, completionKind } = w.record(answer.continuationId);
    expect([state, completionKind, w.syntheses.length]).toEqual([
      "delivered",
      "origin_context_unavailable",
      0,
    ]);
  });
});
