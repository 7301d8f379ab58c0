import { join } from "node:path";
import { StoreError } from "../../core/errors.ts";
import type { FileStep, FileSystem } from "../../core/ports/platform.ts";
import { STORE_ENTRIES } from "../../core/store-files.ts";
import { checkContinuationStore } from "../check.ts";
import { readGuard } from "../guard.ts";
import { readManifest } from "../manifest.ts";
import { storePaths } from "../paths.ts";
import { RECORD_NAME } from "./records-v2.ts";

/**
 * Owns: which files of the older formats a converted directory still has, and taking them away on request.
 * Does not own: whether they are backed up (host/migrate.ts).
 *
 * I1. Only files that a runtime of the older formats wrote are removed; the guard stays for ever.
 * I2. A crash on the way only leaves some of them: once the manifest requires the guard, nobody reads them.
 */

export interface LegacyFile {
  /** Relative to the state directory, with slashes. */
  readonly path: string;
  readonly bytes: number;
}

/** Files of the older formats that are still there. */
export function legacyFiles(fs: FileSystem, stateDir: string): LegacyFile[] {
  const records = fs.list(join(stateDir, STORE_ENTRIES.legacyRecords), "prune") ?? [];
  const names = [
    STORE_ENTRIES.legacyMonolith,
    STORE_ENTRIES.legacyManifest,
    STORE_ENTRIES.legacyTransaction,
    ...records
      .filter((name) => RECORD_NAME.test(name))
      .sort()
      .map((name) => `${STORE_ENTRIES.legacyRecords}/${name}`),
  ];
  return names.flatMap((path) => {
    const stat = fs.lstat(join(stateDir, path), "prune");
    return stat === undefined ? [] : [{ path, bytes: stat.size }];
  });
}

/** Throws unless the directory is converted, guarded, and opens as it is. The caller owns the directory. */
export function requireConverted(fs: FileSystem, stateDir: string): void {
  const paths = storePaths(stateDir);
  const converted = readManifest(fs, paths)?.rollbackGuardRequired === true && readGuard(fs, paths);
  if (!converted) {
    throw new StoreError(
      "store_migration_incomplete",
      `${stateDir} is not converted and guarded yet, so its older files are still the state itself: convert it first`,
    );
  }
  const broken = checkContinuationStore({ fs, stateDir }).findings.find(
    (finding) => finding.affects === undefined,
  );
  if (broken !== undefined) {
    throw new StoreError(
      "store_migration_incomplete",
      `the older files stay, because the converted state is not sound: ${broken.problem}`,
    );
  }
}

/** Removes the files, durably. */
export async function removeLegacyFiles(
  fs: FileSystem,
  stateDir: string,
  files: readonly LegacyFile[],
): Promise<void> {
  await fs.run([
    ...files.map(({ path }): FileStep => {
      return { op: "unlink", path: join(stateDir, path), missingOk: true, label: "legacy.unlink" };
    }),
    { op: "syncDir", path: join(stateDir, STORE_ENTRIES.legacyRecords), label: "legacy.records.sync" },
    { op: "syncDir", path: stateDir, label: "legacy.sync" },
  ]);
}
