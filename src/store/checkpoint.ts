import { join } from "node:path";
import type { FileStep, FileSystem } from "../core/ports/platform.ts";
import { FILE_MODE } from "../core/secure-files.ts";
import { memberBody } from "./codec.ts";
import type { StorePaths } from "./paths.ts";
import { createTransactionFile, type Entry, type TransactionFrame } from "./transaction.ts";

/**
 * What the transaction file carries: committed versions that are not yet durable in their own files.
 *
 * I1. Only committed versions come in, so only committed versions reach record files.
 * I2. A version leaves after its own file (or the end of that) and then the folder are fsynced, and only if it is still
 *     the newest; a newer one stays.
 * I3. A spare is written again only after the folder no longer durably names it as a record.
 */
export interface Carry {
  readonly size: number;
  readonly bytes: number;
  /** The transaction file with these laid over what is carried. Valid until the next call. */
  content(entries: Iterable<Entry>, frame: TransactionFrame): Uint8Array;
  /** What `content` was last asked for is durable. */
  commit(entries: Iterable<Entry>): void;
  /** Makes what is carried now durable in its own files. One at a time: a second call joins the first. */
  checkpoint(): Promise<void>;
  readonly checkpointing: boolean;
  /** Resolves when no checkpoint is under way, whether it failed or not. */
  idle(): Promise<void>;
  /** Steps that remove the spares. Not while a checkpoint is under way. */
  forgetSpares(): FileStep[];
}

/**
 * Files of replaced and deleted records that are kept for the next ones. A file that is deleted costs the disk more than
 * one that is written again (platform/swap-names.ts).
 */
export const SPARES_MAX = 256;

export interface CarryDeps {
  readonly fs: FileSystem;
  readonly paths: StorePaths;
  /** How many spares are kept. */
  readonly spares: number;
  /** What the transaction file found on disk carries. */
  readonly carried: readonly Entry[];
  /** Ids that may have a record file. */
  readonly filed: Iterable<string>;
}

export function createCarry({ fs, paths, spares: sparesMax, ...found }: CarryDeps): Carry {
  const file = createTransactionFile();
  const carried = new Map<string, Entry>();
  const filed = new Set(found.filed);
  const spares: string[] = [];
  let bytes = 0;
  let running: Promise<void> | undefined;
  for (const entry of found.carried) file.put(entry);
  commit(found.carried);

  function commit(entries: Iterable<Entry>): void {
    for (const entry of entries) {
      bytes += entry.bytes - (carried.get(entry.id)?.bytes ?? 0);
      carried.set(entry.id, entry);
    }
  }

  /** All data first, made durable together; then the names, and then the folder: one fsync for many files. */
  function steps(versions: readonly Entry[]): { steps: FileStep[]; kept: string[] } {
    const writes: FileStep[] = [];
    const names: FileStep[] = [];
    const written: string[] = [];
    const kept: string[] = [];
    const newName = () => paths.temporary(join(paths.records, "spare"));
    for (const path of spares.splice(0, Math.max(0, spares.length - sparesMax))) {
      names.push({ op: "unlink", path, missingOk: true, label: "spare.unlink" });
    }
    for (const entry of versions) {
      const path = paths.record(entry.id);
      const replaces = filed.has(entry.id);
      if (entry.record === undefined) {
        if (!replaces) continue;
        if (spares.length + kept.length >= sparesMax) {
          names.push({ op: "unlink", path, missingOk: true, label: "record.unlink" });
          continue;
        }
        const to = newName();
        names.push({ op: "rename", from: path, to, missingOk: true, label: "record.retire" });
        kept.push(to);
        continue;
      }
      // A new file has its name at once: whatever becomes of it, the transaction lies over it until it is durable.
      const from = spares.pop() ?? (replaces ? newName() : path);
      const data = memberBody(entry.text);
      writes.push({
        op: "write",
        path: from,
        data,
        mode: FILE_MODE,
        sync: false,
        reuse: "whole",
        label: "record.write",
      });
      written.push(from);
      if (from !== path) names.push({ op: "rename", from, to: path, swap: replaces, label: "record.rename" });
      if (replaces) kept.push(from);
    }
    if (written.length > 0) {
      writes.push({ op: "syncFiles", folder: paths.records, paths: written, label: "record.data.sync" });
    }
    return {
      steps: [...writes, ...names, { op: "syncDir", path: paths.records, label: "records.sync" }],
      kept,
    };
  }

  async function checkpoint(): Promise<void> {
    const versions = [...carried.values()];
    if (versions.length === 0) return;
    const { steps: list, kept } = steps(versions);
    await fs.run(list);
    spares.push(...kept);
    for (const entry of versions) {
      if (entry.record === undefined) filed.delete(entry.id);
      else filed.add(entry.id);
      if (carried.get(entry.id) !== entry) continue;
      carried.delete(entry.id);
      file.drop(entry);
      bytes -= entry.bytes;
    }
  }

  return {
    get size() {
      return carried.size;
    },
    get bytes() {
      return bytes;
    },
    content(entries, frame) {
      for (const entry of entries) file.put(entry);
      return file.content(frame);
    },
    commit,
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
    forgetSpares: () =>
      spares
        .splice(0)
        .map((path): FileStep => ({ op: "unlink", path, missingOk: true, label: "spare.unlink" })),
  };
}
