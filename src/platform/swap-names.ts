import { ptr } from "bun:ffi";
import { fromCLibrary } from "./c-library.ts";

/**
 * Owns: `renameat2(2)` with RENAME_EXCHANGE, which swaps two names atomically. Neither Bun nor Node has it, so it is
 * called in the C library, on Linux only. A file that is replaced by rename is deleted, and ext4 makes that dear: it
 * gives back the blocks, and for minutes every new file looks past each inode that was freed. A swapped file stays and
 * is written again.
 */

const AT_FDCWD = -100;
const RENAME_EXCHANGE = 2;

type Exchange = (a: Uint8Array, b: Uint8Array) => number;

/** Undefined until asked for, null where there is none. Each thread has its own. */
let exchange: Exchange | null | undefined;

/**
 * Swaps the names; false when they are as before: the system or its filesystem can't, or one of them is missing. The
 * caller then renames, which tells what is wrong if anything is.
 */
export function swapNames(a: string, b: string): boolean {
  if (exchange === undefined) exchange = load();
  return exchange !== null && exchange(cString(a), cString(b)) === 0;
}

const cString = (text: string) => Buffer.from(`${text}\0`, "utf8");

function load(): Exchange | null {
  const library = fromCLibrary({
    renameat2: { args: ["i32", "ptr", "i32", "ptr", "u32"], returns: "i32" },
  });
  if (library === undefined) return null;
  return (a, b) => library.renameat2(AT_FDCWD, ptr(a), AT_FDCWD, ptr(b), RENAME_EXCHANGE);
}
