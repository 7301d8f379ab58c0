import { TRANSACTION_MAX_BYTES } from "../core/limits.ts";
import type { FileStat, FileSystem, ReadHandle } from "../core/ports/platform.ts";
import type { StorePaths } from "./paths.ts";

/** Tries to read a file that a host keeps changing; then it is read as it is. */
const TRIES = 20;

/**
 * The filesystem for reading a state directory that a host may have open. A host writes over files that it has just
 * swapped out (checkpoint.ts, journal.ts), so one that is still being read could be half of something else. Here a
 * record file and the transaction file are read when they are looked at, as a whole and from a file that had the name
 * before and after; opening them then gives what was read.
 */
export function liveReads(fs: FileSystem, paths: StorePaths): FileSystem {
  const isRewritten = (path: string) => path === paths.transaction || path.startsWith(paths.records);
  let last: { readonly path: string; readonly stat: FileStat; readonly data: Uint8Array } | undefined;

  function lstat(path: string, label: string): FileStat | undefined {
    if (!isRewritten(path)) return fs.lstat(path, label);
    last = undefined;
    for (let attempt = 1; attempt <= TRIES; attempt += 1) {
      const seen = fs.lstat(path, label);
      if (seen?.kind !== "file" || seen.size > TRANSACTION_MAX_BYTES) return seen;
      const read = readWhole(path, label);
      const now = fs.lstat(path, label);
      if (read === undefined || now === undefined) continue;
      if ([read.stat, now].every((stat) => sameVersion(seen, stat)) && read.data.length === seen.size) {
        last = { path, ...read };
        return read.stat;
      }
    }
    return fs.lstat(path, label);
  }

  function readWhole(path: string, label: string): { stat: FileStat; data: Uint8Array } | undefined {
    const handle = fs.open(path, label);
    if (handle === undefined) return undefined;
    try {
      const stat = handle.stat();
      // A byte more than it has, so that growth shows.
      return { stat, data: handle.read(Math.min(stat.size, TRANSACTION_MAX_BYTES) + 1) };
    } finally {
      handle.close();
    }
  }

  function open(path: string, label: string): ReadHandle | undefined {
    if (last?.path !== path) return fs.open(path, label);
    const { stat, data } = last;
    last = undefined;
    let at = 0;
    return {
      stat: () => stat,
      read(length) {
        const part = data.subarray(at, at + length);
        at += part.length;
        return part;
      },
      close: () => {},
    };
  }

  return { ...fs, lstat, open, readAhead: undefined };
}

function sameVersion(a: FileStat, b: FileStat): boolean {
  return a.device === b.device && a.inode === b.inode && a.size === b.size && a.ctimeMs === b.ctimeMs;
}
