import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { StoreError } from "../../src/core/errors.ts";
import { fileJson } from "../../src/core/json.ts";
import { type ContinuationRecord, recordFileName, STATES } from "../../src/core/record.ts";
import { createMemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { checkContinuationStore } from "../../src/store/check.ts";
import { createWorld, idle, STATE_DIR } from "../support/continuation-world.ts";
import { NOW, recordIn } from "../support/records.ts";

/**
 * A record that the reader accepts may still be one that no runtime would write. Whatever it says, opening, starting,
 * working, looking at it and closing throw nothing, harm no other record, and leave a directory that opens again.
 */

const RUNS = 800;
const SEED = Number(process.env.FUZZ_SEED ?? 20_261_130);

const DATES = fc.constantFrom(
  NOW,
  "1970-01-01",
  "2026-11-30T12:00:00+14:00",
  "+275760-09-13T00:00:00.000Z",
  "-000001-01-01T00:00:00Z",
  "Nov 30, 2026",
  "2099-01-01T00:00:00.000Z",
);
const TEXT = fc.oneof(
  fc.string({ minLength: 1, maxLength: 5 }),
  fc.constantFrom("__proto__", "test:room", "\u0000", "\ud800", "x".repeat(5_000)),
);
const COUNT = fc.constantFrom(0, 1, 7, 19, 20, 21, Number.MAX_SAFE_INTEGER);
const HEX = fc.constantFrom("0".repeat(64), "d".repeat(64));
const REF = fc.record({
  schemaVersion: fc.constant(1 as const),
  digest: HEX,
  bytes: fc.constantFrom(1, 262_144),
  messageCount: fc.constantFrom(2, 64),
});

/** Any combination of fields, each valid by itself, over a record of any state. */
const PATCH = fc.record(
  {
    serverName: TEXT,
    originRunId: TEXT,
    originConversationId: TEXT,
    replyToConversationId: TEXT,
    historyBoundary: TEXT,
    routeName: TEXT,
    mode: fc.constantFrom(
      "reply" as const,
      "notify_if_actionable" as const,
      "silent" as const,
      "capture" as const,
    ),
    taskKey: TEXT,
    claimFingerprint: TEXT,
    createdAt: DATES,
    updatedAt: DATES,
    deadline: DATES,
    nextAttemptAt: DATES,
    leaseOwner: TEXT,
    leaseUntil: DATES,
    compactedAt: DATES,
    synthesisStartedAt: DATES,
    deliveryStartedAt: DATES,
    synthesisAttempts: COUNT,
    synthesisDeferrals: COUNT,
    deliveryAttempts: COUNT,
    originContextState: fc.constantFrom(
      "pending" as const,
      "pinned" as const,
      "abandoned" as const,
      "detached_latest" as const,
      "legacy_missing" as const,
      "scrubbed" as const,
    ),
    originContextRef: REF,
    originContextDigest: HEX,
    originContextMessageCount: fc.constantFrom(2, 64),
    originContextFingerprint: HEX,
    originContextBindingMac: HEX,
    completionKind: fc.constantFrom("synthesized" as const, "origin_context_unavailable" as const),
    resultIdempotencyKey: TEXT,
    resultPayloadHash: HEX,
    resultPayload: fc.jsonValue({ maxDepth: 3 }),
    synthesizedText: fc.oneof(fc.constant(""), TEXT),
    actionable: fc.boolean(),
    deliveryBindingMac: HEX,
    deliveryParts: fc.array(fc.record({ id: TEXT, at: DATES }), { maxLength: 2 }),
    timeline: fc.array(fc.record({ at: DATES, what: TEXT }), { maxLength: 70 }),
    lastError: fc.record({ code: TEXT, reason: fc.string(), at: DATES }),
    receipt: fc.record({
      kind: fc.constantFrom("delivered" as const, "silent" as const, "captured" as const),
      deliveredAt: DATES,
    }),
  },
  { requiredKeys: [] },
);
const STRANGE = fc
  .tuple(
    fc.constantFrom(...STATES),
    PATCH,
    fc.array(fc.constantFrom("resultPayload", "synthesizedText", "receipt")),
  )
  .map(([state, patch, dropped]) => {
    const record: Record<string, unknown> = { ...recordIn(state), ...patch, continuationId: "strange" };
    for (const key of dropped) delete record[key];
    return record as ContinuationRecord;
  });

describe("a strange record", () => {
  test(`one of ${RUNS}: is worked on, shown and stored without a fault, beside a healthy one`, async () => {
    let opened = 0;
    const ends = new Set<string>();
    await fc.assert(
      fc.asyncProperty(STRANGE, async (record) => {
        const fs = createMemoryFileSystem();
        const first = await createWorld({ fs });
        const healthy = await first.claimed("healthy");
        await first.submit(healthy);
        await first.store.close();
        fs.seed(`${STATE_DIR}/records-v3/${recordFileName("strange")}`, fileJson(record));
        const opening = first.restart();
        const world = await opening.catch((error: unknown) => {
          if (!(error instanceof StoreError)) throw error;
        });
        if (world === undefined) return;
        opened += 1;
        for (const group of world.service.origins.pending()) await world.service.origins.abandon(group);
        await world.service.startWorker();
        world.service.operator.health();
        const listed = world.service.operator.list({});
        if (!listed.ok) throw new Error(listed.refusal.code);
        world.service.operator.show("strange");
        for (let time = 0; time < 3; time += 1) {
          await idle(2);
          await world.settle();
          world.clock.advance(3_600_000);
        }
        await world.service.operator.retry("strange", { allowUnknown: true });
        await world.settle();
        await world.service.operator.cancel("strange");
        expect(world.store.fault()).toBeUndefined();
        expect(world.record(healthy.continuationId).state).toBe("delivered");
        ends.add(world.store.durable.get("strange")?.state ?? "dropped");
        await world.service.stop();
        await world.store.close();
        checkContinuationStore({ fs, stateDir: STATE_DIR });
        const again = await first.restart();
        expect(again.record(healthy.continuationId).state).toBe("delivered");
        await again.store.close();
      }),
      { numRuns: RUNS, seed: SEED },
    );
    expect(opened).toBeGreaterThan(RUNS / 2);
    expect(ends.size).toBeGreaterThan(4);
  }, 120_000);
});
