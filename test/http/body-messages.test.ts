import { expect, test } from "bun:test";
import type { z } from "zod";
import { turnRequestSchema } from "../../src/core/turn.ts";
import {
  claimBodySchema,
  detachedClaimBodySchema,
  emptyBodySchema,
  resolveBodySchema,
  resultBodySchema,
  retryBodySchema,
} from "../../src/core/wire.ts";
import { readBody } from "../../src/http/body.ts";
import { createWorld, tokenOf, tryClaim } from "../support/continuation-world.ts";
import { createFakeClock } from "../support/fake-clock.ts";

/** What a service is told about a wrong field: a sentence about its body, never the words of a library. */

const DEADLINE = "2026-12-01T00:00:00Z";
const CLAIM = { taskKey: "k", taskHash: "h", deadline: DEADLINE };
const ZONE = "deadline must be an ISO 8601 timestamp with a zone, such as 2026-12-01T00:00:00Z";
const LENGTH = "must have 1 to 256 characters";
const LONG = "x".repeat(257);

const WRONG: [body: unknown, schema: z.ZodType, message: string][] = [
  [{ ...CLAIM, deadline: "2026-12-01T00:00:00" }, claimBodySchema, ZONE],
  [{ ...CLAIM, deadline: 5 }, claimBodySchema, ZONE],
  [{ ...CLAIM, deadline: "2026-02-30T00:00Z" }, claimBodySchema, ZONE],
  [{ ...CLAIM, deadline: "2026-12-01T00:00+01" }, claimBodySchema, ZONE],
  [{ ...CLAIM, deadline: "2026-12-01T0000Z" }, claimBodySchema, ZONE],
  [{ ...CLAIM, taskKey: "" }, claimBodySchema, `taskKey ${LENGTH}`],
  [{ ...CLAIM, taskHash: LONG }, claimBodySchema, `taskHash ${LENGTH}`],
  [{ ...CLAIM, taskKey: 1 }, claimBodySchema, "taskKey must be a text"],
  [{ taskKey: "k", deadline: DEADLINE }, claimBodySchema, "taskHash is missing"],
  [{ ...CLAIM, route: "" }, detachedClaimBodySchema, "route must have 1 to 128 characters"],
  [
    { ...CLAIM, route: "r", conversationId: "slack:C:T" },
    detachedClaimBodySchema,
    'the body must not have the field "conversationId"',
  ],
  [{ idempotencyKey: LONG, payload: 1 }, resultBodySchema, `idempotencyKey ${LENGTH}`],
  [
    { idempotencyKey: "i", payload: 1, payloadHash: 1 },
    resultBodySchema,
    "payloadHash must be 64 lower-case hex digits",
  ],
  [{ idempotencyKey: "i" }, resultBodySchema, "payload is missing"],
  [{ allowUnknown: "yes" }, retryBodySchema, "allowUnknown must be true or false"],
  [{ kind: "maybe" }, resolveBodySchema, "kind must be delivered, not_delivered or dead_lettered"],
  [{ kind: "delivered", deliveryId: "" }, resolveBodySchema, `deliveryId ${LENGTH}`],
  [{ why: 1 }, emptyBodySchema, 'the body must not have the field "why"'],
  [[], claimBodySchema, "the body must be a JSON object"],
  [{ requestId: "", text: "t" }, turnRequestSchema, `requestId ${LENGTH}`],
  [{ requestId: "r", text: "" }, turnRequestSchema, "text must not be empty"],
];

for (const [body, schema, message] of WRONG) {
  test(`${JSON.stringify(body).slice(0, 80)} is answered with: ${message}`, async () => {
    const request = new Request("http://localhost/", { method: "POST", body: JSON.stringify(body) });
    const read = await readBody(request, schema, { maxBytes: 4096, clock: createFakeClock() });
    expect(read.ok ? "accepted" : read.refusal.message).toBe(message);
  });
}

test.each([
  ["2026-12-01T00:00Z", "2026-12-01T00:00:00.000Z"],
  ["2026-12-01T00:00+01:00", "2026-11-30T23:00:00.000Z"],
  ["2026-12-01T00:00-0130", "2026-12-01T01:30:00.000Z"],
  ["2026-12-01T00:00:00+0100", "2026-11-30T23:00:00.000Z"],
  ["2026-12-01T00:00:00.25+01:00", "2026-11-30T23:00:00.250Z"],
])("the deadline %s is %s", async (deadline, normalised) => {
  const world = await createWorld();
  const claim = await tryClaim(world, tokenOf(world.run()), claimBodySchema.parse({ ...CLAIM, deadline }));
  expect(claim).toMatchObject({ ok: true, value: { expiresAt: normalised } });
});
