import { KIB } from "../core/limits.ts";
import type { FileStep, FileSystem } from "../core/ports/platform.ts";
import { FILE_MODE } from "../core/secure-files.ts";
import type { StorePaths } from "./paths.ts";

/**
 * Owns: the transaction file on the disk, and the spare with which it swaps names.
 * Does not own: what the file says (transaction.ts), when it is written (journal.ts).
 *
 * I1. The spare is written again only after the fsync of the folder that took the name of the transaction from it.
 * I2. What lies in either file beyond its content is blank, which JSON allows at its end. So a file keeps its length
 *     while what it carries grows and shrinks, and one that keeps its length is durable sooner (filesystem-steps.ts).
 */
export interface TransactionSlot {
  readonly exists: boolean;
  /** Makes the content durable as the transaction file. `content` is told how long it shall be for so many bytes. */
  replace(content: (length: (bytes: number) => number) => Uint8Array): Promise<void>;
  /** Takes the transaction file away; `durable` waits until that is. */
  remove(options: { durable: boolean }): Promise<void>;
  /** Steps that remove the spare, if there may be one. */
  forgetSpare(): FileStep[];
}

/** What is known of a file that this process wrote. */
interface Written {
  readonly size: number;
  readonly used: number;
}

const FIRST_CAPACITY_BYTES = 64 * KIB;

function capacityFor(bytes: number): number {
  let capacity = FIRST_CAPACITY_BYTES;
  while (capacity < bytes) capacity *= 2;
  return capacity;
}

/** `exists` tells whether a transaction file is there at the start. */
export function createTransactionSlot(fs: FileSystem, paths: StorePaths, exists: boolean): TransactionSlot {
  const { transaction, stateDir } = paths;
  const spare = paths.temporary(transaction);
  let spareMayExist = false;
  let spareFile: Written | undefined;
  let transactionFile: Written | undefined;
  /** Whether the system swaps names; undefined until it was tried. */
  let swaps: boolean | undefined;

  return {
    get exists() {
      return exists;
    },
    async replace(content) {
      const over = spareFile;
      let used = 0;
      const data = content((bytes) => {
        used = bytes;
        if (over === undefined) return bytes;
        return bytes <= over.size ? Math.max(bytes, over.used) : capacityFor(bytes);
      });
      const swap = exists;
      const reuse = over === undefined ? "whole" : "start";
      await fs.run([
        { op: "write", path: spare, data, mode: FILE_MODE, sync: true, reuse, label: "transaction.write" },
        { op: "rename", from: spare, to: transaction, swap, label: "transaction.rename" },
        { op: "syncDir", path: stateDir, label: "transaction.sync" },
      ]);
      exists = true;
      if (swap) swaps ??= fs.lstat(spare, "transaction.spare") !== undefined;
      spareMayExist = swap;
      spareFile = swap && swaps === true ? transactionFile : undefined;
      transactionFile = { size: Math.max(data.length, over?.size ?? 0), used };
    },
    async remove({ durable }) {
      const steps: FileStep[] = [
        { op: "unlink", path: transaction, missingOk: false, label: "transaction.unlink" },
      ];
      if (durable) steps.push({ op: "syncDir", path: stateDir, label: "transaction.unlink.sync" });
      await fs.run(steps);
      exists = false;
      transactionFile = undefined;
    },
    forgetSpare() {
      if (!spareMayExist) return [];
      spareMayExist = false;
      spareFile = undefined;
      return [{ op: "unlink", path: spare, missingOk: true, label: "spare.unlink" }];
    },
  };
}
