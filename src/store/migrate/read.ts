import { sep } from "node:path";
import { StoreError } from "../../core/errors.ts";
import { RECORD_MAX_BYTES } from "../../core/limits.ts";
import type { FileSystem } from "../../core/ports/platform.ts";
import { type ContinuationRecord, recordFileName } from "../../core/record.ts";
import { settleRecord } from "../../core/retention.ts";
import { inspectFolder, requireSafeFile } from "../../core/secure-files.ts";
import { corrupt, indentedBytes } from "../codec.ts";
import { type Inspection, type Problem, problemOf } from "../inspect.ts";
import type { StorePaths } from "../paths.ts";
import { createRecordTable, type RecordTable } from "../record-table.ts";
import { conflict, isCompactedForm, sameRecord } from "./merge.ts";
import { readMonolith } from "./monolith.ts";
import { normaliseLegacy } from "./normalise.ts";
import { legacyPaths } from "./paths.ts";
import type { OnMigrationProgress } from "./progress.ts";
import {
  checkV2Manifest,
  readV2Record,
  readV2Transaction,
  type V2Transaction,
  v2RecordNames,
} from "./records-v2.ts";

/**
 * Owns: all that a migration can refuse (store-format.md §7, step 3 to 5), decided before anything is changed: reading
 * the older formats, normalising, merging them with each other and with v3, the dry run of retention.
 * Does not own: acting on it (phases.ts); the v3 side (inspect.ts).
 *
 * I1. Nothing is written, created, repaired or locked here.
 * I2. One version of each record is kept; two that differ are a refusal that names the id.
 */

export interface LegacyReading {
  /** Everything that the store will hold: the v3 records, and those of the older formats. */
  readonly records: RecordTable;
  /** Ids that came from an older format. */
  readonly fromLegacy: ReadonlySet<string>;
  /** Ids that v3 does not have yet. */
  readonly missing: readonly string[];
  readonly transaction: V2Transaction | undefined;
  readonly sources: LegacySources;
}

/** What was found of each format. Sizes in bytes on disk. */
export interface LegacySources {
  v1: { records: number; bytes: number } | undefined;
  v2: { records: number; bytes: number; unfinished: number } | undefined;
  /** Of records that v1 and v2 both hold, those whose compacted v2 form was taken. */
  compacted: number;
}

/** Whether the directory has anything of the older formats that is not fenced off yet. */
export function hasLegacyState(fs: FileSystem, paths: StorePaths, inspection: Inspection): boolean {
  if (inspection.manifest?.rollbackGuardRequired ?? false) return false;
  return inspection.legacy.length > 0 || fs.lstat(paths.legacyRecords, "legacy") !== undefined;
}

/** Reads and merges all of it. `report` may throw to stop at the first problem. */
export function readLegacy(deps: {
  readonly fs: FileSystem;
  readonly paths: StorePaths;
  readonly inspection: Inspection;
  readonly nowIso: string;
  readonly report: (problem: Problem) => void;
  readonly progress: OnMigrationProgress;
}): LegacyReading {
  const { fs, inspection, progress } = deps;
  const paths = legacyPaths(deps.paths.stateDir);
  const legacy = new Map<string, ContinuationRecord>();
  const sources: LegacySources = { v1: undefined, v2: undefined, compacted: 0 };

  function attempt<T>(path: string, act: () => T): T | undefined {
    try {
      return act();
    } catch (error) {
      deps.report(problemOf(path, error));
      return undefined;
    }
  }

  attempt(deps.paths.markers, () => requireSafeMarkerTemporaries(fs, deps.paths, inspection));
  const manifestBytes = attempt(paths.manifest, () => checkV2Manifest(fs, paths)) ?? 0;
  const transaction = attempt(paths.transaction, () => readV2Transaction(fs, paths));
  if (attempt(paths.records, () => inspectFolder(fs, paths.records, "legacy").exists) === true) {
    let bytes = manifestBytes + (transaction?.bytes ?? 0);
    // The transaction lies over the record files: one that it replaces or deletes is not read.
    const ids = [...(transaction?.writes.map(({ record }) => record.continuationId) ?? [])];
    const replaced = new Set([...ids, ...(transaction?.deletes ?? [])].map(recordFileName));
    const names = v2RecordNames(fs, paths).filter((name) => !replaced.has(name));
    const total = names.length;
    for (const [done, name] of names.entries()) {
      if (done % 256 === 0) progress({ phase: "reading v2", done, total, unit: "records" });
      const found = attempt(`${paths.records}${sep}${name}`, () => readV2Record(fs, paths, name));
      if (found === undefined) continue;
      bytes += found.bytes;
      legacy.set(found.record.continuationId, found.record);
    }
    if (total > 0) progress({ phase: "reading v2", done: total, total, unit: "records" });
    for (const { record } of transaction?.writes ?? []) legacy.set(record.continuationId, record);
    const unfinished = ids.length + (transaction?.deletes.length ?? 0);
    const anything = legacy.size > 0 || manifestBytes > 0 || transaction !== undefined;
    if (anything) sources.v2 = { records: legacy.size, bytes, unfinished };
  } else if (transaction !== undefined) {
    for (const { record } of transaction.writes) legacy.set(record.continuationId, record);
    sources.v2 = { records: legacy.size, bytes: transaction.bytes, unfinished: transaction.writes.length };
  }

  attempt(paths.monolith, () => {
    let records = 0;
    const bytes = readMonolith(fs, paths.monolith, {
      progress: (done, total) => progress({ phase: "reading v1", done, total, unit: "bytes" }),
      record(id, value, size) {
        records += 1;
        attempt(paths.monolith, () => addV1(id, value, size));
      },
    });
    if (bytes !== undefined) sources.v1 = { records, bytes };
  });

  function addV1(id: string, value: unknown, size: number): void {
    const record = normaliseLegacy(paths.monolith, value, size);
    if (record.continuationId !== id) {
      throw corrupt(paths.monolith, `has another continuation id in the record of ${id}`);
    }
    const newer = legacy.get(id);
    if (newer === undefined) legacy.set(id, record);
    else if (isCompactedForm(record, newer) && !sameRecord(record, newer)) sources.compacted += 1;
    else if (!sameRecord(record, newer)) throw conflict("the v1 file", "records-v2", id);
  }

  const records = createRecordTable();
  for (const record of inspection.records.all()) records.read(record);
  const missing: string[] = [];
  for (const [id, record] of legacy) {
    const own = records.get(id);
    if (own === undefined) {
      records.read(record);
      missing.push(id);
    } else if (!sameRecord(own, record)) {
      attempt(deps.paths.record(id), () => {
        throw conflict("an older format", "records-v3", id);
      });
    }
    attempt(deps.paths.record(id), () => requireSettleable(record, deps.nowIso));
  }
  return { records, fromLegacy: new Set(legacy.keys()), missing, transaction, sources };
}

/** The dry run of retention: a record whose tombstone would pass the limit must not get beyond the guard. */
function requireSettleable(record: ContinuationRecord, nowIso: string): void {
  const settled = settleRecord(record, nowIso, { keepText: true });
  if (settled === record || indentedBytes(settled, RECORD_MAX_BYTES) <= RECORD_MAX_BYTES) return;
  throw new StoreError(
    "record_too_large",
    `continuation ${record.continuationId} is finished, and what retention would keep of it would pass ${RECORD_MAX_BYTES} bytes`,
  );
}

/** Temporaries of markers are removed before the guard is installed; what is none of ours is not touched at all. */
function requireSafeMarkerTemporaries(fs: FileSystem, paths: StorePaths, inspection: Inspection): void {
  for (const path of inspection.temporaries) {
    if (!path.startsWith(`${paths.markers}${sep}`)) continue;
    const stat = fs.lstat(path, "markers");
    if (stat !== undefined) requireSafeFile(fs, path, stat, Number.MAX_SAFE_INTEGER);
  }
}
