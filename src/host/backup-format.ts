import { BACKUP_MANIFEST, type BackupManifest, backupManifestSchema } from "../core/backup.ts";
import { BackupError } from "../core/errors.ts";
import { fileJson } from "../core/json.ts";
import { MIB } from "../core/limits.ts";
import type { Clock } from "../core/ports/platform.ts";
import { TERMINAL_TOKEN_FILE } from "../core/terminal.ts";
import { LOGIN_FOLDER } from "../mcp/oauth-store.ts";

/**
 * What is in a backup: `backup.json`, the files of the host below `host/`, and the continuation state directory below
 * `continuations/`. A tar holds the same names, `backup.json` first. Files are 0600, folders 0700.
 */

/** Millions of records fit; more is not one of ours. */
export const MANIFEST_MAX_BYTES = 512 * MIB;
export const CHUNK_BYTES = 1 * MIB;
export const FILE_MODE = 0o600;
export const FOLDER_MODE = 0o700;

/** State in the host's folder beside the ledger. Locks are no state; backups are not part of a backup. */
export const HOST_FILES: readonly string[] = [TERMINAL_TOKEN_FILE];
/** Folders of such files, one level deep: the logins of MCP servers. */
export const HOST_FOLDERS: readonly string[] = [LOGIN_FOLDER];
/** Names of the files in them; nobody reads what is called otherwise. */
export const HOST_FILE = /\.json$/;

/** A manifest with the bytes that were written of it, for whoever wrote them. */
export interface WrittenManifest {
  readonly manifest: BackupManifest;
  readonly data: Buffer;
}

/** The bytes of a manifest: indented as all our files, but a line for each file. */
export async function writtenManifest(manifest: BackupManifest, pause: Pause): Promise<WrittenManifest> {
  const [head = "", tail = ""] = fileJson({ ...manifest, files: [] }).split("[]");
  const pieces = [Buffer.from(`${head}[`)];
  for (let from = 0; from < manifest.files.length; from += SLICE_ENTRIES) {
    const lines = manifest.files.slice(from, from + SLICE_ENTRIES).map((file) => JSON.stringify(file));
    pieces.push(Buffer.from(`${from === 0 ? "" : ","}\n    ${lines.join(",\n    ")}`));
    await pause();
  }
  pieces.push(Buffer.from(`\n  ]${tail}`));
  return { manifest, data: Buffer.concat(pieces) };
}

/** What stands in the manifest that was read: parsed, or, where it is known what was written, compared with that. */
export function manifestOf(
  source: string,
  data: Uint8Array,
  written: WrittenManifest | undefined,
): BackupManifest {
  if (written === undefined) return parseManifest(source, data);
  if (written.data.equals(data)) return written.manifest;
  throw new BackupError("backup_invalid", `${source}: ${BACKUP_MANIFEST} is not what was written`);
}

function parseManifest(source: string, data: Uint8Array): BackupManifest {
  let value: unknown;
  try {
    value = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(data));
  } catch (error) {
    throw new BackupError("backup_invalid", `${source}: ${BACKUP_MANIFEST} is not JSON`, { cause: error });
  }
  const parsed = backupManifestSchema.safeParse(value);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0];
  throw new BackupError(
    "backup_invalid",
    `${source}: ${BACKUP_MANIFEST} is not one that this version reads (${issue?.path.join(".") ?? ""}: ${issue?.message ?? ""})`,
  );
}

/** Of a long list, so many entries are handled at once. */
export const SLICE_ENTRIES = 4096;

/** A host that makes a backup serves others at least this often. */
const SLICE_MS = 8;

/**
 * To be awaited between two pieces of synchronous work: lets the event loop serve others when that was `SLICE_MS` ago.
 * `between` is called each time and may throw to end the work.
 */
export function pauser(clock: Clock, between: () => void = () => {}): Pause {
  let sinceMs = clock.now();
  return async () => {
    between();
    const spentMs = clock.now() - sinceMs;
    if (spentMs >= 0 && spentMs < SLICE_MS) return;
    await new Promise((resolve) => setImmediate(resolve));
    sinceMs = clock.now();
  };
}

export type Pause = () => Promise<void>;
