import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { isJsonObject, type JsonObject } from "../../src/core/json.ts";
import { MODES, ORIGIN_CONTEXT_STATES, recordSchema, STATES } from "../../src/core/record.ts";
import { fitsRecord } from "../../src/core/record-check.ts";
import { claimedRecord } from "../support/records.ts";

/** The fast check and the schema give the same answer, on records and on whatever a damaged file may hold. */

const hex64 = fc.stringMatching(/^[0-9a-f]{64}$/);
const text = fc.string({ minLength: 1, maxLength: 12 });
const date = fc.oneof(
  fc.date({ noInvalidDate: true }).map((at) => at.toISOString()),
  fc.constantFrom("2026-11-30", "Mon, 30 Nov 2026 03:00:00 GMT", "+020000-01-01T00:00:00.000Z"),
);
const count = fc.nat({ max: 1000 });
const maybe = <T>(arbitrary: fc.Arbitrary<T>) => fc.option(arbitrary, { nil: undefined });

const record = fc
  .record({
    continuationId: text,
    serverName: text,
    originRunId: text,
    originConversationId: text,
    mode: fc.constantFrom(...MODES),
    taskKey: text,
    taskHash: text,
    claimFingerprint: text,
    resultTokenHash: hex64,
    createdAt: date,
    updatedAt: date,
    deadline: date,
    state: fc.constantFrom(...STATES),
    synthesisAttempts: count,
    deliveryAttempts: count,
    originContextState: fc.constantFrom(...ORIGIN_CONTEXT_STATES),
    synthesisDeferrals: count,
    replyToConversationId: maybe(text),
    historyBoundary: maybe(text),
    routeName: maybe(text),
    originContextRef: maybe(
      fc.record({
        schemaVersion: fc.constant(1),
        digest: hex64,
        bytes: fc.integer({ min: 1, max: 256 * 1024 }),
        messageCount: fc.integer({ min: 2, max: 64 }),
      }),
    ),
    originContextDigest: maybe(hex64),
    originContextMessageCount: maybe(fc.integer({ min: 2, max: 64 })),
    originContextFingerprint: maybe(hex64),
    originContextBindingMac: maybe(hex64),
    completionKind: maybe(fc.constantFrom("synthesized", "origin_context_unavailable")),
    resultIdempotencyKey: maybe(text),
    resultPayloadHash: maybe(hex64),
    resultPayload: maybe(fc.jsonValue()),
    synthesisStartedAt: maybe(date),
    synthesizedText: maybe(fc.string({ maxLength: 9 })),
    actionable: maybe(fc.boolean()),
    deliveryStartedAt: maybe(date),
    nextAttemptAt: maybe(date),
    leaseOwner: maybe(text),
    leaseUntil: maybe(date),
    compactedAt: maybe(date),
    lastError: maybe(fc.record({ code: text, reason: fc.string({ maxLength: 9 }), at: date })),
    receipt: maybe(
      fc.record(
        {
          kind: fc.constantFrom("delivered", "suppressed", "captured", "silent"),
          deliveredAt: date,
          deliveryId: text,
          channelId: text,
          historyRecorded: fc.boolean(),
          historyErrorCode: fc.string({ minLength: 1, maxLength: 130 }),
          proof: fc.record({ by: text, at: date, evidence: text }),
        },
        { requiredKeys: ["kind", "deliveredAt"] },
      ),
    ),
    deliveryBindingMac: maybe(hex64),
    deliveryParts: maybe(fc.array(fc.record({ id: text, at: date }), { maxLength: 3 })),
    timeline: maybe(
      fc.array(fc.record({ at: date, what: text, code: text }, { requiredKeys: ["at", "what"] }), {
        maxLength: 3,
      }),
    ),
  })
  // As a file gives it.
  .map((it): JsonObject => JSON.parse(JSON.stringify(it)));

/** What may stand where something else belongs. */
const WRONG = [
  null,
  "",
  "x",
  "f".repeat(64),
  "F".repeat(64),
  "2026-13-01",
  0,
  -0,
  -1,
  1,
  2,
  1.5,
  65,
  1e300,
  true,
];
const wrong = fc.oneof(
  fc.constantFrom(...WRONG, 262_144, 262_145, 9007199254740992),
  fc.constantFrom([], {}, [[]], [{}], [null], { kind: "delivered" }, { at: "2026-11-30", what: "x" }),
  fc.jsonValue(),
);

/** Changes, adds or removes one member somewhere in the value. */
function mutate(value: JsonObject, at: number, key: string, put: unknown): JsonObject {
  const copy: JsonObject = structuredClone(value);
  const places: JsonObject[] = [copy];
  for (const place of places) {
    for (const member of Object.values(place)) {
      if (isJsonObject(member)) places.push(member);
      else if (Array.isArray(member)) places.push(...member.filter(isJsonObject));
    }
  }
  const place = places[at % places.length]!;
  const keys = Object.keys(place);
  const name = key === "" ? (keys[at % Math.max(1, keys.length)] ?? "x") : key;
  if (put === undefined) delete place[name];
  else
    Object.defineProperty(place, name, { value: put, enumerable: true, configurable: true, writable: true });
  return copy;
}

function agree(value: JsonObject): boolean {
  const expected = recordSchema.safeParse(value).success;
  expect({ value, fits: fitsRecord(value) }).toEqual({ value, fits: expected });
  return expected;
}

describe("the fast check of a record", () => {
  test("agrees with the schema on records with every optional field there or not", () => {
    let accepted = 0;
    fc.assert(
      fc.property(record, (value) => {
        if (agree(value)) accepted += 1;
      }),
      { numRuns: 2_000 },
    );
    expect(accepted).toBeGreaterThan(500);
  }, 60_000);

  test("agrees with the schema on records with one member changed, added or taken away", () => {
    let accepted = 0;
    let refused = 0;
    const names = fc.constantFrom(
      "",
      "",
      "",
      "__proto__",
      "constructor",
      "extra",
      "code",
      "proof",
      "historyRecorded",
      "historyErrorCode",
      ...Object.keys(recordSchema.shape),
    );
    fc.assert(
      fc.property(record, fc.nat(), names, fc.option(wrong, { nil: undefined }), (value, at, key, put) => {
        if (agree(mutate(value, at, key, put))) accepted += 1;
        else refused += 1;
      }),
      { numRuns: 6_000 },
    );
    expect(Math.min(accepted, refused)).toBeGreaterThan(500);
  }, 60_000);

  test("agrees with the schema on each field of a record with each wrong value in turn", () => {
    const base = JSON.parse(JSON.stringify(claimedRecord({})));
    for (const key of Object.keys(recordSchema.shape)) {
      for (const value of [...WRONG, [], {}, [{}], [[]], [null]]) agree({ ...base, [key]: value });
      const { [key]: _left, ...without } = base;
      agree(without);
    }
  });
});
