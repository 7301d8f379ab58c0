import { originBindingIsAuthentic } from "../core/derive.ts";
import { StoreError } from "../core/errors.ts";
import { TRANSACTION_MAX_BYTES } from "../core/limits.ts";
import type { FileSystem } from "../core/ports/platform.ts";
import { type ContinuationState, STATES } from "../core/record.ts";
import { readSecureFile } from "../core/secure-files.ts";
import { markerProjection } from "./activation.ts";
import { adviceFor } from "./advice.ts";
import { type Inspection, inspecting, type Problem, problemOf } from "./inspect.ts";
import { liveReads } from "./live-reads.ts";
import { hasLegacyState } from "./migrate/read.ts";
import { checkOwnership } from "./ownership.ts";
import { type StorePaths, storePaths } from "./paths.ts";
import { atOnce, SLICE_FILES, type Slices } from "./slices.ts";
import { readSnapshot } from "./snapshots.ts";

/**
 * Owns: the read-only check of a state directory, for `doctor`.
 * Does not own: repairing anything.
 *
 * I1. It never writes and takes no lock, so it may run while a host owns the directory.
 * I2. What a running host changes meanwhile is no finding: only what two readings in a row agree on is reported.
 */

export interface StoreFinding {
  readonly path: string;
  readonly problem: string;
  /** Continuations that depend on it. Absent when the whole store does: it is not opened with it. */
  readonly affects?: readonly string[];
  /** What the file holds or is for. */
  readonly depends: string;
  readonly remedy: string;
}

export interface StoreCheck {
  /** False when there is no state directory yet; that is no problem. */
  readonly exists: boolean;
  readonly findings: readonly StoreFinding[];
  readonly records: number;
  readonly counts: Readonly<Record<ContinuationState, number>>;
  /** Delivered, but the conversation does not hold the answer. */
  readonly historyDegraded: number;
  readonly snapshots: number;
  /** Folders with another mode than 0700, which the next opening sets right. */
  readonly looseFolders: readonly string[];
  /** There is state of an older format that the next opening converts; `planMigration` says how. */
  readonly migrationDue: boolean;
  /** A host kept changing the directory; the counts may be of slightly different moments. */
  readonly moving: boolean;
}

const ATTEMPTS = 5;

interface Reading {
  readonly inspection: Inspection;
  readonly findings: StoreFinding[];
  readonly stable: boolean;
}

export interface CheckOptions {
  readonly fs: FileSystem;
  readonly stateDir: string;
  /** This process certainly does not own the directory: then the ownership database is looked into as well. */
  readonly notOwner?: boolean;
}

/** Checks every file that opening would read, and every snapshot that a continuation refers to. */
export function checkContinuationStore(options: CheckOptions): StoreCheck {
  return atOnce(checkingContinuationStore(options));
}

/** The same in pieces, for a directory that nobody changes. */
export function* checkingContinuationStore(options: CheckOptions): Slices<StoreCheck> {
  const paths = storePaths(options.stateDir);
  const fs = liveReads(options.fs, paths);
  const notOwner = options.notOwner ?? false;
  let before = yield* read(fs, paths, notOwner);
  for (let attempt = 1; attempt < ATTEMPTS; attempt += 1) {
    if (before.stable && before.findings.length === 0) break;
    const after = yield* read(fs, paths, notOwner);
    const seen = new Set(before.findings.map((finding) => `${finding.path}\0${finding.problem}`));
    const agreed = after.findings.filter((finding) => seen.has(`${finding.path}\0${finding.problem}`));
    before = { ...after, findings: agreed };
    if (after.stable) break;
  }
  const { inspection, findings, stable } = before;
  const counts = Object.fromEntries(STATES.map((state) => [state, 0])) as Record<ContinuationState, number>;
  let historyDegraded = 0;
  for (const record of inspection.records.facts()) {
    counts[record.state] += 1;
    if (record.receipt?.historyRecorded === false) historyDegraded += 1;
  }
  return {
    exists: inspection.exists,
    findings,
    records: inspection.records.size,
    counts,
    historyDegraded,
    snapshots: inspection.blobs.size,
    looseFolders: inspection.repairs.flatMap((step) => (step.op === "chmod" ? [step.path] : [])),
    migrationDue: legacyStateIsDue(fs, paths, inspection, findings),
    moving: !stable,
  };
}

/** A manifest that can't be read says nothing, and beside a folder that holds at most the guard nothing is converted. */
function legacyStateIsDue(
  fs: FileSystem,
  paths: StorePaths,
  inspection: Inspection,
  findings: readonly StoreFinding[],
): boolean {
  if (inspection.legacy.length === 0 || findings.some(({ path }) => path === paths.manifest)) return false;
  return hasLegacyState(fs, paths, inspection);
}

function* read(fs: FileSystem, paths: StorePaths, notOwner: boolean): Slices<Reading> {
  const findings: StoreFinding[] = [];
  const generation = transactionText(fs, paths);
  const inspection = yield* inspecting(fs, paths, (problem) => findings.push(findingOf(paths, problem)));
  const unread = new Set(findings.map((finding) => finding.path));
  findings.push(...(yield* judge(fs, paths, inspection, unread)));
  try {
    checkOwnership(fs, paths.owner, notOwner);
  } catch (error) {
    findings.push(findingOf(paths, problemOf(paths.owner, error)));
  }
  return { inspection, findings, stable: transactionText(fs, paths) === generation };
}

/** Identifies the transaction by its content, which carries a new generation each time; "" when there is none. */
function transactionText(fs: FileSystem, paths: StorePaths): string {
  try {
    const data = readSecureFile(fs, paths.transaction, TRANSACTION_MAX_BYTES, "check.transaction");
    return data === undefined ? "" : Buffer.from(data).toString("latin1");
  } catch {
    return "unreadable";
  }
}

/**
 * What opening would refuse, or fall back on, though each file by itself is readable. What the files of `unread` hold is
 * not known, so nothing is said about it.
 */
function* judge(
  fs: FileSystem,
  paths: StorePaths,
  inspection: Inspection,
  unread: ReadonlySet<string>,
): Slices<StoreFinding[]> {
  const { manifest, secret, records } = inspection;
  const findings: StoreFinding[] = [];
  const report = (path: string, error: StoreError) =>
    findings.push(findingOf(paths, { path, code: error.code, message: error.message }));
  const missing = (path: string, problem: string, remedy: string) =>
    findings.push({ ...findingOf(paths, { path, code: "store_corrupt", message: problem }), remedy });

  const guardRequired = manifest?.rollbackGuardRequired ?? false;
  if (guardRequired && !inspection.guard && !unread.has(paths.guard)) {
    missing(
      paths.guard,
      `${paths.guard} is missing, but the manifest requires it: an older runtime may have changed this directory`,
      "restore it, or the whole directory, from a backup, or write it back if you know that none did",
    );
  }
  const evidence = inspection.transaction !== undefined || records.size > 0 || inspection.markers.length > 0;
  if (secret.kind !== "valid" && evidence && !unread.has(paths.secret)) {
    const state = secret.kind === "absent" ? "missing" : "empty or damaged";
    const message = `${paths.secret} is ${state} beside existing continuations`;
    findings.push(findingOf(paths, { path: paths.secret, code: "store_secret_invalid", message }));
  }

  for (const { path, marker } of inspection.markers) {
    try {
      markerProjection(path, marker, records.live());
    } catch (error) {
      if (!(error instanceof StoreError)) throw error;
      report(path, error);
    }
  }

  const damagedBlobs = new Map<string, string[]>();
  let index = 0;
  for (const record of records.live()) {
    if (index % SLICE_FILES === 0) yield;
    index += 1;
    const ref = record.originContextRef;
    if (ref === undefined) continue;
    const affects = [record.continuationId];
    const sharing = damagedBlobs.get(ref.digest);
    if (sharing !== undefined) {
      sharing.push(record.continuationId);
      sharing.sort();
      continue;
    }
    const blob = readSnapshot(fs, paths, ref);
    if (!blob.ok) {
      damagedBlobs.set(ref.digest, affects);
      findings.push({
        path: paths.snapshot(ref.digest),
        problem: `the origin snapshot is ${blob.damage}`,
        affects,
        depends: "it holds the origin context",
        remedy: "restore the file from a backup; without it the continuation is answered with a fixed text",
      });
    } else if (
      secret.kind === "valid" &&
      record.originContextBindingMac !== undefined &&
      !originBindingIsAuthentic(secret.secret, record)
    ) {
      findings.push({
        path: paths.record(record.continuationId),
        problem: "the binding of the origin snapshot does not match the record: one of them was changed",
        affects,
        depends: "it holds one continuation",
        remedy: "restore the file from a backup; as it is, its result becomes a dead letter",
      });
    }
  }
  return findings;
}

function findingOf(paths: StorePaths, problem: Problem): StoreFinding {
  return { path: problem.path, problem: problem.message, ...adviceFor(paths, problem) };
}
