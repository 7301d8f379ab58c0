import { StoreError } from "./errors.ts";
import type { FileStat, FileStep, FileSystem } from "./ports/platform.ts";

/**
 * Owns: the rules of store-format.md §9 for reading a file and for trusting a folder.
 * Does not own: what a violation means for the store; opening stops, a snapshot only harms its continuation.
 *
 * I1. A file is read only through a descriptor that names the same inode before, at and after the read.
 * I2. Every violation is a `StoreError` that names the path: `store_unsafe_file`, or, for a file that is larger than
 *     any that we write, `store_corrupt`.
 */

export const FILE_MODE = 0o600;
export const FOLDER_MODE = 0o700;
const FOREIGN_BITS = 0o077;

/** What reading one file needs of the filesystem. */
type FileReads = Pick<FileSystem, "uid" | "lstat" | "open">;

/** `.<anything>.tmp`: never evidence of a commit (store-format.md §1). */
const TEMPORARY = /^\..+\.tmp$/;

export function isTemporary(name: string): boolean {
  return TEMPORARY.test(name);
}

export function unsafe(path: string, problem: string): StoreError {
  return new StoreError("store_unsafe_file", `${path} ${problem}`);
}

/**
 * Reads a whole file of at most `maxBytes`; undefined when nothing is there. With `scratch`, a file that fits is read
 * into it, for a caller who is done with the bytes before the next read.
 */
export function readSecureFile(
  fs: FileReads,
  path: string,
  maxBytes: number,
  label: string,
  scratch?: Uint8Array,
): Uint8Array | undefined {
  const seen = fs.lstat(path, label);
  if (seen === undefined) return undefined;
  requireSafeFile(fs, path, seen, maxBytes);
  const handle = fs.open(path, label);
  if (handle === undefined) throw unsafe(path, "disappeared while it was opened");
  try {
    const opened = handle.stat();
    requireSameFile(path, seen, opened);
    requireSafeFile(fs, path, opened, maxBytes);
    // No byte more than the size is read: growth shows in the size afterwards, and a second read would cost as much.
    const fits = scratch !== undefined && opened.size <= scratch.length;
    const data = fits ? handle.read(opened.size, scratch) : handle.read(opened.size);
    const after = handle.stat();
    requireSameFile(path, opened, after);
    if (data.length !== opened.size || after.size !== opened.size) {
      throw unsafe(path, "changed while it was read");
    }
    return data;
  } finally {
    handle.close();
  }
}

/** A regular file of ours with one link, no bits for others and at most `maxBytes`; else throws. */
export function requireSafeFile(
  fs: Pick<FileSystem, "uid">,
  path: string,
  stat: FileStat,
  maxBytes: number,
): void {
  if (stat.kind !== "file") throw unsafe(path, `must be a regular file, but it is a ${describe(stat)}`);
  if (stat.links !== 1) throw unsafe(path, `must have exactly one hard link, but it has ${stat.links}`);
  requireOwner(fs, path, stat);
  if (fs.uid !== undefined && (stat.mode & FOREIGN_BITS) !== 0) {
    throw unsafe(path, `must not be open to group or others, but its mode is ${octal(stat.mode)}`);
  }
  if (stat.size > maxBytes) {
    throw new StoreError(
      "store_corrupt",
      `${path} must be at most ${maxBytes} bytes, but it has ${stat.size}`,
    );
  }
}

/** Throws unless both name the same inode. */
export function requireSameFile(path: string, before: FileStat, after: FileStat): void {
  if (before.device !== after.device || before.inode !== after.inode) {
    throw unsafe(path, "was replaced while it was opened");
  }
}

function requireOwner(fs: Pick<FileSystem, "uid">, path: string, stat: FileStat): void {
  if (fs.uid !== undefined && stat.uid !== fs.uid) {
    throw unsafe(path, `must belong to user ${fs.uid}, but it belongs to ${stat.uid}`);
  }
}

/** What a folder is now: absent, as it should be, or with a mode that `repair` sets right. Changes nothing. */
export function inspectFolder(
  fs: FileSystem,
  path: string,
  label: string,
): { exists: boolean; repair: FileStep[] } {
  const stat = fs.lstat(path, label);
  if (stat === undefined) return { exists: false, repair: [] };
  if (stat.kind !== "directory") throw unsafe(path, `must be a folder, but it is a ${describe(stat)}`);
  requireOwner(fs, path, stat);
  const loose = fs.uid !== undefined && stat.mode !== FOLDER_MODE;
  return {
    exists: true,
    repair: loose ? [{ op: "chmod", path, mode: FOLDER_MODE, label: `${label}.mode` }] : [],
  };
}

/** Steps that put `data` in place of `path` atomically; the name is durable only after a fsync of the folder. */
export function replaceSteps(
  path: string,
  temporary: string,
  data: string | Uint8Array,
  label: string,
): FileStep[] {
  return [
    { op: "write", path: temporary, data, mode: FILE_MODE, sync: true, label: `${label}.write` },
    { op: "rename", from: temporary, to: path, label: `${label}.rename` },
  ];
}

function describe(stat: FileStat): string {
  return stat.kind === "other" ? "device, socket or pipe" : stat.kind;
}

function octal(mode: number): string {
  return mode.toString(8).padStart(4, "0");
}
