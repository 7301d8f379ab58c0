import { describe, expect, test } from "bun:test";
import type { ContinuationRecord } from "../../src/core/record.ts";
import type { OwedAnswer } from "../../src/core/wire.ts";
import {
  claimThrough,
  createWorld,
  tokenOf,
  type World,
  type WorldOptions,
} from "../support/continuation-world.ts";
import { claim } from "../support/store-harness.ts";

/** More promises than one page of `owed`. */

const HOUR_MS = 3_600_000;
/** Hours to the deadline of each promise; three share one. */
const HOURS = [5, 1, 3, 3, 3, 2, 4];

async function promised(options: WorldOptions = {}): Promise<{ world: World; ids: string[] }> {
  const world = await createWorld(options);
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
  const { world, ids } = await promised({ limits: { operatorPageSize: 4 } });
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

describe("dead letters", () => {
  /** Every third can be retried; of the others one has no text any more, and one has passed its deadline. */
  async function withDeadLetters(options: WorldOptions = {}): Promise<{ world: World; retryable: string[] }> {
    const { world } = await promised(options);
    const now = world.clock.now();
    const at = (ms: number) => new Date(now + ms).toISOString();
    const puts = Array.from({ length: 300 }, (_, number) =>
      claim(`dead-${String(number).padStart(3, "0")}`, {
        state: "dead_lettered",
        lastError: { code: "channel_not_found", reason: "gone", at: at(0) },
        // Three at a time, and all of them after the promises of one and two hours.
        deadline: at(number % 3 === 2 ? -1 : 2.5 * HOUR_MS + Math.floor(number / 9)),
        ...(number % 3 === 1 ? {} : { synthesizedText: "the answer" }),
      }),
    );
    await world.store.commit({ puts });
    return { world, retryable: puts.map((put) => put.continuationId).filter((_, index) => index % 3 === 0) };
  }

  test("that can be retried are owed among the others, and counted, also after a restart", async () => {
    const { world, retryable } = await withDeadLetters();
    const ids = walk(world, "17");
    expect(ids.slice(2, 102)).toEqual(retryable);
    expect(ids).toHaveLength(107);
    expect(page(world, {})).toMatchObject({ total: 107, needPerson: 100 });
    await world.service.stop();
    await world.store.close();
    const again = await world.restart();
    expect(walk(again, "100")).toEqual(ids);
    expect((await again.service.operator.retry(retryable[0] ?? "", {})).ok).toBe(true);
    expect(page(again, {})).toMatchObject({ total: 107, needPerson: 99 });
    again.clock.advance(2.5 * HOUR_MS);
    // Two of them have passed their deadline. So has what is retried, but the worker has not ended it yet.
    expect(page(again, {})).toMatchObject({ total: 105, needPerson: 97 });
  });

  test("are read only where they are shown", async () => {
    let read = 0;
    const counted = (records: ContinuationRecord[]) => {
      read += records.filter(({ state }) => state === "dead_lettered").length;
      return records;
    };
    const { world } = await withDeadLetters({
      wrapStore: (store) => ({
        ...store,
        durable: {
          ...store.durable,
          get: (id) => counted([store.durable.get(id)].flatMap((record) => record ?? [])).at(0),
          inStates: (states) => counted(store.durable.inStates(states)),
        },
      }),
    });
    expect(page(world, { limit: "5" }).total).toBe(107);
    expect(read).toBe(3);
  });
});
