import { createMemoryFileSystem, memoryDisk } from "../platform/memory-filesystem.ts";
import type { OlderReader } from "../store/explore/image-check.ts";
import { failureText, type TortureFigures, type TortureReport, torture } from "../store/explore/torture.ts";

export { failureText, type OlderReader, type TortureFigures, type TortureReport };

/** The crash explorer over the disk in memory: no file is touched. Options as for `torture`. */
export function runTorture(options: {
  readonly seed: number;
  readonly enough: (figures: TortureFigures) => boolean | Promise<boolean>;
  readonly olderReader?: OlderReader;
}): Promise<TortureReport> {
  return torture({ ...options, createDisk: (abilities) => createMemoryFileSystem(memoryDisk(abilities)) });
}
