import { join } from "node:path";
import type { LoadedConfig } from "../config/load.ts";
import { STATE_PART } from "../core/backup.ts";
import { sha256Hex, sha256Stream } from "../core/digest.ts";
import { BackupError, CliError } from "../core/errors.ts";
import { fileJson, isJsonObject } from "../core/json.ts";
import { retentionSchema } from "../core/limits.ts";
import type { Clock, FileSystem, Logger, OwnershipLock } from "../core/ports/platform.ts";
import { recordFileName } from "../core/record.ts";
import { STORE_ENTRIES } from "../core/store-files.ts";
import { createClock } from "../platform/clock.ts";
import { createFileSystem } from "../platform/filesystem.ts";
import { createIds } from "../platform/ids.ts";
import { type MigrationPlan, planMigration } from "../store/migrate/plan.ts";
import type { MigrationProgress, OnMigrationProgress } from "../store/migrate/progress.ts";
import { type LegacyFile, legacyFiles, removeLegacyFiles, requireConverted } from "../store/migrate/prune.ts";
import { openContinuationStore } from "../store/open.ts";
import { ownershipLock } from "../store/ownership.ts";
import { CHUNK_BYTES } from "./backup-format.ts";
import { backupBeforeMigration } from "./backup-offline.ts";
import { openBackup, requireSame } from "./backup-reader.ts";
import { readRestored } from "./restored.ts";
import { BACKUPS_FOLDER, HOST_LOCK } from "./state-entries.ts";
import { prepareStateFolder } from "./state-folder.ts";

export type { MigrationPlan, MigrationProgress, OnMigrationProgress };

/** Looking at, doing and tidying up after the conversion of older state without starting a host. */

export interface MigrateOptions {
  /** The time to judge retention by; now without it. */
  readonly asOfMs?: number | undefined;
  readonly onProgress?: OnMigrationProgress | undefined;
}

/** What converting the directory would do. Read-only. Without retention limits, the defaults of the configuration. */
export function previewMigration(
  state: { readonly stateDir: string; readonly retention?: Parameters<typeof planMigration>[0]["retention"] },
  options: MigrateOptions = {},
): MigrationPlan {
  return planMigration({
    fs: createFileSystem(),
    stateDir: state.stateDir,
    retention: state.retention ?? retentionSchema.parse({}),
    nowMs: clockOf(options).now(),
    ...(options.onProgress === undefined ? {} : { progress: options.onProgress }),
  });
}

/** Converts the state of a host that does not run, under the locks of both stores, as its start would. */
export async function migrateState(
  config: LoadedConfig,
  logger: Logger,
  options: MigrateOptions = {},
): Promise<{ readonly records: number }> {
  const { stateDir, retention } = continuationsOf(config);
  const clock = clockOf(options);
  return await owning(config, clock, logger, async (fs) => {
    const ids = createIds();
    const places = { hostDir: config.host.stateDir, stateDir };
    const store = await openContinuationStore({
      stateDir,
      retention,
      fs,
      clock,
      ids,
      logger,
      acquireLock: ownershipLock(fs, clock, process.pid),
      ...(config.host.backupBeforeMigration
        ? { beforeMigration: backupBeforeMigration({ fs, clock, ids, logger, places }) }
        : {}),
      ...(options.onProgress === undefined ? {} : { onMigrationProgress: options.onProgress }),
    });
    const { records } = store.durable.stats();
    await store.close();
    return { records };
  });
}

export interface PruneReport {
  readonly files: number;
  readonly bytes: number;
  /** The backup that holds all of them; undefined when there was nothing to remove. */
  readonly backup: string | undefined;
}

/**
 * Removes what the older formats left in a converted directory, once a backup was found to hold every byte of it:
 * the given one, or one that was made automatically before the conversion.
 */
export async function pruneLegacyState(
  config: LoadedConfig,
  logger: Logger,
  given: string | undefined,
): Promise<PruneReport> {
  const { stateDir } = continuationsOf(config);
  const clock = createClock();
  return await owning(config, clock, logger, async (fs) => {
    const lock = ownershipLock(fs, clock, process.pid)(join(stateDir, STORE_ENTRIES.owner));
    try {
      requireConverted(fs, stateDir);
      const files = legacyFiles(fs, stateDir);
      if (files.length === 0) return { files: 0, bytes: 0, backup: undefined };
      const backup = coveringBackup(fs, stateDir, files, given ?? automaticBackups(fs, config.host.stateDir));
      await removeLegacyFiles(fs, stateDir, files);
      return { files: files.length, bytes: files.reduce((sum, { bytes }) => sum + bytes, 0), backup };
    } finally {
      lock.release();
    }
  });
}

function continuationsOf({ continuations }: LoadedConfig) {
  if (continuations === undefined) {
    throw new CliError(
      "config_invalid",
      "continuations are off in this configuration: there is no state to convert",
    );
  }
  return continuations;
}

function clockOf({ asOfMs }: MigrateOptions): Clock {
  const clock = createClock();
  return asOfMs === undefined ? clock : { ...clock, now: () => asOfMs };
}

async function owning<T>(
  config: LoadedConfig,
  clock: Clock,
  logger: Logger,
  work: (fs: FileSystem) => Promise<T>,
): Promise<T> {
  const fs = createFileSystem();
  let lock: OwnershipLock | undefined;
  try {
    prepareStateFolder(fs, config.host.stateDir, logger);
    lock = ownershipLock(fs, clock, process.pid)(join(config.host.stateDir, HOST_LOCK));
    readRestored(fs, config.host.stateDir);
    return await work(fs);
  } finally {
    lock?.release();
    await fs.close?.();
  }
}

/** Newest first. */
function automaticBackups(fs: FileSystem, hostDir: string): string[] {
  const folder = join(hostDir, BACKUPS_FOLDER);
  const names = fs.list(folder, "prune") ?? [];
  return names
    .filter((name) => name.startsWith("before-migration-"))
    .sort()
    .reverse()
    .map((name) => join(folder, name));
}

function coveringBackup(
  fs: FileSystem,
  stateDir: string,
  files: readonly LegacyFile[],
  candidates: string | readonly string[],
): string {
  const paths = typeof candidates === "string" ? [candidates] : candidates;
  let problem = "no backup was made before the conversion; make one with `backup`, and name it with --backup";
  for (const path of paths) {
    try {
      const held = contentsOf(fs, path);
      const missing = files.find((file) => held.get(file.path) !== digestOf(fs, join(stateDir, file.path)));
      if (missing === undefined) return path;
      problem = `${path} does not hold ${missing.path} as it is now`;
    } catch (error) {
      if (!(error instanceof BackupError)) throw error;
      problem = error.message;
    }
  }
  throw new BackupError("backup_refused", `nothing is removed: ${problem}`);
}

/**
 * Reads the whole backup, each file against its digest, and gives path to digest of what it holds of the continuation
 * state. What an unfinished v2 transaction in it would write counts as held: finishing it was part of the conversion.
 */
function contentsOf(fs: FileSystem, source: string): Map<string, string> {
  const held = new Map<string, string>();
  const finished = new Map<string, string>();
  for (const { file, chunks } of openBackup(fs, source).files()) {
    const isTransaction = file.path === `${STATE_PART}/${STORE_ENTRIES.legacyTransaction}`;
    const kept: Uint8Array[] = [];
    const digest = sha256Stream();
    let bytes = 0;
    for (const piece of chunks()) {
      digest.update(piece);
      bytes += piece.length;
      if (isTransaction) kept.push(Buffer.from(piece));
    }
    const sha256 = digest.hex();
    requireSame(source, file, bytes, sha256);
    if (file.path.startsWith(`${STATE_PART}/`)) held.set(file.path.slice(STATE_PART.length + 1), sha256);
    if (isTransaction) for (const [path, digest] of writesOf(Buffer.concat(kept))) finished.set(path, digest);
  }
  for (const [path, digest] of finished) held.set(path, digest);
  return held;
}

function* writesOf(transaction: Uint8Array): Generator<[path: string, digest: string]> {
  const frame: unknown = JSON.parse(new TextDecoder().decode(transaction));
  const writes = isJsonObject(frame) && Array.isArray(frame.writes) ? frame.writes : [];
  for (const value of writes) {
    if (!isJsonObject(value) || typeof value.continuationId !== "string") continue;
    const path = `${STORE_ENTRIES.legacyRecords}/${recordFileName(value.continuationId)}`;
    yield [path, sha256Hex(fileJson(value))];
  }
}

function digestOf(fs: FileSystem, path: string): string | undefined {
  const handle = fs.open(path, "prune");
  if (handle === undefined) return undefined;
  try {
    const digest = sha256Stream();
    for (let piece = handle.read(CHUNK_BYTES); piece.length > 0; piece = handle.read(CHUNK_BYTES)) {
      digest.update(piece);
    }
    return digest.hex();
  } finally {
    handle.close();
  }
}
