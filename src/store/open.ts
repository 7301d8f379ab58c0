import { dirname } from "node:path";
import { StoreError } from "../core/errors.ts";
import type { RetentionLimits } from "../core/limits.ts";
import {
  type Clock,
  FileFault,
  type FileStep,
  type FileSystem,
  type Ids,
  type Logger,
  type OwnershipLock,
} from "../core/ports/platform.ts";
import type { ContinuationStore } from "../core/ports/store.ts";
import type { ContinuationRecord } from "../core/record.ts";
import { settleRecord } from "../core/retention.ts";
import { markerProjection, removeMarker } from "./activation.ts";
import { encodeRecord } from "./codec.ts";
import { missingGuard } from "./guard.ts";
import { type Inspection, inspectState } from "./inspect.ts";
import { CARRY_LIMITS, type CarryLimits } from "./journal.ts";
import { type StorePaths, storePaths } from "./paths.ts";
import { secretRefusal, writeSecret } from "./secret.ts";
import { FOLDER_MODE, inspectFolder } from "./secure.ts";
import { createStore, type OpenedStore } from "./store.ts";

/**
 * Owns: opening a state directory (store-format.md §7), in order: own it, read all of it, decide, then act.
 *
 * I1. A refused opening changes nothing but the ownership database: every refusal comes before the first write.
 * I2. A crash at any step of acting leaves a directory that opens again to the same records.
 */

export interface OpenOptions {
  /** Absolute path; made with its parents when nothing is there. */
  readonly stateDir: string;
  readonly fs: FileSystem;
  readonly clock: Clock;
  readonly ids: Ids;
  readonly logger: Logger;
  readonly retention: RetentionLimits;
  /** Takes process-lifetime ownership by the file at `path`, or throws `store_owned` (ownership.ts). */
  readonly acquireLock: (path: string) => OwnershipLock;
  readonly carryLimits?: CarryLimits;
}

/** What opening will change, decided before anything is. */
interface Plan {
  /** There is v3 evidence that the manifest does not know of yet: guard and manifest come before anything else. */
  readonly requireGuard: boolean;
  readonly secret: Uint8Array | undefined;
  readonly markers: { changed: ContinuationRecord[]; marker: Inspection["markers"][number]["marker"] }[];
  /** Terminal records that still carry what retention takes away. */
  readonly settle: ContinuationRecord[];
}

/**
 * Opens the store, or rejects with a `StoreError` that names the path and leaves the directory as it was. Resolves
 * when transaction and markers are applied, retention is done and temporaries are gone.
 */
export async function openContinuationStore(options: OpenOptions): Promise<ContinuationStore> {
  const { fs, clock, ids, logger } = options;
  const paths = storePaths(options.stateDir);
  let lock: OwnershipLock | undefined;
  let opened: OpenedStore | undefined;
  try {
    const folder = inspectFolder(fs, paths.stateDir, "state");
    if (!folder.exists) fs.runSync(stateDirSteps(fs, paths.stateDir));
    lock = options.acquireLock(paths.owner);
    const nowMs = clock.now();
    const inspection = inspectState(fs, paths, (problem) => {
      throw new StoreError(problem.code, problem.message);
    });
    const plan = decide(paths, inspection, new Date(nowMs).toISOString());

    prepareFolders(fs, paths, inspection, logger);
    if (folder.exists) settleNames(fs, paths, inspection, logger);
    const secret = plan.secret ?? writeSecret(fs, paths, ids);
    opened = createStore({
      fs,
      paths,
      clock,
      ids,
      logger,
      retention: options.retention,
      lock,
      secret,
      inspection,
      carryLimits: options.carryLimits ?? CARRY_LIMITS,
    });
    const { store } = opened;
    if (plan.requireGuard) await opened.requireGuard();
    for (const { changed, marker } of plan.markers) {
      await opened.enqueueBarrier(changed, () => removeMarker(fs, paths, marker));
    }
    if (plan.settle.length > 0) await store.commit({ puts: plan.settle });
    await store.sweep(nowMs);
    await opened.drain();
    await opened.sweepSnapshots();
    return store;
  } catch (error) {
    if (opened === undefined) lock?.release();
    else await opened.abandon();
    if (error instanceof FileFault) {
      throw new StoreError(
        "store_write_failed",
        `the state directory could not be opened: ${error.message}`,
        {
          cause: error,
        },
      );
    }
    throw error;
  }
}

function decide(paths: StorePaths, inspection: Inspection, nowIso: string): Plan {
  const { manifest, secret } = inspection;
  const evidence =
    inspection.transaction !== undefined || inspection.records.size > 0 || inspection.markers.length > 0;
  const guardRequired = manifest?.rollbackGuardRequired ?? false;
  if (guardRequired && !inspection.guard) throw missingGuard(paths);
  if (!guardRequired && inspection.legacy.length > 0) {
    throw new StoreError(
      "store_migration_needed",
      `${inspection.legacy[0]} belongs to an older format that this version does not convert yet: start the older runtime (@mono-agent/agent-app 0.22) once on this directory to convert it, or move the directory away`,
    );
  }
  if (secret.kind !== "valid" && evidence) throw secretRefusal(paths, secret.kind);

  const records = new Map(inspection.records);
  const markers = inspection.markers.map(({ path, marker }) => {
    const changed = markerProjection(path, marker, records.values());
    for (const record of changed) encodeRecord(record);
    return { changed, marker };
  });
  for (const record of inspection.transaction?.writes ?? []) encodeRecord(record);
  const settle: ContinuationRecord[] = [];
  for (const record of records.values()) {
    const settled = settleRecord(record, nowIso, { keepText: true });
    if (settled === record) continue;
    try {
      encodeRecord(settled);
      settle.push(settled);
    } catch {
      // Only a record at the very limit, which the added date would push over it; it stays as it is.
    }
  }
  return {
    requireGuard: evidence && !guardRequired,
    secret: secret.kind === "valid" ? secret.secret : undefined,
    markers,
    settle,
  };
}

/** The state directory and the parents it lacks, each durable in its own parent. */
function stateDirSteps(fs: FileSystem, stateDir: string): FileStep[] {
  const missing: string[] = [];
  for (let path = stateDir; fs.lstat(path, "state.parent") === undefined; path = dirname(path)) {
    missing.unshift(path);
    if (dirname(path) === path) break;
  }
  return missing.flatMap((path): FileStep[] => [
    { op: "mkdir", path, mode: FOLDER_MODE, existsOk: true, label: "state.mkdir" },
    { op: "syncDir", path: dirname(path), label: "state.parent.sync" },
  ]);
}

/**
 * Makes durable what the last process may have been killed before it could sync, and what is relied on from here on:
 * the names of a new directory, which must not be lost with what will be acknowledged; and a transaction or marker,
 * whose records must not reach their own files while it can still be lost itself, or half of it could remain.
 */
function settleNames(fs: FileSystem, paths: StorePaths, inspection: Inspection, logger: Logger): void {
  // Once the manifest requires the guard, all names of a new directory were synced.
  const fresh = !(inspection.manifest?.rollbackGuardRequired ?? false);
  if (fresh) {
    try {
      fs.runSync([{ op: "syncDir", path: dirname(paths.stateDir), label: "parent.sync" }]);
    } catch (error) {
      // A parent that may be entered but not read can't be synced; whoever made it so also made this directory.
      logger.warn("the parent of the state directory could not be synced", {
        path: dirname(paths.stateDir),
        errno: error instanceof FileFault ? error.errno : undefined,
      });
    }
  }
  if (fresh || inspection.transaction !== undefined) {
    fs.runSync([{ op: "syncDir", path: paths.stateDir, label: "folder.sync" }]);
  }
  if (inspection.markers.length > 0) {
    fs.runSync([{ op: "syncDir", path: paths.markers, label: "marker.sync" }]);
  }
}

function prepareFolders(fs: FileSystem, paths: StorePaths, inspection: Inspection, logger: Logger): void {
  for (const repair of inspection.repairs) {
    if (repair.op === "chmod")
      logger.warn("a folder did not have mode 0700; it is repaired", { path: repair.path });
  }
  fs.runSync([
    ...inspection.repairs,
    ...inspection.missingFolders.map(
      (path): FileStep => ({ op: "mkdir", path, mode: FOLDER_MODE, existsOk: true, label: "folder.mkdir" }),
    ),
  ]);
  if (inspection.missingFolders.length > 0) {
    fs.runSync([{ op: "syncDir", path: paths.stateDir, label: "folder.sync" }]);
  }
  for (const path of inspection.temporaries) {
    try {
      fs.runSync([{ op: "unlink", path, missingOk: true, label: "temporary.unlink" }]);
    } catch (error) {
      paths.avoidTemporary(path);
      logger.warn("a temporary could not be removed", {
        path,
        errno: error instanceof FileFault ? error.errno : undefined,
      });
    }
  }
}
