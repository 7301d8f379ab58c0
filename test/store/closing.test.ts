import { describe, expect, test } from "bun:test";
import { retentionSchema } from "../../src/core/limits.ts";
import type { FileStep } from "../../src/core/ports/platform.ts";
import { createMemoryFileSystem, type MemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { openContinuationStore } from "../../src/store/open.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { createFakeIds } from "../support/fake-ids.ts";
import { NOW_MS } from "../support/records.ts";
import { silentLogger } from "../support/silent-logger.ts";
import { claim, openStore, STATE_DIR, snapshotOf } from "../support/store-harness.ts";

/** What a store that can't be used any more still does: nothing, and above all nothing without ownership. */

const FILLER = "x".repeat(90 * 1024);

async function owned(fs: MemoryFileSystem) {
  const owner = { released: false };
  const store = await openContinuationStore({
    stateDir: STATE_DIR,
    fs,
    clock: createFakeClock(NOW_MS),
    ids: createFakeIds("closing"),
    logger: silentLogger,
    retention: retentionSchema.parse({}),
    acquireLock: () => ({
      release() {
        owner.released = true;
      },
    }),
  });
  return { store, owner };
}

async function turns(count = 20): Promise<void> {
  for (let turn = 0; turn < count; turn += 1) await new Promise<void>((resolve) => setImmediate(resolve));
}

/** Holds the first step for which `matches`, and tells when it is reached. */
function hold(fs: MemoryFileSystem, matches: (step: FileStep) => boolean) {
  const gate = Promise.withResolvers<void>();
  const reached = Promise.withResolvers<void>();
  let held = false;
  fs.holdWhen((step) => {
    if (held || !matches(step)) return undefined;
    held = true;
    reached.resolve();
    return gate.promise;
  });
  return { reached: reached.promise, open: gate.resolve };
}

describe("ownership is given up only when nothing is being written", () => {
  test("by a checkpoint that goes on after a commit has failed", async () => {
    const fs = createMemoryFileSystem();
    const { store, owner } = await owned(fs);
    const held = hold(fs, (step) => step.label === "record.write");
    await store.commit({ puts: [claim("a", { taskKey: FILLER }), claim("b", { taskKey: FILLER })] });
    await held.reached;
    fs.failWhen(({ label }) => (label === "transaction.write" ? "EIO" : undefined));
    await store.commit({ puts: [claim("c")] }).catch(() => {});
    expect(store.fault()?.code).toBe("EIO");
    const closing = store.close();
    await turns();
    expect(owner.released).toBe(false);
    held.open();
    await closing;
    expect(owner.released).toBe(true);
    const operations = fs.counts.operations;
    await turns();
    expect(fs.counts.operations).toBe(operations);
  });

  test("by a commit that is under way when a checkpoint fails", async () => {
    const fs = createMemoryFileSystem();
    const { store, owner } = await owned(fs);
    const checkpoint = hold(fs, (step) => step.label === "record.write");
    await store.commit({ puts: [claim("a", { taskKey: FILLER }), claim("b", { taskKey: FILLER })] });
    await checkpoint.reached;
    const commit = hold(fs, (step) => step.label === "transaction.write");
    const late = store.commit({ puts: [claim("c")] });
    await commit.reached;
    fs.failWhen(({ label }) => (label === "records.sync" ? "EIO" : undefined));
    checkpoint.open();
    while (store.fault() === undefined) await turns(1);
    const failedAt = fs.counts.operations;
    const closing = store.close();
    await turns();
    expect(owner.released).toBe(false);
    commit.open();
    await late.catch(() => {});
    await closing;
    expect(owner.released).toBe(true);
    // The commit that was under way ends; nothing else begins.
    const labels = new Set(fs.trace.slice(failedAt).map(({ label }) => label));
    expect([...labels]).toEqual(["transaction.write", "transaction.rename", "transaction.sync"]);
  });

  test("by a snapshot", async () => {
    const fs = createMemoryFileSystem();
    const { store, owner } = await owned(fs);
    const held = hold(fs, (step) => step.label === "snapshot.write");
    const putting = store.snapshots.put(snapshotOf());
    await held.reached;
    const closing = store.close();
    await turns();
    expect(owner.released).toBe(false);
    held.open();
    expect((await putting).ok).toBe(true);
    await closing;
    expect(owner.released).toBe(true);
  });
});

describe("a snapshot is refused and writes nothing", () => {
  test("after a write has failed", async () => {
    const fs = createMemoryFileSystem();
    const store = await openStore({ fs });
    await store.commit({ puts: [claim("warm")] });
    fs.failWhen(({ label }) => (label === "transaction.write" ? "EIO" : undefined));
    await store.commit({ puts: [claim("a")] }).catch(() => {});
    fs.failWhen();
    const operations = fs.counts.operations;
    await expect(store.snapshots.put(snapshotOf())).rejects.toMatchObject({ code: "store_poisoned" });
    expect(fs.counts.operations).toBe(operations);
    await store.close();
  });

  test("after the store is closed", async () => {
    const fs = createMemoryFileSystem();
    const store = await openStore({ fs });
    await store.close();
    const operations = fs.counts.operations;
    await expect(store.snapshots.put(snapshotOf())).rejects.toMatchObject({ code: "service_stopping" });
    expect(fs.counts.operations).toBe(operations);
  });

  test("while it waits behind another step on the same blob", async () => {
    const fs = createMemoryFileSystem();
    const store = await openStore({ fs });
    await store.commit({ puts: [claim("warm")] });
    const held = hold(fs, (step) => step.label === "snapshot.write");
    fs.failWhen(({ label }) =>
      label === "snapshot.write" ? "ENOSPC" : label === "transaction.write" ? "EIO" : undefined,
    );
    const first = store.snapshots.put(snapshotOf()).catch((error: { code: string }) => error.code);
    await held.reached;
    const second = store.snapshots.put(snapshotOf()).catch((error: { code: string }) => error.code);
    await store.commit({ puts: [claim("a")] }).catch(() => {});
    held.open();
    expect(await first).toBe("store_write_failed");
    expect(await second).toBe("store_poisoned");
    expect(Object.keys(fs.files()).some((path) => path.includes("origin-context-v1/"))).toBe(false);
    await store.close();
  });
});
