import { read } from "bun:ffi";
import { closeSync, constants, openSync, statfsSync } from "node:fs";
import { release } from "node:os";
import { fromCLibrary } from "./c-library.ts";

/**
 * Owns: `syncfs(2)`, which makes everything that was written to a filesystem durable with one call. Neither Bun nor
 * Node has it, so it is called in the C library. Only where it is known to give what fsync of each file gives: Linux
 * from 5.8 on (earlier it reported no failed write), on a local filesystem that this list names (FUSE and network
 * filesystems do not pass it on). Everywhere else callers sync each file.
 */
export interface Syncfs {
  /** True when everything is durable, false when the system does not allow the call; throws on a failed write. */
  sync(): boolean;
  close(): void;
}

/** `f_type` of ext2/3/4, xfs, btrfs, f2fs and tmpfs (statfs(2)). */
const LOCAL_FILESYSTEMS: ReadonlySet<number> = new Set([
  0xef53, 0x58465342, 0x9123683e, 0xf2f52010, 0x01021994,
]);
const NOT_ALLOWED: ReadonlySet<number> = new Set([1, 38]); // EPERM and ENOSYS: a sandbox forbids it.

interface Calls {
  syncfs(descriptor: number): number;
  errno(): number;
}

/** Undefined until asked for, null where there is none. Each thread has its own. */
let calls: Calls | null | undefined;

/** Opens `folder` for `sync`; undefined where syncfs can't be relied on. Throws when the folder can't be opened. */
export function openForSyncfs(folder: string): Syncfs | undefined {
  if (calls === undefined) calls = load();
  const found = calls;
  if (found === null) return undefined;
  const descriptor = openSync(folder, constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW);
  try {
    // Zero-extended, as some systems give the type as a signed number.
    if (!LOCAL_FILESYSTEMS.has(statfsSync(folder).type >>> 0)) {
      closeSync(descriptor);
      return undefined;
    }
  } catch (error) {
    closeSync(descriptor);
    throw error;
  }
  return {
    sync() {
      if (found.syncfs(descriptor) === 0) return true;
      const errno = found.errno();
      if (NOT_ALLOWED.has(errno)) {
        calls = null;
        return false;
      }
      throw Object.assign(new Error(`syncfs failed with errno ${errno}`), {
        code: errno === 28 ? "ENOSPC" : errno === 122 ? "EDQUOT" : "EIO",
      });
    },
    close: () => closeSync(descriptor),
  };
}

function load(): Calls | null {
  if (process.platform !== "linux" || !isFrom5_8(release())) return null;
  const library = fromCLibrary({
    syncfs: { args: ["i32"], returns: "i32" },
    __errno_location: { args: [], returns: "ptr" },
  });
  if (library === undefined) return null;
  return {
    syncfs: (descriptor) => library.syncfs(descriptor),
    errno() {
      const at = library.__errno_location();
      return typeof at === "number" ? read.i32(at) : 0;
    },
  };
}

function isFrom5_8(kernel: string): boolean {
  const [major = 0, minor = 0] = kernel.split(".").map(Number.parseFloat);
  return major > 5 || (major === 5 && minor >= 8);
}
