import { describe, expect, test } from "bun:test";
import { McpError } from "../../src/core/errors.ts";
import {
  type ClientPool,
  createClientPool,
  IDLE_CLOSE_MS,
  type PoolOptions,
} from "../../src/mcp/client-pool.ts";
import type { Connection } from "../../src/mcp/connection.ts";
import { RESTART_BASE_MS, RESTART_CAP_MS, STABLE_AFTER_MS } from "../../src/mcp/restart-delays.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { never } from "../support/mcp-host.ts";
import { silentLogger } from "../support/silent-logger.ts";

interface FakeClient extends Connection {
  readonly closed: () => boolean;
  /** How often it was asked for its list after the first. */
  readonly asked: () => number;
  /** The server is gone. */
  lose(): void;
}

interface World {
  readonly pool: ClientPool;
  readonly clock: ReturnType<typeof createFakeClock>;
  /** Every client that was made, in order. */
  readonly made: FakeClient[];
  /** While true, servers can't be reached. */
  down: boolean;
  /** While true, servers can be reached but don't list their tools. */
  mute: boolean;
  /** While set, a connect waits for it. */
  gate: Promise<void> | undefined;
}

const SPEC = { command: "x" };

function client(server: string, world: Pick<World, "down" | "mute" | "gate">): FakeClient {
  let open = false;
  let closed = false;
  let asked = 0;
  const listing = () => ({ tools: [], warnings: [], failed: !open || world.mute });
  return {
    server,
    async connect() {
      await world.gate;
      open = !world.down && !closed;
      return listing();
    },
    async list() {
      asked += 1;
      return listing();
    },
    call: async () => ({ text: "", isError: false }),
    isOpen: () => open && !closed,
    about: () => undefined,
    async close() {
      closed = true;
    },
    closed: () => closed,
    asked: () => asked,
    lose() {
      open = false;
    },
  };
}

function world(over: Partial<PoolOptions> = {}): World {
  const clock = createFakeClock();
  const made: FakeClient[] = [];
  const state = { down: false, mute: false, gate: undefined as Promise<void> | undefined };
  const pool = createClientPool({
    create(server) {
      const next = client(server, state);
      made.push(next);
      return next;
    },
    clock,
    logger: silentLogger,
    ...over,
  });
  return Object.assign(state, { pool, clock, made });
}

describe("a shared client", () => {
  test("serves every run, is kept while it idles, and is closed when it idled for long", async () => {
    const { pool, clock, made } = world();
    const [first, second] = await Promise.all([pool.borrow("a", SPEC, never), pool.borrow("a", SPEC, never)]);
    expect(first.connection).toBe(second.connection as Connection);
    await first.release();
    await first.release();
    clock.advance(IDLE_CLOSE_MS);
    expect(made[0]?.closed()).toBe(false);
    await second.release();
    clock.advance(IDLE_CLOSE_MS - 1);
    await (await pool.borrow("a", SPEC, never)).release();
    clock.advance(IDLE_CLOSE_MS - 1);
    expect(made.map((each) => each.closed())).toEqual([false]);
    clock.advance(1);
    expect(made.map((each) => each.closed())).toEqual([true]);
    await pool.borrow("a", SPEC, never);
    expect(made.length).toBe(2);
  });

  test("that a rotation retires serves who has it to the end, while later runs get a new one", async () => {
    const { pool, made } = world();
    const old = await pool.borrow("a", SPEC, never);
    const idle = await pool.borrow("b", SPEC, never);
    await idle.release();
    pool.rotate();
    expect(made.map((each) => each.closed())).toEqual([false, true]);
    const next = await pool.borrow("a", SPEC, never);
    expect(next.connection).not.toBe(old.connection as Connection);
    expect(old.connection?.isOpen()).toBe(true);
    await old.release();
    expect(made.map((each) => each.closed())).toEqual([true, true, false]);
  });

  test("that is rotated while it connects still reaches who waits for it, and ends after them", async () => {
    const it = world();
    const gate = Promise.withResolvers<void>();
    it.gate = gate.promise;
    const waiting = it.pool.borrow("a", SPEC, never);
    it.pool.rotate();
    gate.resolve();
    const loan = await waiting;
    expect(loan.connection?.isOpen()).toBe(true);
    await loan.release();
    expect(it.made[0]?.closed()).toBe(true);
  });

  test("is not ended by the abort of one run that waits for it", async () => {
    const it = world();
    const gate = Promise.withResolvers<void>();
    it.gate = gate.promise;
    const controller = new AbortController();
    const first = it.pool.borrow("a", SPEC, controller.signal).catch((error: unknown) => error);
    const second = it.pool.borrow("a", SPEC, never);
    controller.abort();
    expect(await first).toBeInstanceOf(McpError);
    gate.resolve();
    expect((await second).connection?.isOpen()).toBe(true);
    expect(it.made.length).toBe(1);
  });
});

describe("a server that fails", () => {
  test("is started again at once, then after a delay that doubles up to a cap", async () => {
    const it = world();
    const attempt = async () => (await it.pool.borrow("a", SPEC, never)).listing.warnings[0]?.message;
    it.down = true;
    await attempt();
    await attempt();
    expect(it.made.length).toBe(2);
    for (let delay = RESTART_BASE_MS; delay < RESTART_CAP_MS * 4; delay *= 2) {
      const wait = Math.min(delay, RESTART_CAP_MS);
      const before = it.made.length;
      it.clock.advance(wait - 1);
      expect(await attempt()).toContain("it is started again in 1 s");
      expect(it.made.length).toBe(before);
      it.clock.advance(1);
      await attempt();
      expect(it.made.length).toBe(before + 1);
    }
    expect(it.made.every((each) => each.closed())).toBe(true);
  });

  test("that is one run's own waits in the same way, until it works again", async () => {
    const it = world();
    const attempt = async () => {
      const own = client("own", it);
      const loan = await it.pool.open(own, never);
      await loan.release();
      return loan.listing;
    };
    it.down = true;
    for (let round = 0; round < 2; round += 1) expect((await attempt()).warnings).toEqual([]);
    expect((await attempt()).warnings[0]?.message).toBe("own: it failed; it is started again in 1 s");
    it.clock.advance(RESTART_BASE_MS);
    it.down = false;
    expect((await attempt()).failed).toBe(false);
    it.down = true;
    for (let round = 0; round < 2; round += 1) expect((await attempt()).warnings).toEqual([]);
  });

  test("in the calls of a run waits in the same way, however well it starts", async () => {
    const it = world();
    const crash = async () => {
      const own = client("own", it);
      const loan = await it.pool.open(own, never);
      own.lose();
      await loan.release();
      return loan.listing.warnings[0]?.message;
    };
    expect([await crash(), await crash()]).toEqual([undefined, undefined]);
    expect(await crash()).toBe("own: it failed; it is started again in 1 s");
    it.clock.advance(RESTART_BASE_MS);
    expect(await crash()).toBeUndefined();
    expect(await crash()).toBe("own: it failed; it is started again in 2 s");
    it.clock.advance(2 * RESTART_BASE_MS);
    await (await it.pool.open(client("own", it), never)).release();
    expect([await crash(), await crash()]).toEqual([undefined, undefined]);
    expect(await crash()).toContain("it is started again in 1 s");
  });

  test("in the calls of several runs at once has failed once, and an older client proves nothing new", async () => {
    const it = world();
    const older = await it.pool.open(client("own", it), never);
    it.clock.advance(1);
    for (let round = 0; round < 2; round += 1) {
      const owns = [1, 2, 3].map(() => client("own", it));
      const loans = await Promise.all(owns.map((own) => it.pool.open(own, never)));
      it.clock.advance(1);
      for (const own of owns) own.lose();
      for (const loan of loans) await loan.release();
    }
    await older.release();
    const { listing } = await it.pool.open(client("own", it), never);
    expect(listing.warnings[0]?.message).toBe("own: it failed; it is started again in 1 s");
  });

  test("for several runs at once has failed once", async () => {
    const it = world();
    const gate = Promise.withResolvers<void>();
    it.down = true;
    it.gate = gate.promise;
    const attempt = async () => (await it.pool.open(client("own", it), never)).listing.warnings;
    const waiting = Array.from({ length: 5 }, attempt);
    it.clock.advance(1);
    gate.resolve();
    await Promise.all(waiting);
    expect(await attempt()).toEqual([]);
    expect((await attempt())[0]?.message).toBe("own: it failed; it is started again in 1 s");
  });

  test("for a run that began before another one reached it is not counted", async () => {
    const it = world();
    const gate = Promise.withResolvers<void>();
    const attempt = async () => (await it.pool.open(client("own", it), never)).listing;
    it.gate = gate.promise;
    const slow = attempt();
    it.gate = undefined;
    it.clock.advance(1);
    expect((await attempt()).failed).toBe(false);
    it.down = true;
    gate.resolve();
    expect((await slow).failed).toBe(true);
    for (let round = 0; round < 2; round += 1) expect((await attempt()).warnings).toEqual([]);
  });

  test("is not counted when the run itself was aborted", async () => {
    const it = world();
    it.down = true;
    for (let round = 0; round < 3; round += 1) await it.pool.open(client("own", it), AbortSignal.abort());
    expect((await it.pool.open(client("own", it), never)).listing.warnings).toEqual([]);
  });

  test("by being silent until the limit is not taken for one that stayed up", async () => {
    const it = world();
    it.down = true;
    for (let round = 0; round < 2; round += 1) {
      const gate = Promise.withResolvers<void>();
      it.gate = gate.promise;
      const waiting = it.pool.borrow("a", SPEC, never);
      it.clock.advance(STABLE_AFTER_MS);
      gate.resolve();
      await waiting;
    }
    const { listing } = await it.pool.borrow("a", SPEC, never);
    expect(listing.warnings[0]?.message).toContain("it is started again in");
  });

  test("by not listing its tools is closed, and waits as if it could not be reached", async () => {
    const it = world();
    const attempt = async () => it.pool.borrow("a", SPEC, never);
    it.mute = true;
    for (let round = 0; round < 2; round += 1) expect((await attempt()).connection).toBeUndefined();
    expect(it.made.map((each) => each.closed())).toEqual([true, true]);
    expect((await attempt()).listing.warnings[0]?.message).toContain("it is started again in 1 s");
    it.clock.advance(RESTART_BASE_MS);
    it.mute = false;
    const loan = await attempt();
    it.mute = true;
    expect((await attempt()).connection).toBeUndefined();
    expect(it.made.at(-1)?.closed()).toBe(false);
    await loan.release();
    expect(it.made.at(-1)?.closed()).toBe(true);
  });

  test("to list its tools is not asked again by a run that waited for that answer", async () => {
    const it = world();
    it.mute = true;
    const both = [it.pool.borrow("a", SPEC, never), it.pool.borrow("a", SPEC, never)];
    for (const loan of await Promise.all(both)) expect(loan.connection).toBeUndefined();
    expect(it.made.map((each) => each.asked())).toEqual([0]);
  });

  test("to list its tools while nobody waits is asked again by the next run", async () => {
    const it = world();
    it.down = true;
    for (let round = 0; round < 2; round += 1) await it.pool.borrow("a", SPEC, never);
    it.clock.advance(RESTART_BASE_MS);
    it.down = false;
    const gate = Promise.withResolvers<void>();
    it.gate = gate.promise;
    const controller = new AbortController();
    const aborted = it.pool.borrow("a", SPEC, controller.signal).catch((error: unknown) => error);
    controller.abort();
    expect(await aborted).toBeInstanceOf(McpError);
    it.mute = true;
    gate.resolve();
    for (let turn = 0; turn < 20; turn += 1) await Promise.resolve();
    expect(it.made[2]?.isOpen()).toBe(true);
    it.mute = false;
    const loan = await it.pool.borrow("a", SPEC, never);
    expect(loan.listing.failed).toBe(false);
    expect(it.made.length).toBe(3);
    // From then on it counts as up.
    it.clock.advance(STABLE_AFTER_MS);
    it.made.at(-1)?.lose();
    expect((await it.pool.borrow("a", SPEC, never)).connection?.isOpen()).toBe(true);
  });

  test.each([
    ["idled", async ({ clock }) => clock.advance(IDLE_CLOSE_MS)],
    ["gave way", async ({ pool }) => (await pool.borrow("b", SPEC, never)).release()],
  ] satisfies [string, (it: World) => Promise<void>][])(
    "and then worked until it %s counts as new",
    async (_how, end) => {
      const it = world({ maxClients: 1 });
      it.down = true;
      for (let round = 0; round < 2; round += 1) await it.pool.borrow("a", SPEC, never);
      it.clock.advance(RESTART_BASE_MS);
      it.down = false;
      await (await it.pool.borrow("a", SPEC, never)).release();
      await end(it);
      expect(it.made[2]?.closed()).toBe(true);
      it.down = true;
      for (let round = 0; round < 2; round += 1)
        expect((await it.pool.borrow("a", SPEC, never)).listing.warnings).toEqual([]);
    },
  );

  test("while it idles does not count as new when the idling ends", async () => {
    const it = world();
    it.down = true;
    for (let round = 0; round < 2; round += 1) await it.pool.borrow("a", SPEC, never);
    it.clock.advance(RESTART_BASE_MS);
    it.down = false;
    await (await it.pool.borrow("a", SPEC, never)).release();
    it.made.at(-1)?.lose();
    it.clock.advance(IDLE_CLOSE_MS);
    it.down = true;
    await it.pool.borrow("a", SPEC, never);
    const { listing } = await it.pool.borrow("a", SPEC, never);
    expect(listing.warnings[0]?.message).toContain("it is started again in");
  });

  test("after a rotation is started at once", async () => {
    const it = world();
    it.down = true;
    for (let round = 0; round < 5; round += 1) await it.pool.borrow("a", SPEC, never);
    it.down = false;
    it.pool.rotate();
    expect((await it.pool.borrow("a", SPEC, never)).connection?.isOpen()).toBe(true);
  });

  test("that was lost is replaced for the next run; who has it keeps it until the release", async () => {
    const it = world();
    const lost = await it.pool.borrow("a", SPEC, never);
    it.made[0]?.lose();
    const [one, two] = await Promise.all([
      it.pool.borrow("a", SPEC, never),
      it.pool.borrow("a", SPEC, never),
    ]);
    expect(one.connection).toBe(two.connection as Connection);
    expect(it.made.length).toBe(2);
    expect(it.made[0]?.closed()).toBe(false);
    await lost.release();
    expect(it.made[0]?.closed()).toBe(true);
  });

  test("and stayed up long enough in between counts as new", async () => {
    const it = world();
    it.down = true;
    for (let round = 0; round < 2; round += 1) await it.pool.borrow("a", SPEC, never);
    it.clock.advance(RESTART_BASE_MS);
    it.down = false;
    await it.pool.borrow("a", SPEC, never);
    it.clock.advance(STABLE_AFTER_MS);
    it.made.at(-1)?.lose();
    expect((await it.pool.borrow("a", SPEC, never)).connection?.isOpen()).toBe(true);
  });
});

describe("the bound", () => {
  test("lets an idle client give way, and refuses a new one when all are in use", async () => {
    const it = world({ maxClients: 2 });
    const a = await it.pool.borrow("a", SPEC, never);
    const own = await it.pool.open(client("own", it), never);
    const refused = await it.pool.borrow("b", SPEC, never);
    expect(refused.listing.warnings[0]?.message).toBe("b: 2 clients are in use already");
    expect((await it.pool.open(client("c", it), never)).listing.failed).toBe(true);
    await a.release();
    expect((await it.pool.borrow("b", SPEC, never)).connection?.isOpen()).toBe(true);
    expect(it.made.map((each) => each.closed())).toEqual([true, false]);
    await own.release();
    expect((await it.pool.borrow("a", SPEC, never)).connection?.isOpen()).toBe(true);
  });
});

test("the client of one run ends with the run, and a close ends every client", async () => {
  const it = world();
  const own = client("own", it);
  await (await it.pool.open(own, never)).release();
  expect(own.closed()).toBe(true);
  const lent = await it.pool.borrow("a", SPEC, never);
  const other = client("own", it);
  await it.pool.open(other, never);
  await it.pool.close();
  expect([other.closed(), it.made[0]?.closed()]).toEqual([true, true]);
  await lent.release();
  expect((await it.pool.borrow("a", SPEC, never)).listing.failed).toBe(true);
});
