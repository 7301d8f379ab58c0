import { join } from "node:path";
import { errorText } from "../../core/errors.ts";
import type { CrashDisk } from "../../core/ports/crash-disk.ts";
import type { FileSystem } from "../../core/ports/platform.ts";
import type { ContinuationStore } from "../../core/ports/store.ts";
import { FILE_MODE, FOLDER_MODE, isTemporary } from "../../core/secure-files.ts";
import { GUARD_CONTENT, manifestSchema, STORE_ENTRIES } from "../../core/store-files.ts";
import { openContinuationStore } from "../open.ts";
import { type StorePaths, storePaths } from "../paths.ts";
import { type Records, recordsKey, recordsOf, retained } from "./ledger.ts";
import { createSimulatedClock, createSimulatedIds, STATE_DIR, silent } from "./simulated.ts";
import type { Workload } from "./workload.ts";

/**
 * Owns: what must hold of a disk that a power cut left, whatever was promised: it opens by the real code and by the
 * rules of the older runtime, to the same records, with everything that they refer to and nothing else.
 * Does not own: whether these are the records that were promised (verdict.ts).
 */

export type Invariant =
  | "I1 acknowledged"
  | "I2 prefix"
  | "I3 at most once"
  | "I4 snapshots"
  | "I5 guard"
  | "I6 idempotent"
  | "I7 modes"
  | "older runtime"
  | "running store";

export interface Violation {
  readonly invariant: Invariant;
  readonly message: string;
}

/** A disk as a power cut left it, and the time at which it is opened again. */
export interface Image {
  readonly disk: CrashDisk;
  readonly nowMs: number;
}

/** What opening a disk gives. */
export interface Opened {
  /** As the older runtime reads them from the untouched disk; without a reader for it, undefined. */
  readonly older: Records | undefined;
  readonly own: Records;
  readonly secret: Uint8Array;
}

/** Reads a state directory by the rules of the older runtime; throws where that would refuse. */
export type OlderReader = (fs: FileSystem, stateDir: string) => Records;

export interface ImageCheck {
  check(image: Image): Promise<Opened | Violation>;
  /** Openings so far, the second ones included. */
  readonly openings: number;
}

export function createImageCheck(workload: Workload, olderReader: OlderReader | undefined): ImageCheck {
  const paths = storePaths(STATE_DIR);
  /** Disks after an opening that were opened again and did not change. */
  const settled = new Set<string>();
  let openings = 0;

  function open(disk: CrashDisk, nowMs: number): Promise<ContinuationStore> {
    openings += 1;
    return openContinuationStore({
      stateDir: STATE_DIR,
      fs: disk,
      clock: createSimulatedClock(nowMs),
      ids: createSimulatedIds("reopened"),
      logger: silent,
      retention: workload.retention,
      acquireLock: () => ({ release: () => {} }),
    });
  }

  async function check({ disk, nowMs }: Image): Promise<Opened | Violation> {
    const before = guardViolation(disk, paths) ?? modeViolation(disk);
    if (before !== undefined) return before;
    let older: Records | undefined;
    try {
      older = olderReader?.(disk, STATE_DIR);
    } catch (error) {
      return { invariant: "older runtime", message: `it refuses to open: ${errorText(error)}` };
    }
    let store: ContinuationStore;
    try {
      store = await open(disk, nowMs);
    } catch (error) {
      return { invariant: "I2 prefix", message: `opening is refused: ${errorText(error)}` };
    }
    const own = recordsOf(store);
    if (older !== undefined && recordsKey(retained(older, workload.retention, nowMs)) !== recordsKey(own)) {
      return { invariant: "older runtime", message: "it reads other records than the store" };
    }
    const opened = { older, own, secret: store.secret };
    const after = disk.digest();
    if (settled.has(after)) return opened;
    const wrong =
      guardViolation(disk, paths) ?? modeViolation(disk) ?? contentViolation(disk, paths, store, own);
    if (wrong !== undefined) return wrong;

    const copy = disk.afterPowerCut("all");
    const again = await open(copy, nowMs);
    if (recordsKey(recordsOf(again)) !== recordsKey(own) || copy.digest() !== after) {
      return { invariant: "I6 idempotent", message: "opening a second time changes the directory" };
    }
    settled.add(after);
    return opened;
  }

  return {
    check,
    get openings() {
      return openings;
    },
  };
}

/** I5: where there is v3 evidence, the guard is there, and the manifest ends every merge of what an older format left. */
function guardViolation(fs: FileSystem, paths: StorePaths): Violation | undefined {
  const names = (folder: string) => (fs.list(folder, "explore") ?? []).filter((name) => !isTemporary(name));
  const evidence =
    fs.lstat(paths.transaction, "explore") !== undefined ||
    names(paths.records).length > 0 ||
    names(paths.markers).length > 0;
  if (!evidence) return undefined;
  const without = (what: string): Violation => ({
    invariant: "I5 guard",
    message: `there is v3 evidence without ${what}`,
  });
  if (textOf(fs, paths.guard) !== GUARD_CONTENT) return without("the rollback guard");
  const required = requiresGuard(textOf(fs, paths.manifest) ?? "");
  return required ? undefined : without("a manifest that requires the guard");
}

function requiresGuard(manifest: string): boolean {
  try {
    return manifestSchema.parse(JSON.parse(manifest)).rollbackGuardRequired;
  } catch {
    return false;
  }
}

function textOf(fs: FileSystem, path: string): string | undefined {
  const handle = fs.open(path, "explore");
  return handle === undefined ? undefined : Buffer.from(handle.read(handle.stat().size)).toString("utf8");
}

/** I7: every file and folder has its mode. */
function modeViolation(fs: FileSystem, path = STATE_DIR): Violation | undefined {
  const stat = fs.lstat(path, "explore");
  if (stat === undefined) return undefined;
  const wanted = stat.kind === "directory" ? FOLDER_MODE : FILE_MODE;
  if (stat.mode !== wanted) {
    return { invariant: "I7 modes", message: `${path} has mode ${stat.mode.toString(8)}` };
  }
  for (const name of stat.kind === "directory" ? (fs.list(path, "explore") ?? []) : []) {
    const wrong = modeViolation(fs, join(path, name));
    if (wrong !== undefined) return wrong;
  }
  return undefined;
}

/**
 * I4, and that an opening or an orderly close has finished what was under way: no temporary, transaction, marker or
 * stray file is left.
 */
export function contentViolation(
  fs: FileSystem,
  paths: StorePaths,
  store: ContinuationStore,
  records: Records,
): Violation | undefined {
  const blobs = new Set<string>();
  for (const [id, { originContextRef }] of records) {
    if (originContextRef === undefined) continue;
    const blob = store.snapshots.read(originContextRef);
    if (!blob.ok) return { invariant: "I4 snapshots", message: `the snapshot of ${id} is ${blob.damage}` };
    blobs.add(paths.snapshot(originContextRef.digest));
  }
  const files = new Set([...records.keys()].map((id) => paths.record(id)));
  const expected: readonly [string, Invariant, ReadonlySet<string>][] = [
    [paths.snapshots, "I4 snapshots", blobs],
    [paths.records, "I2 prefix", files],
    [paths.markers, "I2 prefix", new Set()],
  ];
  for (const [folder, invariant, wanted] of expected) {
    const found = (fs.list(folder, "explore") ?? []).map((name) => join(folder, name));
    const stray = found.find((path) => !wanted.has(path));
    if (stray !== undefined) return { invariant, message: `${stray} is left behind` };
    const missing = [...wanted].find((path) => !found.includes(path));
    if (missing !== undefined) return { invariant, message: `${missing} is missing` };
  }
  const top = fs.list(paths.stateDir, "explore") ?? [];
  const stray = top.find((name) => isTemporary(name) || name === STORE_ENTRIES.transaction);
  return stray === undefined ? undefined : { invariant: "I2 prefix", message: `${stray} is left behind` };
}
