import { expect, test } from "bun:test";
import type { OwedAnswer } from "../../src/core/wire.ts";
import { claimThrough, createWorld, tokenOf, type World } from "../support/continuation-world.ts";

/** More promises than one page of `owed`. */

const HOUR_MS = 3_600_000;
/** Hours to the deadline of each promise; three share one. */
const HOURS = [5, 1, 3, 3, 3, 2, 4];

async function promised(limits = {}): Promise<{ world: World; ids: string[] }> {
  const world = await createWorld({ limits });
  const token = tokenOf(world.run());
  const claims: { id: string; deadline: string }[] = [];
  for (const [index, hours] of HOURS.entries()) {
    const deadline = new Date(world.clock.now() + hours * HOUR_MS).toISOString();
    const { continuationId: id } = await claimThrough(world, token, { taskKey: `task ${index}`, deadline });
    claims.push({ id, deadline });
  }
  claims.sort((a, b) => a.deadline.localeCompare(b.deadline) || (a.id < b.id ? -1 : 1));
  return { world, ids: claims.map(({ id }) => id) };
}

const page = (world: World, query: { limit?: string; cursor?: string }): OwedAnswer => {
  const answer = world.service.operator.owed(query);
  if (!answer.ok) throw new Error(answer.refusal.code);
  return answer.value;
};

function walk(world: World, limit: string): string[] {
  const seen: string[] = [];
  let cursor: string | undefined;
  do {
    const answer = page(world, { limit, ...(cursor === undefined ? {} : { cursor }) });
    seen.push(...answer.owed.map(({ continuationId }) => continuationId));
    cursor = answer.nextCursor;
  } while (cursor !== undefined);
  return seen;
}

test("pages of any size show each promise once, by deadline and then by id, and each page counts all", async () => {
  const { world, ids } = await promised();
  for (const limit of ["1", "2", "3", "6", "7", "100"]) expect(walk(world, limit)).toEqual(ids);
  const first = page(world, { limit: "2" });
  const second = page(world, { limit: "2", cursor: first.nextCursor ?? "" });
  expect([first.total, second.total]).toEqual([7, 7]);
  expect(page(world, { limit: "7" }).nextCursor).toBeUndefined();
});

test("the host's page size is the default, and what it leaves out is behind the cursor", async () => {
  const { world, ids } = await promised({ operatorPageSize: 4 });
  const first = page(world, {});
  expect([first.owed.length, first.total]).toEqual([4, 7]);
  const rest = page(world, { cursor: first.nextCursor ?? "" });
  expect([...first.owed, ...rest.owed].map(({ continuationId }) => continuationId)).toEqual(ids);
});

test("a promise that is kept between two pages, also the last one shown, hides no other", async () => {
  const { world, ids } = await promised();
  const first = page(world, { limit: "3" });
  const last = first.owed[2]?.continuationId ?? "";
  expect((await world.service.operator.cancel(last)).ok).toBe(true);
  const second = page(world, { limit: "4", cursor: first.nextCursor ?? "" });
  expect(second.owed.map(({ continuationId }) => continuationId)).toEqual(ids.slice(3));
  expect(second.nextCursor).toBeUndefined();
  expect(second.total).toBe(6);
});

test("a cursor that is none is refused", async () => {
  const { world } = await promised();
  for (const cursor of ["", "x", "a b", Buffer.from('["then","id"]').toString("base64url")]) {
    const answer = world.service.operator.owed({ cursor });
    expect(answer.ok || answer.refusal.code).toBe("invalid_page_cursor");
  }
});
