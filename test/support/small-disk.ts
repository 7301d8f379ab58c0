import { closeSync, mkdtempSync, openSync, rmSync, writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** A disk of its own for a test, in memory, that can be full or read-only. Only root of a Linux can have one. */
export interface SmallDisk {
  readonly path: string;
  /** Takes all space that is left, as the file `filling`. */
  fill(): void;
  free(): void;
  readOnly(on: boolean): void;
}

const SIZE = "512k";

function mount(...args: string[]): boolean {
  return Bun.spawnSync(["mount", ...args]).exitCode === 0;
}

/** Runs `use` with a fresh disk, and takes it away. */
export async function withSmallDisk<T>(use: (disk: SmallDisk) => T | Promise<T>): Promise<T> {
  const path = mkdtempSync(join(tmpdir(), "small-disk-"));
  try {
    if (!mount("-t", "tmpfs", "-o", `size=${SIZE},mode=700`, "tmpfs", path)) throw new Error("no disk");
    try {
      return await use(diskAt(path));
    } finally {
      Bun.spawnSync(["umount", path]);
    }
  } finally {
    rmSync(path, { recursive: true, force: true });
  }
}

function diskAt(path: string): SmallDisk {
  const filling = join(path, "filling");
  return {
    path,
    fill() {
      const descriptor = openSync(filling, "a");
      try {
        for (;;) writeSync(descriptor, Buffer.alloc(4096));
      } catch (error) {
        if ((error as { code?: string }).code !== "ENOSPC") throw error;
      } finally {
        closeSync(descriptor);
      }
    },
    free: () => rmSync(filling),
    readOnly(on) {
      if (!mount("-o", `remount,${on ? "ro" : "rw"}`, path)) throw new Error("it can't be mounted again");
    },
  };
}

/** Whether this machine lets a test have one: a container may refuse even its root. */
export const HAS_SMALL_DISKS: boolean =
  process.platform === "linux" &&
  process.getuid?.() === 0 &&
  (await withSmallDisk(() => true).catch(() => false));
