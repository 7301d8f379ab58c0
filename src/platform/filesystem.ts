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
import { FileFault, type FileStat, type FileSystem } from "../core/ports/platform.ts";
import { errnoOf, faultOf, performSteps, READ } from "./filesystem-steps.ts";
import { createStepThreads } from "./filesystem-threads.ts";

/**
 * Owns: the real filesystem behind the labelled port: reads here, changes by filesystem-steps.ts, those of `run` in
 * threads of their own.
 * Does not own: which files there are, in which order they change, or what is safe to read (store/secure.ts).
 */

function fault(label: string, path: string, error: unknown): FileFault {
  return new FileFault(label, path, errnoOf(error), { cause: error });
}

/** Above this a number can't tell two inodes apart. */
const EXACT = Number.MAX_SAFE_INTEGER;

/** Exact numbers cost twice the time, so they are asked for only where the identity of the file needs them. */
function statOf(stats: Stats, exact: () => BigIntStats): FileStat {
  const sure = stats.ino <= EXACT && stats.dev <= EXACT && stats.size <= EXACT;
  const identity = sure ? stats : exact();
  return {
    kind: stats.isSymbolicLink()
      ? "symlink"
      : stats.isFile()
        ? "file"
        : stats.isDirectory()
          ? "directory"
          : "other",
    size: stats.size,
    mode: stats.mode & 0o7777,
    uid: stats.uid,
    links: stats.nlink,
    device: BigInt(identity.dev),
    inode: BigInt(identity.ino),
    mtimeMs: Math.trunc(stats.mtimeMs),
  };
}

function reading<T>(label: string, path: string, read: () => T): T | undefined {
  try {
    return read();
  } catch (error) {
    // ENOTDIR: a parent is not a folder, so nothing is there either.
    if (errnoOf(error) === "ENOENT" || errnoOf(error) === "ENOTDIR") return undefined;
    throw fault(label, path, error);
  }
}

function guarded<T>(label: string, path: string, act: () => T): T {
  try {
    return act();
  } catch (error) {
    throw fault(label, path, error);
  }
}

/** The filesystem of this machine. Every failure is a `FileFault` that names the step, the path and the errno. */
export function createFileSystem(): FileSystem {
  const threads = createStepThreads();
  return {
    uid: process.getuid?.(),
    lstat: (path, label) =>
      reading(label, path, () => statOf(lstatSync(path), () => lstatSync(path, { bigint: true }))),
    open(path, label) {
      const descriptor = reading(label, path, () => openSync(path, READ));
      if (descriptor === undefined) return undefined;
      return {
        stat: () =>
          guarded(label, path, () =>
            statOf(fstatSync(descriptor), () => fstatSync(descriptor, { bigint: true })),
          ),
        read: (length) =>
          guarded(label, path, () => {
            const buffer = Buffer.allocUnsafe(length);
            let done = 0;
            while (done < length) {
              const got = readSync(descriptor, buffer, done, length - done, null);
              if (got === 0) break;
              done += got;
            }
            return done === length ? buffer : buffer.subarray(0, done);
          }),
        close: () => guarded(label, path, () => closeSync(descriptor)),
      };
    },
    list: (path, label) => reading(label, path, () => readdirSync(path)),
    run: (steps) => threads.run(steps),
    runSync(steps) {
      const failure = performSteps(steps);
      if (failure !== undefined) throw faultOf(steps, failure);
    },
    close: () => threads.close(),
  };
}
