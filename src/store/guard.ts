import { StoreError } from "../core/errors.ts";
import { GUARD_MAX_BYTES } from "../core/limits.ts";
import type { FileStep, FileSystem } from "../core/ports/platform.ts";
import { FOLDER_MODE, readSecureFile, replaceSteps } from "../core/secure-files.ts";
import { GUARD_CONTENT } from "../core/store-files.ts";
import type { StorePaths } from "./paths.ts";

/** The rollback guard (store-format.md §7): an older runtime fails closed on it instead of opening stale v2 records. */

/** Whether the guard is there. Throws when something else stands in its place. */
export function readGuard(fs: FileSystem, paths: StorePaths): boolean {
  const data = readSecureFile(fs, paths.guard, GUARD_MAX_BYTES, "guard.read");
  if (data === undefined) return false;
  if (Buffer.from(data).toString("utf8") !== GUARD_CONTENT) {
    throw new StoreError(
      "store_guard_invalid",
      `${paths.guard} does not hold the rollback guard: restore it from a backup, or, if no older runtime was started since, replace its content by this one line: ${GUARD_CONTENT.trimEnd()}`,
    );
  }
  return true;
}

export function missingGuard(paths: StorePaths): StoreError {
  return new StoreError(
    "store_guard_invalid",
    `${paths.guard} is missing, but the manifest requires it: an older runtime may have changed this directory; restore it from a backup, or write the guard back if you know that none did`,
  );
}

/** Steps that install the guard. Its name is durable before anything that it protects. */
export function guardSteps(paths: StorePaths): FileStep[] {
  return [
    { op: "mkdir", path: paths.legacyRecords, mode: FOLDER_MODE, existsOk: true, label: "guard.mkdir" },
    { op: "syncDir", path: paths.stateDir, label: "guard.parent.sync" },
    ...replaceSteps(paths.guard, paths.temporary(paths.guard), GUARD_CONTENT, "guard"),
    { op: "syncDir", path: paths.legacyRecords, label: "guard.sync" },
  ];
}

/** Steps that make the names of a guard durable that is there already. */
export function guardSyncSteps(paths: StorePaths): FileStep[] {
  return [
    { op: "syncDir", path: paths.stateDir, label: "guard.parent.sync" },
    { op: "syncDir", path: paths.legacyRecords, label: "guard.sync" },
  ];
}
