import { MIB } from "../../core/limits.ts";
import type { FileStep, FileSystem } from "../../core/ports/platform.ts";
import { FILE_MODE, FOLDER_MODE } from "../../core/secure-files.ts";
import { encodeRecord } from "../codec.ts";
import { guardSteps, guardSyncSteps } from "../guard.ts";
import type { Inspection } from "../inspect.ts";
import type { StorePaths } from "../paths.ts";
import { legacyPaths } from "./paths.ts";
import type { OnMigrationProgress } from "./progress.ts";
import type { LegacyReading } from "./read.ts";

/**
 * Owns: the durable phases of a migration (store-format.md §7), each safe to repeat, in the documented order: the guard
 * where there is v3 evidence; the unfinished v2 transaction; the unfinished v3 transaction; the guard; the records.
 * Does not own: whether it may begin (read.ts); the manifest that ends it and everything after (open.ts).
 *
 * I1. Until the manifest requires the guard, the older formats decide: a crash before that only repeats the merge.
 * I2. The guard is durable before any record of v3 is written here.
 * I3. A record file that is there already is the same record (read.ts), so it is not written again.
 * I4. When this resolves, all records and their names are durable.
 */

/** How many records are made durable together. */
export interface MigrationBatch {
  readonly records: number;
  readonly bytes: number;
}
export const MIGRATION_BATCH: MigrationBatch = { records: 2_048, bytes: 8 * MIB };

export async function runPhases(deps: {
  readonly fs: FileSystem;
  readonly paths: StorePaths;
  readonly inspection: Inspection;
  readonly legacy: LegacyReading;
  readonly batch: MigrationBatch;
  readonly progress: OnMigrationProgress;
}): Promise<void> {
  const { fs, paths, inspection, legacy, batch, progress } = deps;
  const { transaction } = inspection;
  let guarded = false;

  async function guard(): Promise<void> {
    if (guarded) return;
    progress({ phase: "fencing", done: 0, total: 0, unit: "records" });
    await fs.run(inspection.guard ? guardSyncSteps(paths) : guardSteps(paths));
    guarded = true;
  }

  const evidence = transaction !== undefined || inspection.records.size > 0 || inspection.markers.length > 0;
  if (evidence) await guard();
  if (legacy.transaction !== undefined) {
    progress({ phase: "finishing", done: 0, total: 0, unit: "records" });
    const old = legacyPaths(paths.stateDir);
    const writes = legacy.transaction.writes.map(({ record, body }) => ({
      path: old.record(record.continuationId),
      body,
    }));
    await fs.run([
      { op: "mkdir", path: old.records, mode: FOLDER_MODE, existsOk: true, label: "legacy.mkdir" },
      { op: "syncDir", path: paths.stateDir, label: "legacy.parent.sync" },
      ...replaceAll(paths, old.records, writes, legacy.transaction.deletes.map(old.record), "legacy.record"),
      ...removal(paths, old.transaction, "legacy.transaction"),
    ]);
  }
  if (transaction !== undefined) {
    const writes = transaction.writes.map((record) => ({
      path: paths.record(record.continuationId),
      body: encodeRecord(record),
    }));
    await fs.run([
      ...replaceAll(paths, paths.records, writes, transaction.deletes.map(paths.record), "record"),
      ...removal(paths, paths.transaction, "transaction"),
    ]);
  }
  await guard();
  await writeRecords();

  async function writeRecords(): Promise<void> {
    const { missing, records } = legacy;
    const total = missing.length;
    for (let done = 0; done < total; ) {
      progress({ phase: "writing", done, total, unit: "records" });
      const writes: { path: string; body: string }[] = [];
      for (let bytes = 0; done < total && writes.length < batch.records && bytes < batch.bytes; done += 1) {
        const record = records.get(missing[done] ?? "");
        if (record === undefined) continue;
        const body = encodeRecord(record);
        bytes += body.length;
        writes.push({ path: paths.record(record.continuationId), body });
      }
      await fs.run(replaceAll(paths, paths.records, writes, [], "record"));
    }
    // Also for records that an attempt before this one wrote, and may not have synced.
    await fs.run([{ op: "syncDir", path: paths.records, label: "records.sync" }]);
    progress({ phase: "writing", done: total, total, unit: "records" });
  }
}

/** All contents, made durable together; then their names, deletions and the folder. */
function replaceAll(
  paths: StorePaths,
  folder: string,
  writes: readonly { readonly path: string; readonly body: string }[],
  deletes: readonly string[],
  label: string,
): FileStep[] {
  const files = writes.map(({ path, body }) => ({ path, body, temporary: paths.temporary(path) }));
  const temporaries = files.map(({ temporary }) => temporary);
  return [
    ...files.map(({ temporary, body }): FileStep => {
      return {
        op: "write",
        path: temporary,
        data: body,
        mode: FILE_MODE,
        sync: false,
        label: `${label}.write`,
      };
    }),
    ...(files.length === 0
      ? []
      : [{ op: "syncFiles", folder, paths: temporaries, label: `${label}.data.sync` } satisfies FileStep]),
    ...files.map(
      ({ temporary, path }): FileStep => ({
        op: "rename",
        from: temporary,
        to: path,
        label: `${label}.rename`,
      }),
    ),
    ...deletes.map((path): FileStep => ({ op: "unlink", path, missingOk: true, label: `${label}.unlink` })),
    { op: "syncDir", path: folder, label: `${label}s.sync` },
  ];
}

/** What was applied is durable, so its transaction goes; durably, before what follows may change the same records. */
function removal(paths: StorePaths, path: string, label: string): FileStep[] {
  return [
    { op: "unlink", path, missingOk: true, label: `${label}.unlink` },
    { op: "syncDir", path: paths.stateDir, label: `${label}.unlink.sync` },
  ];
}
