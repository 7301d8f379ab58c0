import { describe, expect, test } from "bun:test";
import type { Survival } from "../../src/core/ports/crash-disk.ts";
import type { ContinuationStore } from "../../src/core/ports/store.ts";
import { type ContinuationRecord, isTerminal } from "../../src/core/record.ts";
import { STORE_ENTRIES } from "../../src/core/store-files.ts";
import { createMemoryFileSystem, type MemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
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
 * The power goes before every single operation of a workload; the disk keeps nothing, all, or one of the unsynced
 * changes; then the real code opens it again. What was acknowledged is there, what was not is there whole or not at
 * all, and nothing else is left behind.
 */

const RETENTION = { terminalMaxRecords: 3, capturedTextMaxRecords: 1 };
const FILLER = "x".repeat(90 * 1024);

type Step = (store: ContinuationStore) => Promise<unknown>;

const put = (record: ContinuationRecord) => (store: ContinuationStore) => store.commit({ puts: [record] });
const change = (id: string, patch: Partial<ContinuationRecord>) => (store: ContinuationStore) => {
  const record = store.head.get(id);
  if (record === undefined) throw new Error(`${id} is not there`);
  return store.commit({ puts: [{ ...record, ...patch }] });
};
const RESULT = {
  resultIdempotencyKey: "k",
  resultPayloadHash: "b".repeat(64),
  resultPayload: { a: [1, {}] },
};
const at = (second: number) => ({ updatedAt: `2026-11-30T12:00:${String(second).padStart(2, "0")}.000Z` });

/** Two members from claim to delivery, detached work, captured text, retention by number, checkpoints. */
const WORKLOAD: readonly Step[] = [
  put(claim("m-1", { originRunId: "run-g", historyBoundary: "run-g" })),
  put(claim("m-2", { originRunId: "run-g", historyBoundary: "run-g" })),
  async (store) => {
    const stored = await store.snapshots.put(snapshotOf());
    if (!stored.ok) throw new Error("the snapshot was refused");
    const { ref, release } = stored.value;
    const bind = (id: string) => member(id, ref, store.secret);
    await store.commit({ puts: [bind("m-1"), bind("m-2")] });
    release();
  },
  (store) => store.activate(GROUP, store.head.get("m-1")?.originContextDigest ?? "", at(1).updatedAt),
  change("m-1", { ...at(2), ...RESULT, state: "result_received" }),
  change("m-1", { ...at(3), state: "synthesizing", synthesisAttempts: 1 }),
  change("m-1", { ...at(4), state: "ready_to_deliver", synthesizedText: "answer" }),
  change("m-1", {
    ...at(5),
    state: "delivered",
    receipt: { kind: "delivered", deliveredAt: at(5).updatedAt },
  }),
  change("m-2", { ...at(6), state: "cancelled" }),
  put(claim("big-1", { filler: FILLER, mode: "capture" })),
  put(claim("big-2", { filler: FILLER, mode: "capture" })),
  put(claim("big-3", { filler: FILLER, mode: "capture" })),
  put(claim("big-4", { filler: FILLER, mode: "capture" })),
  change("big-1", { ...at(7), state: "delivered", synthesizedText: "captured one" }),
  change("big-2", { ...at(8), state: "delivered", synthesizedText: "captured two" }),
  change("big-3", { ...at(9), state: "expired" }),
  (store) => store.sweep(Date.parse(at(9).updatedAt)),
  (store) => store.close(),
];

interface Run {
  readonly fs: MemoryFileSystem;
  readonly acknowledged: number;
  /** Records after opening and after each step. */
  readonly states: Record<string, ContinuationRecord>[];
}

async function runUntil(cut: number): Promise<Run> {
  const fs = createMemoryFileSystem();
  fs.cutAt(cut);
  const states: Run["states"] = [];
  let acknowledged = 0;
  try {
    const store = await openStore({ fs, seed: "crash", retention: RETENTION });
    states.push(recordsOf(store));
    for (const step of WORKLOAD) {
      await step(store);
      // Closing a store whose disk is gone is quiet, so that the last step acknowledges nothing by itself.
      if (fs.isOff) break;
      states.push(recordsOf(store));
      acknowledged += 1;
    }
  } catch (error) {
    if (!fs.isOff) throw error;
  }
  // Lanes that were on their way when the power went run to their end here, each failing by itself.
  for (let turn = 0; turn < 20; turn += 1) await Promise.resolve();
  return { fs, acknowledged, states };
}

async function checkReopened(run: Run, reference: Run, disk: MemoryFileSystem, label: string): Promise<void> {
  const store = await openStore({ fs: disk, seed: "crash", retention: RETENTION });
  const records = recordsOf(store);
  const allowed = [reference.states[run.acknowledged], reference.states[run.acknowledged + 1]];
  const explained = allowed.some((state) => state !== undefined && Bun.deepEquals(state, records));
  if (!explained) expect({ label, records }).toEqual({ label, records: allowed[0] ?? {} });

  const referenced = new Set<string>();
  for (const record of Object.values(records)) {
    if (record.originContextRef === undefined) continue;
    expect(isTerminal(record)).toBe(false);
    expect(store.snapshots.read(record.originContextRef).ok).toBe(true);
    referenced.add(`${STATE_DIR}/${STORE_ENTRIES.snapshots}/${record.originContextRef.digest}.json`);
  }
  const paths = Object.keys(disk.files());
  expect(paths.filter((path) => path.includes(STORE_ENTRIES.snapshots)).sort()).toEqual(
    [...referenced].sort(),
  );
  expect(paths.filter((path) => path.endsWith(".tmp"))).toEqual([]);
  expect(paths.filter((path) => path.includes(STORE_ENTRIES.markers))).toEqual([]);
  const guard = `${STATE_DIR}/records-v2/UPGRADED-TO-RECORDS-V3`;
  if (Object.keys(records).length > 0) expect(paths).toContain(guard);
  for (const [path, mode] of Object.entries(disk.modes())) {
    expect(`${path} ${mode.toString(8)}`).toBe(`${path} ${path in disk.files() ? "600" : "700"}`);
  }

  await store.close();
  const closed = disk.files();
  const again = await openStore({ fs: disk, seed: "crash", retention: RETENTION });
  expect(recordsOf(again)).toEqual(records);
  await again.close();
  expect(disk.files()).toEqual(closed);
}

describe("a power cut at any operation", () => {
  test("loses nothing acknowledged, tears nothing, and opens again", async () => {
    const reference = await runUntil(Number.POSITIVE_INFINITY);
    expect(reference.acknowledged).toBe(WORKLOAD.length);
    const total = reference.fs.counts.operations;
    const labels = new Set(reference.fs.trace.map((operation) => operation.label));
    for (const label of [
      "guard.rename",
      "marker.sync",
      "marker.unlink.sync",
      "records.sync",
      "record.retire",
      "spare.unlink",
      "snapshot.unlink",
      "transaction.unlink",
      "manifest.sync",
    ]) {
      expect(labels).toContain(label);
    }
    let states = 0;
    for (let cut = 1; cut <= total + 1; cut += 1) {
      const run = await runUntil(cut);
      const alone = run.fs.unsynced().map(
        (_, only): Survival =>
          (_change, index) =>
            index === only,
      );
      const torn: Survival = (pending) => (pending.kind === "data" ? "torn" : true);
      for (const survival of ["none", "all", torn, ...alone] as const) {
        const label = `cut before operation ${cut} of ${total}, survival ${String(survival)}`;
        await checkReopened(run, reference, run.fs.afterPowerCut(survival), label);
        states += 1;
      }
    }
    expect(states).toBeGreaterThan(500);
  }, 60_000);

  test("opening after a power cut is itself safe at every operation", async () => {
    const reference = await runUntil(Number.POSITIVE_INFINITY);
    const marker = reference.fs.trace.findIndex((operation) => operation.label === "marker.sync") + 2;
    const run = await runUntil(marker);
    const probe = run.fs.afterPowerCut("all");
    await (await openStore({ fs: probe, seed: "crash", retention: RETENTION })).close();
    const total = probe.counts.operations;
    expect(total).toBeGreaterThan(8);
    for (let cut = 1; cut <= total; cut += 1) {
      const disk = run.fs.afterPowerCut("all");
      disk.cutAt(cut);
      await openStore({ fs: disk, seed: "crash", retention: RETENTION })
        .then((store) => store.close())
        .catch(() => {});
      for (const survival of ["none", "all"] as const) {
        await checkReopened(run, reference, disk.afterPowerCut(survival), `cut ${cut} while opening`);
      }
    }
  });
});
