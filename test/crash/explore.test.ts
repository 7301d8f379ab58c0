import { describe, expect, test } from "bun:test";
import { createMemoryFileSystem, memoryDisk } from "../../src/platform/memory-filesystem.ts";
import { exploreWorkload } from "../../src/store/explore/explore.ts";
import { record } from "../../src/store/explore/recorder.ts";
import { failureText, torture } from "../../src/store/explore/torture.ts";
import { generateWorkload, type Step } from "../../src/store/explore/workload.ts";
import { CARRY_LIMITS } from "../../src/store/journal.ts";
import { readAsOlderRuntime } from "../support/older-runtime-reader.ts";

/**
 * The power is cut before every operation of generated workloads over the real store. `bun run torture` goes on for as
 * long as one likes, and repeats a seed.
 */

const STATES = 200_000;
const SEED = 1;
/** Workloads of which it is looked up what they reach. */
const COVERED = 50;
const options = {
  createDisk: (abilities: { swaps: boolean }) => createMemoryFileSystem(memoryDisk(abilities)),
  olderReader: readAsOlderRuntime,
};

const words = (text: string) => text.trim().split(/\s+/);
const STEPS = words(`
  state.mkdir state.parent.sync parent.sync folder.mkdir folder.sync secret.write secret.rename secret.sync
  temporary.unlink guard.mkdir guard.parent.sync guard.write guard.rename guard.sync
  manifest.write manifest.rename manifest.sync
  transaction.write transaction.rename transaction.sync transaction.unlink transaction.unlink.sync
  record.write record.data.sync record.rename record.retire record.unlink records.sync
  spare.unlink
  snapshot.write snapshot.rename snapshot.sync snapshot.unlink
  marker.write marker.rename marker.sync marker.unlink marker.unlink.sync
  manifest.settle.sync transaction.settle.sync marker.settle.sync`);
const TROUBLES = ["a fault before its operation", "a fault after it", "a kill at once", "a kill later"];
const troubleOf = (step: Step): string => {
  if (step.op === "fail") return step.done === true ? "a fault after it" : "a fault before its operation";
  return step.op === "kill" ? (step.after === undefined ? "a kill at once" : "a kill later") : step.op;
};
const SURVIVALS = [
  ...["all", "none", "only change n of n", "all but change n of n", "the first n of n"],
  ...["torn", "zeros", "mixed"].map((damage) => `all names, data ${damage}`),
];
const KINDS = words(`
  claimed result_received synthesizing ready_to_deliver delivery_retry
  delivered delivery_unknown expired cancelled dead_lettered
  reply notify_if_actionable silent capture
  pending pinned abandoned detached_latest scrubbed`);

describe("a power cut at any operation of any workload", () => {
  test(`${STATES} crash states keep every promise and open by the rules of the older runtime`, async () => {
    const startMs = performance.now();
    const report = await torture({ ...options, seed: SEED, enough: ({ states }) => states >= STATES });
    const seconds = (performance.now() - startMs) / 1000;
    const { failure, ...figures } = report;
    console.log(
      `crash states: ${JSON.stringify(figures)} in ${seconds.toFixed(1)} s, ${Math.round(figures.states / seconds)} states/s`,
    );
    if (failure !== undefined) throw new Error(failureText(failure));
    expect(figures.states).toBeGreaterThanOrEqual(STATES);
    // Each state is judged, but a disk that several cuts leave behind is opened only once.
    expect(figures.images).toBeGreaterThan(STATES / 10);
    expect(figures.openings).toBeGreaterThanOrEqual(figures.images);
    // About 30 s alone on a machine with two cores, as the log tells; the rest is for one that is busy with other things.
  }, 300_000);

  test("gives the same states each time a seed is repeated", async () => {
    const [first, second] = [
      await exploreWorkload(generateWorkload(11), options),
      await exploreWorkload(generateWorkload(11), options),
    ];
    expect(second).toEqual(first);
    expect(first.states).toBeGreaterThan(300);
    expect(generateWorkload(12)).not.toEqual(generateWorkload(11));
  });

  test("takes a temporary that an opening was not let remove for no stray of the next close", async () => {
    const { interrupt: _, ...generated } = generateWorkload(1);
    const steps: Step[] = [
      { op: "claim", slot: 0, mode: "silent" },
      { op: "settle" },
      { op: "advance", slots: [0], choice: 0, filler: 20 },
      // The first operation after the kill removes the temporary of the transaction that it stopped.
      { op: "fail", after: 3, errno: "EIO" },
      { op: "kill", after: 3 },
    ];
    const workload = { ...generated, carryLimits: CARRY_LIMITS, swaps: true, steps };
    const { states } = await record(workload, options);
    expect(states.map(({ label }) => label)).toContain("temporary.unlink");
    expect((await exploreWorkload(workload, options)).failure).toBeUndefined();
  });

  test("comes before every kind of step, and with continuations of every kind", async () => {
    const seen = new Set<string>();
    for (let seed = SEED; seed < SEED + COVERED; seed += 1) {
      const workload = generateWorkload(seed);
      for (const step of workload.steps) seen.add(troubleOf(step));
      const { states } = await record(workload, options);
      for (const { label, survival } of states) seen.add(label).add(survival.replace(/[0-9]+/g, "n"));
      for (const ledger of new Set(states.map(({ promised }) => promised.ledger))) {
        for (const records of ledger.states) {
          for (const { state, mode, originContextState } of records.values()) {
            seen.add(state).add(mode).add(originContextState);
          }
        }
      }
    }
    expect([...STEPS, ...SURVIVALS, ...KINDS, ...TROUBLES].filter((wanted) => !seen.has(wanted))).toEqual([]);
  }, 60_000);
});
