import { join } from "node:path";
import { type BackupManifest, HOST_PART, STATE_PART } from "../core/backup.ts";
import { BackupError } from "../core/errors.ts";
import type { FileSystem } from "../core/ports/platform.ts";
import { STORE_ENTRIES } from "../core/store-files.ts";
import { checkingContinuationStore, type StoreCheck } from "../store/check.ts";
import { unsettledIds } from "../store/copy.ts";
import { inSlices } from "../store/slices.ts";
import { checkTurns } from "../turns/check.ts";
import type { Pause, WrittenManifest } from "./backup-format.ts";
import { openBackup, verifyBackup } from "./backup-reader.ts";
import { HOST_DATABASE } from "./state-entries.ts";

/** Whether a copy that nobody else knows of yet could be started. */

/** Digests, the store's own check, and SQLite's. Damage of one snapshot was there before and is no reason to fail. */
export async function verifyStaged(
  fs: FileSystem,
  staging: string,
  written: WrittenManifest,
  pause: Pause,
): Promise<void> {
  const reader = openBackup(fs, staging, written);
  await verifyBackup(reader, pause);
  const places = { hostDir: join(staging, HOST_PART), stateDir: join(staging, STATE_PART) };
  const { migrationDue } = await requireSound(fs, places, reader.manifest, pause);
  // A restore needs what is unfinished in it, and state that can't be converted does not say.
  if (migrationDue) unsettledIds(fs, places.stateDir, reader.manifest.createdAt);
}

/** Rejects with `backup_invalid` when the state in these folders would not open, or is not that of the manifest. */
export async function requireSound(
  fs: FileSystem,
  { hostDir, stateDir }: { hostDir: string; stateDir: string },
  manifest: BackupManifest,
  pause: Pause,
): Promise<StoreCheck> {
  const check = await inSlices(checkingContinuationStore({ fs, stateDir }), pause);
  const finding = check.findings.find((found) => found.affects === undefined);
  if (finding !== undefined) {
    throw new BackupError(
      "backup_invalid",
      `the copy of the continuation state is not sound: ${finding.problem}`,
    );
  }
  // What a pending transaction adds and takes away is not counted in the manifest.
  const pending = manifest.files.some(({ path }) => path === `${STATE_PART}/${STORE_ENTRIES.transaction}`);
  if (!pending && check.records !== manifest.records) {
    throw new BackupError(
      "backup_invalid",
      `the copy of the continuation state has ${check.records} records, and ${manifest.records} were backed up`,
    );
  }
  const turns = checkTurns({ path: join(hostDir, HOST_DATABASE), fs });
  if (turns.kind === "corrupt" || turns.kind === "unsafe" || turns.kind === "unreadable") {
    throw new BackupError("backup_invalid", `the copy of the ledger is not sound: ${turns.detail}`);
  }
  return check;
}
