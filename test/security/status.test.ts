import { expect, test } from "bun:test";
import { detailOf, healthOf, owedOf, statusOf, watchEventOf } from "../../src/continuation/status.ts";
import { type ContinuationRecord, type ContinuationState, STATES } from "../../src/core/record.ts";
import { healthSchema, owedItemSchema, statusDetailSchema, statusSchema } from "../../src/core/wire.ts";
import { createWorld } from "../support/continuation-world.ts";
import { NOW_MS, recordIn } from "../support/records.ts";

/** What anybody may see of a record, in every state and every state of its origin context; and the rules of health. */

/** Private in every record that can hold it. */
const PRIVATE: Partial<ContinuationRecord> = {
  replyToConversationId: "canary:destination",
  originConversationId: "canary:origin",
  originRunId: "canary-run",
  taskHash: "canary-hash",
  claimFingerprint: "canary-fingerprint",
  resultTokenHash: "canary-token-hash",
  resultIdempotencyKey: "canary-key",
  resultPayload: { note: "canary-payload" },
  synthesizedText: "canary-text",
  leaseOwner: "canary-owner",
  historyBoundary: "canary-boundary",
  originContextBindingMac: "canary-mac",
  deliveryBindingMac: "canary-delivery-mac",
  routeName: "canary-route",
};

const NOTHING_HELD = { has: () => false, size: 0 };
const ALL_HELD = { has: () => true, size: 1 };

test("no view of a record shows anything private, in any state", () => {
  for (const state of STATES) {
    for (const originContextState of [
      "pending",
      "pinned",
      "abandoned",
      "detached_latest",
      "legacy_missing",
      "scrubbed",
    ] as const) {
      const record = { ...recordIn(state), ...PRIVATE, originContextState };
      const status = statusOf(record);
      expect(statusSchema.strict().safeParse(status).success).toBe(true);
      expect([status.state, status.originContext.state]).toEqual([state, originContextState]);
      expect(JSON.stringify([status, watchEventOf(record)])).not.toContain("canary");
      for (const held of [NOTHING_HELD, ALL_HELD]) {
        const detail = detailOf(record, NOW_MS, held);
        const owed = owedOf(record, NOW_MS, held);
        expect(statusDetailSchema.strict().safeParse(detail).success).toBe(true);
        expect(owedItemSchema.strict().safeParse(owed).success).toBe(true);
        expect(JSON.stringify([detail, owed])).not.toContain("canary");
      }
    }
  }
});

test("health is unhealthy for what needs a person, degraded for what is open or expired, else healthy", async () => {
  const { store } = await createWorld();
  const none = Object.fromEntries(STATES.map((state) => [state, 0])) as Record<ContinuationState, number>;
  const health = (
    counts: Partial<Record<ContinuationState, number>>,
    { active = 0, historyDegraded = 0, fault = false } = {},
  ) =>
    healthOf(
      {
        ...store,
        fault: () => (fault ? { code: "store_write_failed", since: "2026-11-30T12:00:00.000Z" } : undefined),
        durable: {
          ...store.durable,
          counts: () => ({ ...none, ...counts }),
          active: () => active,
          stats: () => ({ ...store.durable.stats(), historyDegraded }),
        },
      },
      NOW_MS,
      NOTHING_HELD,
    );
  const table = [
    [health({}), "healthy"],
    [health({ delivered: 5, cancelled: 2 }), "healthy"],
    [health({ claimed: 1 }, { active: 1 }), "degraded"],
    [health({ delivery_retry: 1 }, { active: 1 }), "degraded"],
    [health({ expired: 1 }), "degraded"],
    [health({ delivered: 1 }, { historyDegraded: 1 }), "degraded"],
    [health({ dead_lettered: 1 }), "unhealthy"],
    [health({ delivery_unknown: 1 }), "unhealthy"],
    [health({ expired: 1, delivery_unknown: 1 }, { active: 1, historyDegraded: 1 }), "unhealthy"],
    [health({}, { fault: true }), "unhealthy"],
  ] as const;
  for (const [seen, status] of table) {
    expect([seen.counts, seen.status]).toEqual([seen.counts, status]);
    expect(healthSchema.safeParse(seen).success).toBe(true);
  }
});
