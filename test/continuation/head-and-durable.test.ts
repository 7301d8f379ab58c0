import { expect, test } from "bun:test";
import type { ClaimAnswer } from "../../src/core/wire.ts";
import { createMemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import {
  claimBody,
  createWorld,
  idle,
  tokenOf,
  tryClaim,
  type World,
} from "../support/continuation-world.ts";
import { HOUR_MS, held } from "./settlement-rig.ts";

/**
 * Rule 1 of protocol.md: what is decided on a state that is not on the disk yet, also a refusal, is answered only when
 * it is. Else a power cut could take back what somebody was told.
 */

interface Given {
  readonly world: World;
  readonly answer: ClaimAnswer;
  /** The token of the run that claimed, and what it claimed with. */
  readonly token: string;
  readonly body: ReturnType<typeof claimBody>;
}
type Act = (given: Given) => Promise<unknown>;

const claim =
  (taskKey: string, patch: { taskHash?: string } = {}): Act =>
  ({ world, token, body }) =>
    tryClaim(world, token, { ...body, taskKey, ...patch });

const put =
  (idempotencyKey: string): Act =>
  async ({ world, answer }) => {
    const entry = world.service.results.authenticate(answer.continuationId, answer.token);
    return entry.ok ? entry.value.submit({ idempotencyKey, payload: "done" }) : entry;
  };

const cancel: Act = ({ world, answer }) => world.service.operator.cancel(answer.continuationId);
const retry: Act = ({ world, answer }) => world.service.operator.retry(answer.continuationId, {});
const resolve: Act = ({ world, answer }) =>
  world.service.operator.resolve(answer.continuationId, { kind: "not_delivered" });
const late =
  (act: Act): Act =>
  (given) => {
    given.world.clock.advance(HOUR_MS);
    return act(given);
  };

const accepted = { ok: true };
const refusedAs = (code: string) => ({ ok: false, refusal: { code } });

test.each<[string, Act, Act, object]>([
  ["an equal claim", claim("new"), claim("new"), { ok: true, value: { replayed: true } }],
  [
    "another claim of the same key",
    claim("new"),
    claim("new", { taskHash: "?" }),
    refusedAs("claim_conflict"),
  ],
  ["an equal result", put("key"), put("key"), { ok: true, value: { state: "result_received" } }],
  ["a result with another key", put("key"), put("other"), refusedAs("result_conflict")],
  ["a second cancel", cancel, cancel, accepted],
  ["a result after a cancel", cancel, put("key"), refusedAs("result_not_accepted")],
  ["a result after an expiry", late(put("key")), put("other"), refusedAs("continuation_expired")],
  ["a retry", put("key"), retry, refusedAs("not_retryable")],
  ["a resolution", put("key"), resolve, refusedAs("not_delivery_unknown")],
  ["a cancel after an expiry", late(put("key")), cancel, refusedAs("already_terminal")],
])("%s is answered only when what it rests on is on the disk", async (_, first, second, expected) => {
  const fs = createMemoryFileSystem();
  const world = await createWorld({ fs });
  const token = tokenOf(world.run());
  const body = claimBody(world);
  const claimed = await tryClaim(world, token, body);
  if (!claimed.ok) throw new Error(claimed.refusal.code);
  const given = { world, answer: claimed.value, token, body };
  const gate = held(fs, "transaction.sync");
  const answered: string[] = [];
  const one = first(given).finally(() => answered.push("first"));
  await gate.reached;
  const two = second(given).finally(() => answered.push("second"));
  await idle();
  expect(answered).toEqual([]);
  gate.open();
  expect(await two).toMatchObject(expected);
  await one;
  // With the commit alone: the answer waited for no other write.
  expect(answered).toEqual(["first", "second"]);
});
