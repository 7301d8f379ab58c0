import {
  type BigIntStats,
  closeSync,
  fstatSync,
  lstatSync,
  openSync,
  readdirSync,
  readSync,
  type Stats,
} from "node:fs";
import { FileFault, type FileStat, type FileSystem, type ReadHandle } from "../core/ports/platform.ts";
import { errnoOf, READ } from "./filesystem-steps.ts";

/**
 * Owns: the reading half of the real filesystem, in the calling thread.
 * Does not own: what is safe to read (core/secure-files.ts).
 */

function fault(label: string, path: string, error: unknown): FileFault {
  return new FileFault(label, path, errnoOf(error), { cause: error });
}

/** ENOTDIR: a parent is not a folder, so nothing is there either. */
function isMissing(error: unknown): boolean {
  return errnoOf(error) === "ENOENT" || errnoOf(error) === "ENOTDIR";
}

/** Above this a number can't tell two inodes apart. */
const EXACT = Number.MAX_SAFE_INTEGER;

/** Exact numbers cost twice the time, so they are asked for only where the identity of the file needs them. */
function isExact(stats: Stats): boolean {
  return stats.ino <= EXACT && stats.dev <= EXACT && stats.size <= EXACT;
}

function statOf(stats: Stats, { dev, ino }: Stats | BigIntStats): FileStat {
  return {
    kind: stats.isFile()
      ? "file"
      : stats.isDirectory()
        ? "directory"
        : stats.isSymbolicLink()
          ? "symlink"
          : "other",
    size: stats.size,
    mode: stats.mode & 0o7777,
    uid: stats.uid,
    links: stats.nlink,
    device: dev,
    inode: ino,
    mtimeMs: Math.trunc(stats.mtimeMs),
    ctimeMs: stats.ctimeMs,
  };
}

// A start calls these some hundred thousand times.

function lstatOf(path: string, label: string): FileStat | undefined {
  try {
    const stats = lstatSync(path);
    return statOf(stats, isExact(stats) ? stats : lstatSync(path, { bigint: true }));
  } catch (error) {
    if (isMissing(error)) return undefined;
    throw fault(label, path, error);
  }
}

function openForReading(path: string, label: string): ReadHandle | undefined {
  let descriptor: number;
  try {
    descriptor = openSync(path, READ);
  } catch (error) {
    if (isMissing(error)) return undefined;
    throw fault(label, path, error);
  }
  return {
    stat() {
      try {
        const stats = fstatSync(descriptor);
        return statOf(stats, isExact(stats) ? stats : fstatSync(descriptor, { bigint: true }));
      } catch (error) {
        throw fault(label, path, error);
      }
    },
    read(length, into = Buffer.allocUnsafe(length)) {
      try {
        let done = 0;
        while (done < length) {
          const got = readSync(descriptor, into, done, length - done, null);
          if (got === 0) break;
          done += got;
        }
        return done === into.length ? into : into.subarray(0, done);
      } catch (error) {
        throw fault(label, path, error);
      }
    },
    close() {
      try {
        closeSync(descriptor);
      } catch (error) {
        throw fault(label, path, error);
      }
    },
  };
}

function namesIn(path: string, label: string): string[] | undefined {
  try {
    return readdirSync(path);
  } catch (error) {
    if (isMissing(error)) return undefined;
    throw fault(label, path, error);
  }
}

export const fileReads: Pick<FileSystem, "uid" | "lstat" | "open" | "list"> = {
  uid: process.getuid?.(),
  lstat: lstatOf,
  open: openForReading,
  list: namesIn,
};
