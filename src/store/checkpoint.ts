import type { FileStep, FileSystem } from "../core/ports/platform.ts";
import type { StorePaths } from "./paths.ts";
import { replaceSteps } from "./secure.ts";
import type { Entry } from "./transaction.ts";

/** Lists of steps that run beside each other while record files are replaced. */
const LANES = 8;

/**
 * What the transaction file carries: committed versions that are not yet durable in their own files.
 *
 * I1. Only committed versions come in, so only committed versions reach record files.
 * I2. A version leaves after its own file (or unlink) and then the folder are fsynced, and only if it is still the
 *     newest; a newer one stays.
 */
export interface Carry {
  entries(): IterableIterator<Entry>;
  readonly size: number;
  readonly bytes: number;
  has(id: string): boolean;
  get(id: string): Entry | undefined;
  commit(entries: Iterable<Entry>): void;
  /** Makes what is carried now durable in its own files. One at a time: a second call joins the first. */
  checkpoint(): Promise<void>;
  readonly checkpointing: boolean;
}

export function createCarry(fs: FileSystem, paths: StorePaths): Carry {
  const carried = new Map<string, Entry>();
  let bytes = 0;
  let running: Promise<void> | undefined;

  function stepsFor(entry: Entry): FileStep[] {
    const path = paths.record(entry.id);
    return entry.record === undefined
      ? [{ op: "unlink", path, missingOk: true, label: "record.unlink" }]
      : replaceSteps(path, paths.temporary(path), entry.body, "record");
  }

  async function checkpoint(): Promise<void> {
    const versions = [...carried.values()];
    if (versions.length === 0) return;
    const lanes: FileStep[][] = [];
    versions.forEach((entry, index) => {
      const lane = index % LANES;
      lanes[lane] = [...(lanes[lane] ?? []), ...stepsFor(entry)];
    });
    // All lanes end before a failure is reported: nothing writes behind the back of a poisoned store.
    const outcomes = await Promise.allSettled(lanes.map((steps) => fs.run(steps)));
    for (const outcome of outcomes) if (outcome.status === "rejected") throw outcome.reason;
    await fs.run([{ op: "syncDir", path: paths.records, label: "records.sync" }]);
    for (const entry of versions) {
      if (carried.get(entry.id) !== entry) continue;
      carried.delete(entry.id);
      bytes -= entry.bytes;
    }
  }

  return {
    entries: () => carried.values(),
    get size() {
      return carried.size;
    },
    get bytes() {
      return bytes;
    },
    has: (id) => carried.has(id),
    get: (id) => carried.get(id),
    commit(entries) {
      for (const entry of entries) {
        bytes += entry.bytes - (carried.get(entry.id)?.bytes ?? 0);
        carried.set(entry.id, entry);
      }
    },
    checkpoint() {
      running ??= checkpoint().finally(() => {
        running = undefined;
      });
      return running;
    },
    get checkpointing() {
      return running !== undefined;
    },
  };
}
