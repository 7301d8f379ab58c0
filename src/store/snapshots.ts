import { type Refusal, type Result, refuse, StoreError } from "../core/errors.ts";
import { SNAPSHOT_MAX_BYTES, SNAPSHOTS_TOTAL_MAX_BYTES } from "../core/limits.ts";
import { FileFault, type FileSystem, type Logger } from "../core/ports/platform.ts";
import type { SnapshotDamage, SnapshotStore } from "../core/ports/store.ts";
import type { ContinuationRecord, OriginContextRef } from "../core/record.ts";
import { readSecureFile, replaceSteps } from "../core/secure-files.ts";
import {
  type OriginSnapshot,
  snapshotDigest,
  snapshotJson,
  snapshotRef,
  snapshotSchema,
} from "../core/snapshot.ts";
import { checkValue, parseJson } from "./codec.ts";
import type { StorePaths } from "./paths.ts";

/**
 * Owns: origin snapshot blobs: writing, pinning, reading, quota, sweep.
 * Does not own: which records refer to them (`refer` is told each durable change).
 *
 * I1. A blob is removed only when no durable record refers to it and nobody holds a pin.
 * I2. The sum of all blobs is kept in memory; it includes blobs that are being written.
 * I3. Steps on one blob never overlap: writing waits for a removal under way, and the other way round.
 * I4. While somebody keeps all of them for a copy, none is removed.
 */

export interface Snapshots extends SnapshotStore {
  /** A durable record changed from `previous` to `next`; sweeps what nothing refers to any more. */
  refer(previous: ContinuationRecord | undefined, next: ContinuationRecord | undefined): void;
  /** Removes every blob that nothing refers to. Used when the store opens. */
  sweepAll(): Promise<void>;
  /** Resolves when what is under way now, writing or removal, has ended. */
  idle(): Promise<void>;
  /** Removes nothing until the returned function is called. */
  keepAll(): () => void;
  /** From now on nothing is removed: the store is poisoned or closed. `requireUsable` refuses to write. */
  stop(): void;
}

interface Blob {
  bytes: number;
  references: number;
  pins: number;
  /** The end of the last step on this blob. */
  tail: Promise<unknown>;
  present: boolean;
}

export function createSnapshots({
  records,
  ...deps
}: {
  fs: FileSystem;
  paths: StorePaths;
  logger: Logger;
  /** Blob files found at the start: digest to size. */
  found: ReadonlyMap<string, number>;
  /** Looked at once and not kept. */
  records: Iterable<ContinuationRecord>;
  /** Throws when nothing may be written any more. */
  requireUsable: () => void;
}): Snapshots {
  const { fs, paths, logger } = deps;
  const blobs = new Map<string, Blob>();
  let total = 0;
  let stopped = false;
  let keepers = 0;

  function blobOf(digest: string): Blob {
    let blob = blobs.get(digest);
    if (blob === undefined) {
      blob = { bytes: 0, references: 0, pins: 0, tail: Promise.resolve(), present: false };
      blobs.set(digest, blob);
    }
    return blob;
  }

  function setBytes(blob: Blob, bytes: number): void {
    total += bytes - blob.bytes;
    blob.bytes = bytes;
  }

  for (const [digest, bytes] of deps.found) {
    const blob = blobOf(digest);
    blob.present = true;
    setBytes(blob, bytes);
  }
  for (const record of records) {
    if (record.originContextRef !== undefined) blobOf(record.originContextRef.digest).references += 1;
  }

  /** Queues one step on a blob behind those before it. */
  function next<T>(blob: Blob, step: () => Promise<T>): Promise<T> {
    const result = blob.tail.then(step);
    blob.tail = result.catch(() => {});
    return result;
  }

  function isFree(blob: Blob): boolean {
    return blob.references === 0 && blob.pins === 0;
  }

  async function sweep(digest: string, blob: Blob): Promise<void> {
    await next(blob, async () => {
      if (stopped || keepers > 0 || !isFree(blob)) return;
      if (blob.present) {
        try {
          await fs.run([
            { op: "unlink", path: paths.snapshot(digest), missingOk: true, label: "snapshot.unlink" },
          ]);
        } catch (error) {
          // Harmless: it counts against the quota until the next start, which sweeps again.
          logger.warn("a snapshot that nothing refers to could not be removed", {
            path: paths.snapshot(digest),
            errno: error instanceof FileFault ? error.errno : undefined,
          });
          return;
        }
        blob.present = false;
        setBytes(blob, 0);
      }
    });
    if (isFree(blob) && !blob.present && blobs.get(digest) === blob) blobs.delete(digest);
  }

  const underWay = new Set<Promise<unknown>>();
  function follow(work: Promise<unknown>): void {
    underWay.add(work);
    const forget = () => void underWay.delete(work);
    work.then(forget, forget);
  }

  function startSweep(digest: string, blob: Blob): void {
    if (stopped || keepers > 0 || !isFree(blob)) return;
    follow(sweep(digest, blob));
  }

  /** Every turn that tries again on a full disk would leave another file until the next start. */
  async function tidy(leftovers: readonly string[]): Promise<void> {
    for (const path of leftovers) {
      if (stopped) return;
      try {
        await fs.run([{ op: "unlink", path, missingOk: true, label: "snapshot.tidy" }]);
      } catch (error) {
        logger.warn("what a failed snapshot left could not be removed; the next start does it", {
          path,
          errno: error instanceof FileFault ? error.errno : undefined,
        });
      }
    }
  }

  async function write(digest: string, json: string, blob: Blob): Promise<void> {
    const path = paths.snapshot(digest);
    const temporary = paths.temporary(path);
    try {
      await fs.run([
        ...replaceSteps(path, temporary, json, "snapshot"),
        { op: "syncDir", path: paths.snapshots, label: "snapshot.sync" },
      ]);
    } catch (error) {
      await tidy(blob.present ? [temporary] : [temporary, path]);
      if (!blob.present) setBytes(blob, 0);
      throw new StoreError("store_write_failed", `a snapshot could not be written: ${path}`, {
        cause: error,
      });
    }
    blob.present = true;
  }

  async function put(
    snapshot: OriginSnapshot,
  ): Promise<Result<{ ref: OriginContextRef; release: () => void }>> {
    deps.requireUsable();
    const checked = snapshotSchema.safeParse(snapshot);
    if (!checked.success) return refuse("snapshot_invalid", "the origin snapshot does not fit its format");
    const json = snapshotJson(checked.data);
    if (Buffer.byteLength(json) > SNAPSHOT_MAX_BYTES) {
      return refuse("snapshot_invalid", `the origin snapshot is larger than ${SNAPSHOT_MAX_BYTES} bytes`);
    }
    const ref = snapshotRef(checked.data, json);
    const blob = blobOf(ref.digest);
    blob.pins += 1;
    let released = false;
    const release = () => {
      if (released) return;
      released = true;
      blob.pins -= 1;
      startSweep(ref.digest, blob);
    };
    try {
      const putting = next(blob, async (): Promise<Refusal | undefined> => {
        deps.requireUsable();
        if (blob.present && read(ref).ok) return undefined;
        if (total - blob.bytes + ref.bytes > SNAPSHOTS_TOTAL_MAX_BYTES) {
          return {
            code: "snapshot_quota",
            message: `all origin snapshots together would pass ${SNAPSHOTS_TOTAL_MAX_BYTES} bytes`,
          };
        }
        setBytes(blob, ref.bytes);
        await write(ref.digest, json, blob);
        return undefined;
      });
      follow(putting);
      const refused = await putting;
      if (refused !== undefined) {
        release();
        return { ok: false, refusal: refused };
      }
    } catch (error) {
      release();
      throw error;
    }
    return { ok: true, value: { ref, release } };
  }

  function read(ref: OriginContextRef) {
    return readSnapshot(fs, paths, ref);
  }

  return {
    put,
    read,
    refer(previous, nextRecord) {
      const before = previous?.originContextRef?.digest;
      const after = nextRecord?.originContextRef?.digest;
      if (before === after) return;
      if (after !== undefined) blobOf(after).references += 1;
      const blob = before === undefined ? undefined : blobs.get(before);
      if (before === undefined || blob === undefined) return;
      blob.references -= 1;
      startSweep(before, blob);
    },
    async sweepAll() {
      await Promise.all([...blobs].map(([digest, blob]) => sweep(digest, blob)));
    },
    async idle() {
      await Promise.allSettled(underWay);
    },
    keepAll() {
      keepers += 1;
      let released = false;
      return () => {
        if (released) return;
        released = true;
        keepers -= 1;
        if (keepers === 0) for (const [digest, blob] of blobs) startSweep(digest, blob);
      };
    },
    stop() {
      stopped = true;
    },
  };
}

/** The process lacks something for a moment: that says nothing about the file, and the next try may succeed. */
const OUT_OF_MEANS: ReadonlySet<string> = new Set(["EMFILE", "ENFILE", "ENOMEM"]);

/**
 * Reads a blob with every check of store-format.md §4 and §9; what is wrong with it harms only who refers to it. Throws
 * a `FileFault` when this process can't open or read any file now.
 */
export function readSnapshot(
  fs: FileSystem,
  paths: StorePaths,
  ref: OriginContextRef,
): { ok: true; snapshot: OriginSnapshot } | { ok: false; damage: SnapshotDamage } {
  const path = paths.snapshot(ref.digest);
  let data: Uint8Array | undefined;
  try {
    data = readSecureFile(fs, path, SNAPSHOT_MAX_BYTES, "snapshot.read");
  } catch (error) {
    if (error instanceof FileFault && OUT_OF_MEANS.has(error.errno)) throw error;
    return { ok: false, damage: "unreadable" };
  }
  if (data === undefined) return { ok: false, damage: "missing" };
  if (data.length !== ref.bytes) return { ok: false, damage: "corrupt" };
  try {
    const snapshot = checkValue(path, snapshotSchema, parseJson(path, data));
    const json = snapshotJson(snapshot);
    // The file must be the canonical form itself, and that form must have the digest of the reference.
    const same = Buffer.from(json, "utf8").equals(data) && snapshotDigest(json) === ref.digest;
    if (!same || snapshot.messages.length !== ref.messageCount) return { ok: false, damage: "corrupt" };
    return { ok: true, snapshot };
  } catch {
    return { ok: false, damage: "corrupt" };
  }
}
