import type { ErrorCode } from "../../core/errors.ts";
import type { RetentionLimits } from "../../core/limits.ts";
import type { FileSystem } from "../../core/ports/platform.ts";
import {
  type ContinuationRecord,
  type ContinuationState,
  isSettled,
  isTerminal,
  recordFileBytes,
  STATES,
} from "../../core/record.ts";
import { settleRecord } from "../../core/retention.ts";
import { markerProjection } from "../activation.ts";
import { encodeRecord } from "../codec.ts";
import { missingGuard } from "../guard.ts";
import { type Inspection, inspectState, type Problem, problemOf } from "../inspect.ts";
import { checkOwnership } from "../ownership.ts";
import { type StorePaths, storePaths } from "../paths.ts";
import type { RecordTable } from "../record-table.ts";
import { createRetentionIndex } from "../retention-index.ts";
import { secretRefusal } from "../secret.ts";
import type { OnMigrationProgress } from "./progress.ts";
import { hasLegacyState, type LegacyReading, type LegacySources, readLegacy } from "./read.ts";

/**
 * Owns: what a migration would do, or why it would refuse, without changing anything.
 *
 * I1. It reads by the code of the opening itself (inspect.ts, read.ts), so both see the same refusals.
 * I2. It takes no lock: beside a running older runtime it describes a moment.
 */

export interface MigrationRefusal {
  readonly path: string;
  readonly code: ErrorCode;
  /** Names the file, and the continuation where one is at fault. */
  readonly message: string;
}

export interface MigrationPlan {
  readonly stateDir: string;
  readonly exists: boolean;
  /** `none`: there is nothing of an older format, or it is fenced off already. */
  readonly kind: "none" | "migrate";
  /** Whether opening would succeed. */
  readonly ok: boolean;
  readonly refusals: readonly MigrationRefusal[];
  readonly sources: LegacySources;
  /** An attempt before this one got as far as the guard. */
  readonly resumed: boolean;
  /** Records that are in v3 already. */
  readonly v3Records: number;
  /** Records when it is done, before retention; and of which state. */
  readonly records: number;
  readonly states: Readonly<Partial<Record<ContinuationState, number>>>;
  /** Unfinished records of older formats by what their answer will be written from. */
  readonly legacyMissing: number;
  readonly detachedLatest: number;
  /** Files that will be written, and their bytes. */
  readonly writes: { readonly records: number; readonly bytes: number };
  /** What retention drops afterwards: whole records, payloads and texts of finished ones. */
  readonly retention: { readonly records: number; readonly payloads: number; readonly texts: number };
}

export function planMigration(options: {
  readonly fs: FileSystem;
  readonly stateDir: string;
  readonly retention: RetentionLimits;
  readonly nowMs: number;
  readonly progress?: OnMigrationProgress;
}): MigrationPlan {
  const { fs, stateDir, nowMs } = options;
  const paths = storePaths(stateDir);
  const nowIso = new Date(nowMs).toISOString();
  const refusals: MigrationRefusal[] = [];
  const report = (problem: Problem) => refusals.push(problem);
  const inspection = inspectState(fs, paths, report);
  const kind = hasLegacyState(fs, paths, inspection) ? "migrate" : "none";
  const progress = options.progress ?? (() => {});
  const legacy =
    kind === "none" ? undefined : readLegacy({ fs, paths, inspection, nowIso, report, progress });
  judge(fs, paths, inspection, legacy?.records ?? inspection.records, refusals);
  return {
    stateDir,
    exists: inspection.exists,
    kind,
    ok: refusals.length === 0,
    refusals,
    resumed: kind === "migrate" && inspection.guard,
    v3Records: inspection.records.size,
    sources: legacy?.sources ?? { v1: undefined, v2: undefined, compacted: 0 },
    ...described(legacy),
    retention: retained(legacy?.records.all() ?? [], options.retention, nowMs),
  };
}

/** What opening refuses once all files are read. What those of the refused paths hold is not known. */
function judge(
  fs: FileSystem,
  paths: StorePaths,
  inspection: Inspection,
  records: RecordTable,
  refusals: MigrationRefusal[],
): void {
  const unread = new Set(refusals.map(({ path }) => path));
  const attempt = (path: string, act: () => void): void => {
    try {
      act();
    } catch (error) {
      refusals.push(problemOf(path, error));
    }
  };
  const { manifest, guard, secret, transaction, markers } = inspection;
  attempt(paths.owner, () => checkOwnership(fs, paths.owner, false));
  if (manifest?.rollbackGuardRequired === true && !guard && !unread.has(paths.guard)) {
    refusals.push(problemOf(paths.guard, missingGuard(paths)));
  }
  const evidence = transaction !== undefined || records.size > 0 || markers.length > 0;
  if (secret.kind !== "valid" && evidence && !unread.has(paths.secret)) {
    refusals.push(problemOf(paths.secret, secretRefusal(paths, secret.kind)));
  }
  for (const { path, marker } of markers) {
    attempt(path, () => {
      for (const record of markerProjection(path, marker, records.live())) encodeRecord(record);
    });
  }
  for (const record of transaction?.writes ?? []) attempt(paths.transaction, () => encodeRecord(record));
}

function described(legacy: LegacyReading | undefined) {
  const states: Partial<Record<ContinuationState, number>> = {};
  let legacyMissing = 0;
  let detachedLatest = 0;
  let bytes = 0;
  for (const record of legacy?.records.all() ?? []) {
    states[record.state] = (states[record.state] ?? 0) + 1;
    if (legacy?.fromLegacy.has(record.continuationId) !== true) continue;
    if (isTerminal(record)) continue;
    if (record.originContextState === "legacy_missing") legacyMissing += 1;
    else if (record.originContextState === "detached_latest") detachedLatest += 1;
  }
  for (const id of legacy?.missing ?? []) {
    const record = legacy?.records.get(id);
    if (record !== undefined) bytes += recordFileBytes(record);
  }
  const inOrder = STATES.filter((state) => states[state] !== undefined).map((state) => [
    state,
    states[state],
  ]);
  return {
    records: legacy?.records.size ?? 0,
    states: Object.fromEntries(inOrder) as MigrationPlan["states"],
    legacyMissing,
    detachedLatest,
    writes: { records: legacy?.missing.length ?? 0, bytes },
  };
}

function retained(
  records: Iterable<ContinuationRecord>,
  limits: RetentionLimits,
  nowMs: number,
): MigrationPlan["retention"] {
  const nowIso = new Date(nowMs).toISOString();
  let payloads = 0;
  let texts = 0;
  const settled: ContinuationRecord[] = [];
  for (const record of records) {
    const next = settleRecord(record, nowIso, { keepText: true });
    if (record.resultPayload !== undefined && next.resultPayload === undefined) payloads += 1;
    if (record.synthesizedText !== undefined && next.synthesizedText === undefined) texts += 1;
    if (isSettled(next)) settled.push(next);
  }
  const beyond = createRetentionIndex(settled, limits).beyond(nowMs, Number.POSITIVE_INFINITY);
  const deleted = new Set(beyond.deletes);
  const emptied = beyond.texts.filter((id) => !deleted.has(id)).length;
  return { records: deleted.size, payloads, texts: texts + emptied };
}
