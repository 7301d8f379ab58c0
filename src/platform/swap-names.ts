import { ptr, read } from "bun:ffi";
import { constants } from "node:os";
import { fromCLibrary } from "./c-library.ts";

/**
 * Owns: `renameat2(2)` with RENAME_EXCHANGE, which swaps two names atomically. Neither Bun nor Node has it, so it is
 * called in the C library, on Linux only. A file that is replaced by rename is deleted, and ext4 makes that dear: it
 * gives back the blocks, and for minutes every new file looks past each inode that was freed. A swapped file stays and
 * is written again.
 */

const AT_FDCWD = -100;
const RENAME_EXCHANGE = 2;
const { ENOENT, EINVAL, ENOSYS, EOPNOTSUPP, EPERM } = constants.errno;
/** Nothing was done: one of the names is missing, or the system, its filesystem or a sandbox has no such call. */
const NOT_SWAPPED: ReadonlySet<number> = new Set([ENOENT, EINVAL, ENOSYS, EOPNOTSUPP, EPERM]);

/** The errno, or 0. */
type Exchange = (a: Uint8Array, b: Uint8Array) => number;

/** Undefined until asked for, null where there is none. Each thread has its own. */
let exchange: Exchange | null | undefined;

/**
 * Swaps the names; false when they are certainly as before, so that the caller may rename instead. Throws when the
 * system failed in a way that does not tell what became of them.
 */
export function swapNames(a: string, b: string): boolean {
  if (exchange === undefined) exchange = load();
  if (exchange === null) return false;
  const errno = exchange(cString(a), cString(b));
  if (errno === 0) return true;
  if (NOT_SWAPPED.has(errno)) return false;
  throw Object.assign(new Error(`renameat2 failed with errno ${errno}`), { code: nameOf(errno) });
}

function nameOf(errno: number): string {
  return Object.entries(constants.errno).find(([, number]) => number === errno)?.[0] ?? "EIO";
}

const cString = (text: string) => Buffer.from(`${text}\0`, "utf8");

function load(): Exchange | null {
  const library = fromCLibrary({
    renameat2: { args: ["i32", "ptr", "i32", "ptr", "u32"], returns: "i32" },
    __errno_location: { args: [], returns: "ptr" },
  });
  if (library === undefined) return null;
  return (a, b) => {
    if (library.renameat2(AT_FDCWD, ptr(a), AT_FDCWD, ptr(b), RENAME_EXCHANGE) === 0) return 0;
    const at = library.__errno_location();
    return typeof at === "number" ? read.i32(at) : constants.errno.EIO;
  };
}
