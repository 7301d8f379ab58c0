import type { FileSystem } from "./platform.ts";

/** A disk on which the power can be cut, as the crash explorer of the store needs it. */

export interface DiskOperation {
  readonly kind: "create" | "data" | "sync" | "rename" | "unlink" | "mkdir" | "rmdir" | "chmod" | "syncDir";
  readonly path: string;
  readonly label: string;
}

/** How an operation fails: with this errno and nothing done, or with it although all was done. */
export type InjectedFault = string | { readonly errno: string; readonly done: true };

/** Something a power cut now may take back: the data of one file, one change of names in a folder, or a changed mode. */
export interface UnsyncedChange {
  readonly kind: "data" | "names" | "mode";
  readonly path: string;
  readonly label: string;
}

/**
 * Whether an unsynced change survives. Of data, `torn` keeps the first half, `zeros` only the length, and `mixed` the
 * first half before the rest of what was there: a file that is written over in place.
 */
export type Survival = (change: UnsyncedChange, index: number) => boolean | "torn" | "zeros" | "mixed";

export interface CrashDisk extends FileSystem {
  /** Calls `fault` before each operation, which fails as it says; without argument, none. */
  failWhen(fault?: (operation: DiskOperation, number: number) => InjectedFault | undefined): void;
  /** The power goes after so many more operations: all later ones fail with EPOWER and change nothing. */
  cutAfter(operations: number): void;
  unsynced(): readonly UnsyncedChange[];
  /** The disk after a power cut now, as a new disk on which everything is durable. */
  afterPowerCut(survival: "all" | "none" | Survival): CrashDisk;
  /** The process that used this handle is killed; the new handle goes on with the same disk, synced or not. */
  takeOver(): CrashDisk;
  /** Equal for two disks exactly when they hold the same names, modes and contents. */
  digest(): string;
}
