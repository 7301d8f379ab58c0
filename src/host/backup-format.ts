import { z } from "zod";
import { BackupError } from "../core/errors.ts";
import { MIB } from "../core/limits.ts";
import { dateText, hex64 } from "../core/record.ts";
import { TERMINAL_TOKEN_FILE } from "../core/terminal.ts";
import { LOGIN_FOLDER } from "../mcp/oauth-store.ts";

/**
 * What is in a backup: `backup.json`, the files of the host below `host/`, and the continuation state directory below
 * `continuations/`. A tar holds the same names, `backup.json` first. Files are 0600, folders 0700.
 */

export const BACKUP_MANIFEST = "backup.json";
export const HOST_PART = "host";
export const STATE_PART = "continuations";
/** Millions of records fit; more is not one of ours. */
export const MANIFEST_MAX_BYTES = 512 * MIB;
export const CHUNK_BYTES = 1 * MIB;
export const FILE_MODE = 0o600;
export const FOLDER_MODE = 0o700;

/** State in the host's folder beside the ledger. Locks are no state; backups are not part of a backup. */
export const HOST_FILES: readonly string[] = [TERMINAL_TOKEN_FILE];
/** Folders of such files, one level deep: the logins of MCP servers. */
export const HOST_FOLDERS: readonly string[] = [LOGIN_FOLDER];

const fileSchema = z.strictObject({
  path: z.string().refine(isBackupPath, "must be a path inside the backup"),
  bytes: z.int().min(0),
  sha256: hex64,
});
export type BackupFile = z.infer<typeof fileSchema>;

export const manifestSchema = z
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
export type BackupManifest = z.infer<typeof manifestSchema>;

/** `host/…` or `continuations/…` with plain names only: no way out of the folder, on no system. */
function isBackupPath(path: string): boolean {
  const [part, ...names] = path.split("/");
  if ((part !== HOST_PART && part !== STATE_PART) || names.length === 0 || names.length > 2) return false;
  return names.every((name) => /^[^\\:\p{Cc}]{1,255}$/u.test(name) && name !== "." && name !== "..");
}

export function parseManifest(source: string, data: Uint8Array): BackupManifest {
  let value: unknown;
  try {
    value = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(data));
  } catch (error) {
    throw new BackupError("backup_invalid", `${source}: ${BACKUP_MANIFEST} is not JSON`, { cause: error });
  }
  const parsed = manifestSchema.safeParse(value);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0];
  throw new BackupError(
    "backup_invalid",
    `${source}: ${BACKUP_MANIFEST} is not one that this version reads (${issue?.path.join(".") ?? ""}: ${issue?.message ?? ""})`,
  );
}

/** Lets the event loop serve others between two pieces of synchronous work. */
export function breathe(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
