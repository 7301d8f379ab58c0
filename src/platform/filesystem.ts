import {
  type BigIntStats,
  chmodSync,
  closeSync,
  constants,
  fchmodSync,
  fstatSync,
  fsyncSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readSync,
  renameSync,
  unlinkSync,
  writeSync,
} from "node:fs";
import { chmod, type FileHandle, mkdir, open, rename, unlink } from "node:fs/promises";
import { FileFault, type FileStat, type FileStep, type FileSystem } from "../core/ports/platform.ts";

/**
 * Owns: the real filesystem behind the labelled port; turning system errors into `FileFault`.
 * Does not own: which files there are, in which order they change, or what is safe to read (store/secure.ts).
 *
 * I1. Modes are set explicitly after creation, so the process's umask changes nothing.
 * I2. Nothing follows a symlink at the last component of a path that is opened or created.
 */

const NO_FOLLOW = constants.O_NOFOLLOW ?? 0;
// Without O_NONBLOCK an open would hang on a FIFO that somebody put in place of a file.
const READ = constants.O_RDONLY | NO_FOLLOW | (constants.O_NONBLOCK ?? 0);
const CREATE = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | NO_FOLLOW;

/** The system's name of an error, such as ENOSPC. */
function errnoOf(error: unknown): string {
  if (typeof error === "object" && error !== null && "code" in error && typeof error.code === "string") {
    return error.code;
  }
  return "EUNKNOWN";
}

function fault(label: string, path: string, error: unknown): FileFault {
  return new FileFault(label, path, errnoOf(error), { cause: error });
}

function statOf(stats: BigIntStats): FileStat {
  return {
    kind: stats.isSymbolicLink()
      ? "symlink"
      : stats.isFile()
        ? "file"
        : stats.isDirectory()
          ? "directory"
          : "other",
    size: Number(stats.size),
    mode: Number(stats.mode & 0o7777n),
    uid: Number(stats.uid),
    links: Number(stats.nlink),
    device: stats.dev,
    inode: stats.ino,
    mtimeMs: Number(stats.mtimeMs),
  };
}

function pathOf(step: FileStep): string {
  if (step.op === "syncFiles") return step.folder;
  return step.op === "rename" ? step.to : step.path;
}

function bytesOf(data: string | Uint8Array): Uint8Array {
  return typeof data === "string" ? Buffer.from(data, "utf8") : data;
}

/** Windows has no fsync of a folder; NTFS journals names by itself. */
const SYNCS_FOLDERS = process.platform !== "win32";

async function writeAll(handle: FileHandle, data: Uint8Array): Promise<void> {
  for (let done = 0; done < data.length; ) {
    const { bytesWritten } = await handle.write(data, done, data.length - done);
    done += bytesWritten;
  }
}

async function perform(step: FileStep): Promise<void> {
  switch (step.op) {
    case "write": {
      const handle = await open(step.path, CREATE, step.mode);
      try {
        await handle.chmod(step.mode);
        await writeAll(handle, bytesOf(step.data));
        if (step.sync) await handle.sync();
      } finally {
        await handle.close();
      }
      return;
    }
    case "sync":
    case "syncDir": {
      if (step.op === "syncDir" && !SYNCS_FOLDERS) return;
      const handle = await open(step.path, READ);
      try {
        await handle.sync();
      } finally {
        await handle.close();
      }
      return;
    }
    case "syncFiles":
      for (const path of step.paths) await perform({ op: "sync", path, label: step.label });
      return;
    case "rename":
      return rename(step.from, step.to);
    case "unlink":
      return unlink(step.path).catch((error: unknown) => {
        if (!(step.missingOk && errnoOf(error) === "ENOENT")) throw error;
      });
    case "mkdir":
      try {
        await mkdir(step.path, { mode: step.mode });
      } catch (error) {
        if (step.existsOk && errnoOf(error) === "EEXIST") return;
        throw error;
      }
      return chmod(step.path, step.mode);
    case "chmod":
      return chmod(step.path, step.mode);
  }
}

function performSync(step: FileStep): void {
  switch (step.op) {
    case "write": {
      const descriptor = openSync(step.path, CREATE, step.mode);
      try {
        fchmodSync(descriptor, step.mode);
        const data = bytesOf(step.data);
        for (let done = 0; done < data.length; ) {
          done += writeSync(descriptor, data, done, data.length - done);
        }
        if (step.sync) fsyncSync(descriptor);
      } finally {
        closeSync(descriptor);
      }
      return;
    }
    case "sync":
    case "syncDir": {
      if (step.op === "syncDir" && !SYNCS_FOLDERS) return;
      const descriptor = openSync(step.path, READ);
      try {
        fsyncSync(descriptor);
      } finally {
        closeSync(descriptor);
      }
      return;
    }
    case "syncFiles":
      for (const path of step.paths) performSync({ op: "sync", path, label: step.label });
      return;
    case "rename":
      renameSync(step.from, step.to);
      return;
    case "unlink":
      try {
        unlinkSync(step.path);
      } catch (error) {
        if (!(step.missingOk && errnoOf(error) === "ENOENT")) throw error;
      }
      return;
    case "mkdir":
      try {
        mkdirSync(step.path, { mode: step.mode });
      } catch (error) {
        if (step.existsOk && errnoOf(error) === "EEXIST") return;
        throw error;
      }
      chmodSync(step.path, step.mode);
      return;
    case "chmod":
      chmodSync(step.path, step.mode);
      return;
  }
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
  return {
    uid: process.getuid?.(),
    lstat: (path, label) => reading(label, path, () => statOf(lstatSync(path, { bigint: true }))),
    open(path, label) {
      const descriptor = reading(label, path, () => openSync(path, READ));
      if (descriptor === undefined) return undefined;
      return {
        stat: () => guarded(label, path, () => statOf(fstatSync(descriptor, { bigint: true }))),
        read: (length) =>
          guarded(label, path, () => {
            const buffer = Buffer.allocUnsafe(length);
            let done = 0;
            while (done < length) {
              const got = readSync(descriptor, buffer, done, length - done, null);
              if (got === 0) break;
              done += got;
            }
            return buffer.subarray(0, done);
          }),
        close: () => guarded(label, path, () => closeSync(descriptor)),
      };
    },
    list: (path, label) => reading(label, path, () => readdirSync(path)),
    async run(steps) {
      for (const step of steps) {
        try {
          await perform(step);
        } catch (error) {
          throw fault(step.label, pathOf(step), error);
        }
      }
    },
    runSync(steps) {
      for (const step of steps) guarded(step.label, pathOf(step), () => performSync(step));
    },
  };
}
