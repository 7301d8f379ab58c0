import { STORE_ENTRIES } from "../../src/core/store-files.ts";
import type { MemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { createGate } from "../support/harness-fakes.ts";

export const HOUR_MS = 3_600_000;

/** Holds the first step with this label until `open` is called; `reached` resolves when it is there. */
export function held(fs: MemoryFileSystem, label: string) {
  const arrived = createGate();
  const gate = createGate();
  let done = false;
  fs.holdWhen((step) => {
    if (done || step.label !== label) return undefined;
    done = true;
    arrived.open();
    return gate.opened;
  });
  return { reached: arrived.opened, open: gate.open };
}

/** Activation markers on the disk. */
export function activationOnDisk(fs: MemoryFileSystem): string[] {
  return Object.keys(fs.files()).filter((path) => path.includes(STORE_ENTRIES.markers));
}
