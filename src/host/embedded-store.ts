import { resolve } from "node:path";
import { checkedStoreOptions } from "../config/embedded.ts";
import type { RetentionLimits } from "../core/limits.ts";
import type { Clock, FileSystem, Ids, Logger } from "../core/ports/platform.ts";
import type { ContinuationStore } from "../core/ports/store.ts";
import { createClock } from "../platform/clock.ts";
import { createFileSystem } from "../platform/filesystem.ts";
import { createIds } from "../platform/ids.ts";
import { openContinuationStore } from "../store/open.ts";
import { ownershipLock } from "../store/ownership.ts";
import { type Verification, verifyContinuation as verify } from "../store/verify.ts";

export { ConfigError, StoreError } from "../core/errors.ts";
export type { RetentionLimits } from "../core/limits.ts";
export type { Clock, FileSystem, Ids, Logger } from "../core/ports/platform.ts";
export type { ContinuationStore, DurableView, RecordView, StoreChange } from "../core/ports/store.ts";
export type { ContinuationMode, ContinuationRecord, ContinuationState } from "../core/record.ts";
export { checkContinuationStore, type StoreCheck } from "../store/check.ts";
export type { Verification } from "../store/verify.ts";

/** `mono-agent/store`: the per-record store by itself. Importing it starts nothing. */

export interface StoreOptions {
  /** Made owner-only when it is not there. A relative path is resolved once, against the working folder of then. */
  readonly stateDir: string;
  /** Missing limits have the defaults of the configuration. */
  readonly retention?: Partial<RetentionLimits>;
  readonly clock?: Clock;
  readonly ids?: Ids;
  readonly fs?: FileSystem;
  readonly logger?: Logger;
}

/**
 * Opens a continuation state directory and owns it until `close`. Rejects with a `ConfigError` that lists every wrong
 * option, before anything is opened, and with a `StoreError` that names the path: `store_owned` while another process
 * has it; an unsafe or damaged directory is left as it was.
 */
export async function openStore(options: StoreOptions): Promise<ContinuationStore> {
  const { stateDir, retention } = checkedStoreOptions(options);
  const fs = options.fs ?? createFileSystem();
  const clock = options.clock ?? createClock();
  return openContinuationStore({
    stateDir: resolve(stateDir),
    fs,
    clock,
    ids: options.ids ?? createIds(),
    logger: options.logger ?? QUIET,
    retention,
    acquireLock: ownershipLock(fs, clock, process.pid),
  });
}

/**
 * Recomputes from disk what binds one continuation together, read-only, with the directory in use or not; undefined for
 * an unknown id.
 */
export function verifyContinuation(options: {
  readonly stateDir: string;
  readonly continuationId: string;
  readonly fs?: FileSystem;
}): Verification | undefined {
  return verify({ fs: createFileSystem(), ...options, stateDir: resolve(options.stateDir) });
}

/** Says nothing: a library speaks when it is given a logger. */
export const QUIET: Logger = { debug() {}, info() {}, warn() {}, error() {} };
