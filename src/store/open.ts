import { dirname } from "node:path";
import { diskRemedy } from "../core/disk-remedy.ts";
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
import { FOLDER_MODE, inspectFolder } from "../core/secure-files.ts";
import { markerProjection, removeMarker } from "./activation.ts";
import { encodeRecord } from "./codec.ts";
import { syncNameOf } from "./durable-name.ts";
import { missingGuard } from "./guard.ts";
import { type Inspection, inspectState, type Problem } from "./inspect.ts";
import { CARRY_LIMITS, type CarryLimits } from "./journal.ts";
import { MIGRATION_BATCH, type MigrationBatch, runPhases } from "./migrate/phases.ts";
import { logProgress, type OnMigrationProgress } from "./migrate/progress.ts";
import { hasLegacyState, type LegacyReading, readLegacy } from "./migrate/read.ts";
import { type StorePaths, storePaths } from "./paths.ts";
import { secretRefusal, writeSecret } from "./secret.ts";
import { createStore, type OpenedStore } from "./store.ts";

/**
 * Owns: opening a state directory (store-format.md §7), in order: own it, read all of it, decide, then act.
 * Does not own: what the older formats are and how they are converted (migrate/).
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
  /**
   * Called when records of an older format are about to be converted, after everything was validated and before
   * anything is changed; again by each attempt until one is complete. A rejection stops the opening.
   */
  readonly beforeMigration?: (about: MigrationStart) => Promise<void>;
  /** Told how a migration goes on. Default: log lines. */
  readonly onMigrationProgress?: OnMigrationProgress;
  readonly migrationBatch?: MigrationBatch;
}

export interface MigrationStart {
  readonly stateDir: string;
  /** Records of the older formats. */
  readonly records: number;
  /** An attempt before this one got as far as the guard. */
  readonly resumed: boolean;
}

/** Records whose last reduction is committed together when the store opens. */
const SETTLE_BATCH = 256;

/** What opening will change, decided before anything is. */
interface Plan {
  /** There is v3 evidence, or older state, that the manifest does not know of: guard and manifest come first. */
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
    if (!folder.exists) makeStateDir(fs, paths.stateDir, logger);
    lock = options.acquireLock(paths.owner);
    const nowMs = clock.now();
    const stop = (problem: Problem): never => {
      throw new StoreError(problem.code, problem.message);
    };
    const nowIso = new Date(nowMs).toISOString();
    const read = inspectState(fs, paths, stop);
    const progress = options.onMigrationProgress ?? logProgress(logger, clock);
    const legacy = hasLegacyState(fs, paths, read)
      ? readLegacy({ fs, paths, inspection: read, nowIso, report: stop, progress })
      : undefined;
    const inspection = legacy === undefined ? read : { ...read, records: legacy.records };
    const plan = decide(paths, inspection, nowIso, legacy);

    if (legacy !== undefined && legacy.fromLegacy.size > 0 && options.beforeMigration !== undefined) {
      progress({ phase: "backing up", done: 0, total: 0, unit: "records" });
      await options.beforeMigration({
        stateDir: paths.stateDir,
        records: legacy.fromLegacy.size,
        resumed: read.guard,
      });
    }
    prepareFolders(fs, paths, inspection, logger);
    if (folder.exists) settleNames(fs, paths, inspection, logger);
    const secret = plan.secret ?? writeSecret(fs, paths, ids);
    if (legacy !== undefined) {
      const batch = options.migrationBatch ?? MIGRATION_BATCH;
      await runPhases({ fs, paths, inspection: read, legacy, batch, progress });
    }
    opened = createStore({
      fs,
      paths,
      clock,
      ids,
      logger,
      retention: options.retention,
      lock,
      secret,
      inspection: legacy === undefined ? inspection : { ...inspection, transaction: undefined, guard: true },
      carryLimits: options.carryLimits ?? CARRY_LIMITS,
    });
    const { store } = opened;
    if (plan.requireGuard) await opened.requireGuard();
    for (const { changed, marker } of plan.markers) {
      await opened.enqueueBarrier(changed, () => removeMarker(fs, paths, marker));
    }
    for (let from = 0; from < plan.settle.length; from += SETTLE_BATCH) {
      await store.commit({ puts: plan.settle.slice(from, from + SETTLE_BATCH) });
    }
    await store.sweep(nowMs);
    await opened.drain();
    await opened.sweepSnapshots();
    if (legacy !== undefined && legacy.fromLegacy.size > 0) {
      logger.info("older state is converted", { records: legacy.fromLegacy.size });
    }
    return store;
  } catch (error) {
    if (opened === undefined) lock?.release();
    else await opened.abandon();
    const failedWrite = error instanceof StoreError && error.code === "store_write_failed";
    const fault = failedWrite ? error.cause : error;
    if (!(fault instanceof FileFault)) throw error;
    const remedy = diskRemedy(fault.errno) ?? "see to that";
    throw new StoreError(
      "store_write_failed",
      `the state directory could not be opened: ${fault.message}; ${remedy} and start again; nothing in it is lost`,
      { cause: fault },
    );
  }
}

function decide(
  paths: StorePaths,
  inspection: Inspection,
  nowIso: string,
  legacy: LegacyReading | undefined,
): Plan {
  const { manifest, secret } = inspection;
  const evidence =
    inspection.transaction !== undefined || inspection.records.size > 0 || inspection.markers.length > 0;
  const guardRequired = manifest?.rollbackGuardRequired ?? false;
  if (guardRequired && !inspection.guard) throw missingGuard(paths);
  if (secret.kind !== "valid" && evidence) throw secretRefusal(paths, secret.kind);

  const { records } = inspection;
  const markers = inspection.markers.map(({ path, marker }) => {
    const changed = markerProjection(path, marker, records.live());
    for (const record of changed) encodeRecord(record);
    return { changed, marker };
  });
  for (const record of inspection.transaction?.writes ?? []) encodeRecord(record);
  const settle: ContinuationRecord[] = [];
  for (const record of records.live()) {
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
    requireGuard: (evidence || legacy !== undefined) && !guardRequired,
    secret: secret.kind === "valid" ? secret.secret : undefined,
    markers,
    settle,
  };
}

/**
 * Makes the state directory and the parents it lacks, each durable in its own parent. The deepest one that is there may
 * have been made by a process that was killed before it could sync that name; all above it were synced before.
 */
function makeStateDir(fs: FileSystem, stateDir: string, logger: Logger): void {
  const missing: string[] = [];
  let path = stateDir;
  for (; fs.lstat(path, "state.parent") === undefined; path = dirname(path)) {
    missing.unshift(path);
    if (dirname(path) === path) break;
  }
  syncNameOf(path, { fs, logger, label: "state.parent.sync" });
  fs.runSync(
    missing.flatMap((path): FileStep[] => [
      { op: "mkdir", path, mode: FOLDER_MODE, existsOk: true, label: "state.mkdir" },
      { op: "syncDir", path: dirname(path), label: "state.parent.sync" },
    ]),
  );
}

/**
 * Makes durable what the last process may have been killed before it could sync, and what is relied on from here on:
 * the names of a new directory, which must not be lost with what will be acknowledged; the manifest, which says that
 * older formats are merged no more, before any evidence of this one; a transaction or marker, whose records must not
 * reach their own files while it can still be lost itself, or half of it could remain; and the unlink of a marker, which
 * must not come back over members that change from now on.
 */
function settleNames(fs: FileSystem, paths: StorePaths, inspection: Inspection, logger: Logger): void {
  // Before the manifest requires the guard, all names above it and beside it were synced; its own may not be.
  const fresh = !(inspection.manifest?.rollbackGuardRequired ?? false);
  if (fresh) syncNameOf(paths.stateDir, { fs, logger, label: "parent.sync" });
  const rest = inspection.transaction === undefined ? "manifest.settle.sync" : "transaction.settle.sync";
  const label = fresh ? "folder.sync" : rest;
  fs.runSync([{ op: "syncDir", path: paths.stateDir, label }]);
  if (!inspection.missingFolders.includes(paths.markers)) {
    fs.runSync([{ op: "syncDir", path: paths.markers, label: "marker.settle.sync" }]);
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
