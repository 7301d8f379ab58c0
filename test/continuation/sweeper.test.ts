import { describe, expect, test } from "bun:test";
import { createSweeper } from "../../src/continuation/sweeper.ts";
import { StoreError } from "../../src/core/errors.ts";
import { DAY_MS, HOUR_MS, RETENTION_SWEEP_MS, retentionSchema } from "../../src/core/limits.ts";
import { createMemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { createWorld, idle } from "../support/continuation-world.ts";
import { createFakeClock, type FakeClock } from "../support/fake-clock.ts";
import { NOW_MS, recordIn } from "../support/records.ts";
import { createRecordingLogger, silentLogger } from "../support/silent-logger.ts";
import { claim, openStore } from "../support/store-harness.ts";

/** Retention by age in a host in which nothing is committed. */

const RETENTION = retentionSchema.parse({});
const CAPTURED = { mode: "capture", synthesizedText: "kept", state: "delivered" } as const;

/** Time goes on by hours, and what each of them starts comes to its end. */
async function hours(clock: FakeClock, count: number): Promise<void> {
  for (let hour = 0; hour < count; hour += 1) {
    clock.advance(HOUR_MS);
    await idle();
  }
}

describe("a host without commits", () => {
  test("keeps texts for 30 days and tombstones for 365, and not an hour longer", async () => {
    const world = await createWorld({ clock: createFakeClock(NOW_MS), retention: RETENTION });
    await world.store.commit({
      puts: [claim("captured", CAPTURED), recordIn("dead_lettered", { continuationId: "dead" })],
    });
    const texts = () => ["captured", "dead"].map((id) => world.store.durable.get(id)?.synthesizedText);
    await world.service.recover();
    await hours(world.clock, 30 * 24);
    expect(texts()).toEqual(["kept", "the answer"]);
    await hours(world.clock, 1);
    expect(texts()).toEqual([undefined, undefined]);
    expect(world.store.durable.stats().records).toBe(2);
    await hours(world.clock, 335 * 24 - 1);
    expect(world.store.durable.stats().records).toBe(2);
    await hours(world.clock, 1);
    expect(world.store.durable.stats().records).toBe(0);
    await world.service.stop();
    await world.store.close();
    const again = await world.restart();
    expect(again.store.durable.stats().records).toBe(0);
  });

  test("writes nothing while nothing is beyond a limit", async () => {
    const fs = createMemoryFileSystem();
    const world = await createWorld({ fs, clock: createFakeClock(NOW_MS), retention: RETENTION });
    await world.store.commit({ puts: [claim("captured", CAPTURED)] });
    await world.service.startWorker();
    await hours(world.clock, 1);
    const before = { ...fs.counts };
    await hours(world.clock, 100);
    expect(fs.counts).toEqual(before);
  });

  test("stands still after a stop", async () => {
    const world = await createWorld({ clock: createFakeClock(NOW_MS), retention: RETENTION });
    await world.store.commit({ puts: [claim("captured", CAPTURED)] });
    await world.service.recover();
    await world.service.stop();
    await hours(world.clock, 31 * 24);
    expect(world.store.durable.get("captured")?.synthesizedText).toBe("kept");
    await world.store.close();
    expect(world.clock.pending()).toBe(0);
  });

  test("begins no sweep when it is stopped before it has started", async () => {
    const world = await createWorld({ clock: createFakeClock(NOW_MS), retention: RETENTION });
    await world.store.commit({ puts: [claim("captured", CAPTURED)] });
    await world.service.stop();
    await world.service.recover();
    await hours(world.clock, 31 * 24);
    expect(world.store.durable.get("captured")?.synthesizedText).toBe("kept");
  });
});

describe("a sweep", () => {
  test("that can't write poisons the store, which says so once; none comes after it", async () => {
    const logger = createRecordingLogger();
    const fs = createMemoryFileSystem();
    const clock = createFakeClock(NOW_MS);
    const store = await openStore({ fs, clock, logger, retention: { capturedTextMaxAgeMs: DAY_MS } });
    await store.commit({ puts: [claim("captured", CAPTURED)] });
    await hours(clock, 1);
    let sweeps = 0;
    const sweeper = createSweeper({
      store: {
        fault: store.fault,
        sweep(nowMs) {
          sweeps += 1;
          return store.sweep(nowMs);
        },
      },
      clock,
      logger,
    });
    sweeper.start();
    fs.failWhen(() => "ENOSPC");
    await hours(clock, 100);
    expect([sweeps, store.fault()?.code, logger.lines.length]).toEqual([24, "ENOSPC", 1]);
    expect(store.durable.get("captured")?.synthesizedText).toBe("kept");
  });

  test("of a store that another fault has poisoned does not begin", async () => {
    const logger = createRecordingLogger();
    const clock = createFakeClock(NOW_MS);
    const fault = { code: "EIO", since: "2026-11-30T12:00:00.000Z" };
    const sweep = () => Promise.reject(new Error("it began"));
    createSweeper({ store: { fault: () => fault, sweep }, clock, logger }).start();
    await hours(clock, 3);
    expect([logger.lines, clock.pending()]).toEqual([[], 0]);
  });

  test("of a store that its owner has closed ends it without a word", async () => {
    const logger = createRecordingLogger();
    const clock = createFakeClock(NOW_MS);
    const store = await openStore({ fs: createMemoryFileSystem(), clock, logger });
    createSweeper({ store, clock, logger }).start();
    await store.close();
    await hours(clock, 3);
    expect([logger.lines, clock.pending()]).toEqual([[], 0]);
  });

  test("that fails for another reason is logged once and tried again an hour later", async () => {
    const logger = createRecordingLogger();
    const clock = createFakeClock(NOW_MS);
    let sweeps = 0;
    const sweep = async () => {
      sweeps += 1;
      if (sweeps === 1) throw new StoreError("store_corrupt", "?");
    };
    createSweeper({ store: { fault: () => undefined, sweep }, clock, logger }).start();
    await hours(clock, 3);
    expect([sweeps, logger.lines.length]).toEqual([3, 1]);
  });

  test("waits for the one before it, however long that takes", async () => {
    const clock = createFakeClock(NOW_MS);
    const ends = Promise.withResolvers<void>();
    let sweeps = 0;
    const sweep = () => {
      sweeps += 1;
      return ends.promise;
    };
    createSweeper({ store: { fault: () => undefined, sweep }, clock, logger: silentLogger }).start();
    await hours(clock, 3);
    expect(sweeps).toBe(1);
    ends.resolve();
    await idle();
    clock.advance(RETENTION_SWEEP_MS - 1);
    expect(sweeps).toBe(1);
    clock.advance(1);
    expect(sweeps).toBe(2);
  });
});
