import { fileJson } from "../core/json.ts";
import { MANIFEST_MAX_BYTES } from "../core/limits.ts";
import {
  type Clock,
  FileFault,
  type FileStep,
  type FileSystem,
  type Ids,
  type Logger,
} from "../core/ports/platform.ts";
import { readSecureFile, replaceSteps } from "../core/secure-files.ts";
import { manifestSchema, type StoreManifest, type StoreStats } from "../core/store-files.ts";
import { checkValue, parseJson } from "./codec.ts";
import type { StorePaths } from "./paths.ts";

/** How often the manifest follows the store; it is a report and may lag (store-format.md §6). */
export const MANIFEST_INTERVAL_MS = 1000;

export function readManifest(fs: FileSystem, paths: StorePaths): StoreManifest | undefined {
  const data = readSecureFile(fs, paths.manifest, MANIFEST_MAX_BYTES, "manifest.read");
  return data === undefined
    ? undefined
    : checkValue(paths.manifest, manifestSchema, parseJson(paths.manifest, data));
}

export interface ManifestWriter {
  /** Makes `rollbackGuardRequired: true` durable. Never undone. */
  requireGuard(): Promise<void>;
  readonly guardRequired: boolean;
  /** The store changed: the manifest follows within a second. */
  touch(): void;
  /** No report is written any more; resolves when one under way is done. */
  stop(): Promise<void>;
  /** Stops, and writes the last report durably unless the one on disk says the same. */
  close(): Promise<void>;
}

export function createManifestWriter(deps: {
  fs: FileSystem;
  paths: StorePaths;
  clock: Clock;
  ids: Ids;
  logger: Logger;
  stats: () => StoreStats;
  found: StoreManifest | undefined;
}): ManifestWriter {
  const { fs, paths, clock } = deps;
  let guardRequired = deps.found?.rollbackGuardRequired ?? false;
  let reported = deps.found?.stats;
  let cancelTimer: (() => void) | undefined;
  let closed = false;
  let tail: Promise<unknown> = Promise.resolve();

  function steps(durable: boolean): FileStep[] {
    const stats = deps.stats();
    reported = stats;
    const manifest: StoreManifest = {
      schemaVersion: 3,
      generation: deps.ids.uuid(),
      updatedAt: new Date(clock.now()).toISOString(),
      rollbackGuardRequired: guardRequired,
      stats,
    };
    const replace = replaceSteps(
      paths.manifest,
      paths.temporary(paths.manifest),
      fileJson(manifest),
      "manifest",
    );
    return durable ? [...replace, { op: "syncDir", path: paths.stateDir, label: "manifest.sync" }] : replace;
  }

  /** One write at a time; the content is made when its turn comes. */
  function write(durable: boolean): Promise<void> {
    const done = tail.then(() => fs.run(steps(durable)));
    tail = done.catch(() => {});
    return done;
  }

  function stopTimer(): void {
    closed = true;
    cancelTimer?.();
    cancelTimer = undefined;
  }

  return {
    get guardRequired() {
      return guardRequired;
    },
    async requireGuard() {
      guardRequired = true;
      await write(true);
    },
    touch() {
      if (closed || cancelTimer !== undefined) return;
      cancelTimer = clock.timer(MANIFEST_INTERVAL_MS, () => {
        cancelTimer = undefined;
        write(false).catch((error: unknown) => {
          deps.logger.warn("the manifest could not be written; it is only a report", {
            path: paths.manifest,
            errno: error instanceof FileFault ? error.errno : undefined,
          });
        });
      });
    },
    async stop() {
      stopTimer();
      await tail;
    },
    async close() {
      stopTimer();
      await tail;
      if (!saysTheSame(reported, deps.stats())) await write(true);
    },
  };
}

/** Compares what we report, and not what else a manifest found on disk may carry at any depth. */
function saysTheSame(found: StoreStats | undefined, now: StoreStats): boolean {
  if (found === undefined) return false;
  const { limits, ...counts } = now;
  return (
    Object.entries(counts).every(([name, value]) => found[name] === value) &&
    Object.entries(limits).every(([name, value]) => found.limits[name] === value)
  );
}
