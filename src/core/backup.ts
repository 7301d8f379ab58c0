import { z } from "zod";
import { dateText, hex64 } from "./record.ts";

/** What a backup says about itself, and the mark of a restored state. Unknown keys are refused: only we write them. */

export const BACKUP_MANIFEST = "backup.json";
export const HOST_PART = "host";
export const STATE_PART = "continuations";

const fileSchema = z.strictObject({
  path: z.string().refine(isBackupPath, "must be a path inside the backup"),
  bytes: z.int().min(0),
  sha256: hex64,
});
export type BackupFile = z.infer<typeof fileSchema>;

export const backupManifestSchema = z
  .strictObject({
    format: z.literal("mono-agent-backup"),
    schemaVersion: z.literal(1),
    createdAt: dateText,
    records: z.int().min(0),
    files: z.array(fileSchema),
  })
  .refine(
    ({ files }) => new Set(files.map((file) => file.path)).size === files.length,
    "must name each file once",
  );
export type BackupManifest = z.infer<typeof backupManifestSchema>;

/** `host/…` or `continuations/…` with plain names only: no way out of the folder, on no system. */
function isBackupPath(path: string): boolean {
  const [part, ...names] = path.split("/");
  if ((part !== HOST_PART && part !== STATE_PART) || names.length === 0 || names.length > 2) return false;
  return names.every((name) => /^[^\\:\p{Cc}]{1,255}$/u.test(name) && name !== "." && name !== "..");
}

export const restoredSchema = z.strictObject({
  schemaVersion: z.literal(1),
  complete: z.boolean(),
  restoredAt: dateText,
  /** When the backup was made: what happened after that moment is not known here. */
  backupCreatedAt: dateText,
  /** Whether the turns that were unfinished in the backup were ended. */
  turnsEnded: z.boolean(),
  /** Continuations that were not finished in the backup and that nobody released. */
  held: z.array(z.string().min(1)),
});
export type Restored = z.infer<typeof restoredSchema>;
