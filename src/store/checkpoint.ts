import type { FileStep, FileSystem } from "../core/ports/platform.ts";
import type { StorePaths } from "./paths.ts";
import { FILE_MODE } from "./secure.ts";
import type { Entry } from "./transaction.ts";

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
  /** Resolves when no checkpoint is under way, whether it failed or not. */
  idle(): Promise<void>;
}

export function createCarry(fs: FileSystem, paths: StorePaths): Carry {
  const carried = new Map<string, Entry>();
  let bytes = 0;
  let running: Promise<void> | undefined;

  async function checkpoint(): Promise<void> {
    const versions = [...carried.values()];
    if (versions.length === 0) return;
    await fs.run(checkpointSteps(paths, versions));
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
    async idle() {
      await Promise.allSettled([running]);
    },
    get checkpointing() {
      return running !== undefined;
    },
  };
}

/** All temporaries, made durable together; then their names, and then the folder: one fsync for many files. */
function checkpointSteps(paths: StorePaths, versions: readonly Entry[]): FileStep[] {
  const writes: FileStep[] = [];
  const names: FileStep[] = [];
  const temporaries: string[] = [];
  for (const { id, record, body } of versions) {
    const path = paths.record(id);
    if (record === undefined) {
      names.push({ op: "unlink", path, missingOk: true, label: "record.unlink" });
      continue;
    }
    const temporary = paths.temporary(path);
    temporaries.push(temporary);
    writes.push({
      op: "write",
      path: temporary,
      data: body,
      mode: FILE_MODE,
      sync: false,
      label: "record.write",
    });
    names.push({ op: "rename", from: temporary, to: path, label: "record.rename" });
  }
  if (temporaries.length > 0) {
    writes.push({ op: "syncFiles", folder: paths.records, paths: temporaries, label: "record.data.sync" });
  }
  return [...writes, ...names, { op: "syncDir", path: paths.records, label: "records.sync" }];
}
