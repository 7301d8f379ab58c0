import { describe, expect, test } from "bun:test";
import { diskRemedy } from "../../src/core/disk-remedy.ts";
import { StoreError } from "../../src/core/errors.ts";
import { fileJson } from "../../src/core/json.ts";
import { retentionSchema } from "../../src/core/limits.ts";
import type { InjectedFault } from "../../src/core/ports/crash-disk.ts";
import type { ContinuationStore } from "../../src/core/ports/store.ts";
import type { ContinuationRecord } from "../../src/core/record.ts";
import { createMemoryFileSystem, type MemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { openContinuationStore } from "../../src/store/open.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { createFakeIds } from "../support/fake-ids.ts";
import { NOW_MS } from "../support/records.ts";
import { silentLogger } from "../support/silent-logger.ts";
import {
  claim,
  GROUP,
  member,
  openStore,
  recordsOf,
  STATE_DIR,
  snapshotOf,
} from "../support/store-harness.ts";

/**
 * Every single operation of a workload fails, once or from then on, while commits, a snapshot, an activation,
 * retention and a checkpoint are under way together.
 */

/** EIO too for what was done all the same: a rename, say, that the disk took and whose answer got lost. */
const FAULTS: readonly { readonly errno: string; readonly fault: InjectedFault; readonly done: string }[] = [
  ...["ENOSPC", "EIO", "EROFS", "EMFILE"].map((errno) => ({ errno, fault: errno, done: "" })),
  { errno: "EIO", fault: { errno: "EIO", done: true }, done: " although it is done" },
];
const FILLER = "x".repeat(90 * 1024);
const at = (second: number) => new Date(NOW_MS + second * 1000).toISOString();

interface Opened {
  readonly store: ContinuationStore;
  readonly clock: ReturnType<typeof createFakeClock>;
  releases: number;
}

async function open(fs: MemoryFileSystem): Promise<Opened> {
  const clock = createFakeClock(NOW_MS);
  const opened = { clock, releases: 0 };
  const store = await openContinuationStore({
    stateDir: STATE_DIR,
    fs,
    clock,
    ids: createFakeIds("poison"),
    logger: silentLogger,
    retention: retentionSchema.parse({ terminalMaxRecords: 2 }),
    acquireLock: () => ({
      release() {
        opened.releases += 1;
      },
    }),
  });
  return Object.assign(opened, { store });
}

/** What one run of the workload was told. */
interface Outcome {
  readonly acknowledged: Map<string, ContinuationRecord>;
  readonly attempted: Map<string, ContinuationRecord[]>;
  readonly errors: unknown[];
}

async function quiet(): Promise<void> {
  for (let turn = 0; turn < 5; turn += 1) await new Promise<void>((resolve) => setImmediate(resolve));
}

/** Three rounds; in each, everything is asked for in the same turn of the event loop. */
async function work({ store, clock }: Opened): Promise<Outcome> {
  const outcome: Outcome = { acknowledged: new Map(), attempted: new Map(), errors: [] };
  const put = async (...puts: ContinuationRecord[]) => {
    for (const record of puts) {
      const versions = outcome.attempted.get(record.continuationId) ?? [];
      outcome.attempted.set(record.continuationId, [...versions, record]);
    }
    try {
      await store.commit({ puts });
      for (const record of puts) outcome.acknowledged.set(record.continuationId, record);
    } catch (error) {
      outcome.errors.push(error);
    }
  };
  const noting = (promise: Promise<unknown>) => promise.catch((error: unknown) => outcome.errors.push(error));
  const group = { originRunId: "run-g", historyBoundary: "run-g" };

  await Promise.all([put(claim("m-1", group)), put(claim("m-2", group)), put(claim("a"))]);
  await noting(
    (async () => {
      const stored = await store.snapshots.put(snapshotOf());
      if (!stored.ok) throw new Error("refused");
      const { ref, release } = stored.value;
      await put(member("m-1", ref, store.secret), member("m-2", ref, store.secret));
      release();
    })(),
  );
  const digest = store.head.get("m-1")?.originContextDigest ?? "";
  await Promise.all([
    put(claim("b", { filler: FILLER })),
    noting((async () => store.activate(GROUP, digest, at(1)))()),
    put(claim("c", { filler: FILLER })),
    noting(
      store.snapshots.put(snapshotOf("run-other")).then((stored) => {
        if (stored.ok) stored.value.release();
      }),
    ),
    noting(store.whenDurable()),
  ]);
  clock.advance(1000);
  await Promise.all([
    put(claim("d", { filler: FILLER })),
    put(
      claim("e", { state: "cancelled", updatedAt: at(2) }),
      claim("f", { state: "cancelled", updatedAt: at(3) }),
    ),
    put(claim("g", { state: "cancelled", updatedAt: at(4) })),
    put({ ...(store.head.get("m-1") ?? claim("m-1")), state: "cancelled", updatedAt: at(5) }),
    noting(store.whenDurable()),
  ]);
  await put(claim("h", { filler: FILLER }));
  await quiet();
  // Drops one that has a file of its own by now; then nothing happens for a while.
  await put(claim("j", { state: "cancelled", updatedAt: at(6) }), claim("k", { filler: FILLER }));
  await put(claim("l", { filler: FILLER }));
  await quiet();
  for (let second = 0; second < 3; second += 1) {
    clock.advance(1000);
    await quiet();
  }
  // Carried still when the store closes: what a checkpoint has just written out leaves a close nothing to do.
  await put(claim("i"));
  await quiet();
  return outcome;
}

const RETAINED_AWAY = new Set(["e", "f", "g", "m-1"]);
/** Harms one snapshot, or leaves a temporary behind. */
const isHarmless = (label: string) => label.startsWith("snapshot") || label === "spare.unlink";
/** The manifest that requires the guard is made durable; every later one is only a report, whose failure harms nothing. */
const isReport = (trace: MemoryFileSystem["trace"], number: number) =>
  trace[number - 1]?.label.startsWith("manifest") === true &&
  trace.slice(first, number - 1).some((operation) => operation.label === "manifest.sync");

/** The workload without a fault: which operations there are. */
async function rehearse() {
  const fs = createMemoryFileSystem();
  const opened = await open(fs);
  const first = fs.counts.operations + 1;
  const outcome = await work(opened);
  expect(outcome.errors).toEqual([]);
  const last = fs.counts.operations;
  await opened.store.close();
  return { first, last, end: fs.counts.operations, trace: fs.trace };
}
const { first, last, end, trace } = await rehearse();

async function check(fs: MemoryFileSystem, opened: Opened, outcome: Outcome): Promise<void> {
  const { store } = opened;
  const fault = store.fault();
  if (fault !== undefined) {
    expect(fault).toEqual({ code: expect.any(String), since: expect.any(String) });
    // One clear error for all who waited; whoever came later is refused.
    const waited = outcome.errors.filter((error) => (error as StoreError).code === "store_write_failed");
    const journal = waited.filter((error) => !(error as StoreError).message.includes("snapshot"));
    expect(new Set(journal).size).toBeLessThanOrEqual(1);
    for (const error of journal as StoreError[]) {
      expect(error.message).toContain(fault.code);
      expect(error.message).toContain(`; ${diskRemedy(fault.code)} first; it needs a restart, and nothing`);
    }
    for (const act of [
      () => store.commit({ puts: [claim("late")] }),
      () => store.activate(GROUP, "0".repeat(64), at(9)),
      () => store.sweep(NOW_MS),
    ]) {
      const error = await (async () => act())().then(
        () => undefined,
        (refused: StoreError) => refused,
      );
      expect(error?.code).toBe("store_poisoned");
      expect(error?.message).toContain("nothing acknowledged is lost");
    }
  }
  for (const error of outcome.errors) {
    if (!(error instanceof StoreError)) throw error;
    expect(["store_write_failed", "store_poisoned"]).toContain(error.code);
  }

  // Reads show nothing that a power cut now could take back.
  const shown = recordsOf(store);
  const quietAt = fs.counts.operations;
  if (fault !== undefined) {
    opened.clock.advance(60_000);
    await quiet();
    expect(fs.counts.operations).toBe(quietAt);
  }
  await store.close();
  expect(opened.releases).toBe(1);
  if (fault !== undefined) expect(fs.counts.operations).toBe(quietAt);

  for (const survival of ["none", "all"] as const) {
    const disk = fs.afterPowerCut(survival);
    const again = await openStore({ fs: disk, retention: { terminalMaxRecords: 2 } });
    expect(again.fault()).toBeUndefined();
    const records = recordsOf(again);
    const text = (record: unknown) => fileJson(JSON.parse(JSON.stringify(record)));
    if (survival === "none") {
      for (const [id, record] of Object.entries(shown)) {
        if (RETAINED_AWAY.has(id) || text(records[id]) === text(record)) continue;
        // Beyond what was shown only by what was asked for afterwards, or by the marker that opening applied.
        expect(Date.parse(records[id]?.updatedAt ?? "")).toBeGreaterThan(Date.parse(record.updatedAt) - 1);
      }
    }
    for (const id of outcome.acknowledged.keys()) {
      if (!RETAINED_AWAY.has(id)) expect(Object.keys(records)).toContain(id);
    }
    for (const record of Object.values(records)) {
      expect(outcome.attempted.has(record.continuationId)).toBe(true);
      const ref = record.originContextRef;
      if (ref !== undefined) expect(again.snapshots.read(ref).ok).toBe(true);
    }
    await again.commit({ puts: [claim("after the restart")] });
    await again.close();
    expect(Object.keys(disk.files()).filter((path) => path.endsWith(".tmp"))).toEqual([]);
  }
}

describe("a failing disk", () => {
  test("the workload reaches every kind of step", () => {
    const labels = new Set(trace.slice(first - 1).map((operation) => operation.label));
    for (const label of [
      "guard.write",
      "manifest.write",
      "transaction.write",
      "transaction.sync",
      "transaction.unlink",
      "snapshot.write",
      "snapshot.sync",
      "snapshot.unlink",
      "marker.write",
      "marker.rename",
      "marker.unlink",
      "marker.unlink.sync",
      "record.write",
      "record.rename",
      "records.sync",
      "record.retire",
      "spare.unlink",
    ]) {
      expect([...labels]).toContain(label);
    }
  });

  for (const { errno, fault: injected, done } of FAULTS) {
    for (const lasting of [true, false]) {
      test(`${errno} at each of ${last - first + 1} operations, ${lasting ? "lasting" : "once"}${done}`, async () => {
        for (let number = first; number <= last; number += 1) {
          const fs = createMemoryFileSystem();
          const opened = await open(fs);
          fs.failWhen((_, current) =>
            (lasting ? current >= number : current === number) ? injected : undefined,
          );
          const outcome = await work(opened);
          const label = trace[number - 1]?.label ?? "";
          const fault = opened.store.fault();
          if (lasting) expect(fault?.code).toBe(errno);
          else if (isHarmless(label) || isReport(trace, number)) expect(fault).toBeUndefined();
          else expect([number, label, fault?.code]).toEqual([number, label, errno]);
          // Somebody waits for each of these steps; for those of a checkpoint perhaps nobody does.
          if (/^(guard|marker|transaction\.(write|rename|sync)$)/.test(label)) {
            expect(outcome.errors.length).toBeGreaterThan(0);
          }
          fs.failWhen();
          await check(fs, opened, outcome);
        }
      }, 30_000);
    }
  }

  test("a close that fails at any of its operations gives up the directory and loses nothing", async () => {
    expect(end).toBeGreaterThan(last);
    for (let number = last + 1; number <= end; number += 1) {
      for (const [lasting, injected] of [
        [true, "ENOSPC"],
        [false, "ENOSPC"],
        [true, { errno: "EIO", done: true }],
        [false, { errno: "EIO", done: true }],
      ] as const) {
        const fs = createMemoryFileSystem();
        const opened = await open(fs);
        const outcome = await work(opened);
        expect(outcome.errors).toEqual([]);
        fs.failWhen((_, current) =>
          (lasting ? current >= number : current === number) ? injected : undefined,
        );
        const before = recordsOf(opened.store);
        await opened.store.close();
        expect(opened.releases).toBe(1);
        fs.failWhen();
        for (const survival of ["none", "all"] as const) {
          const again = await openStore({
            fs: fs.afterPowerCut(survival),
            retention: { terminalMaxRecords: 2 },
          });
          expect(recordsOf(again)).toEqual(before);
          await again.close();
        }
      }
    }
  });
});
