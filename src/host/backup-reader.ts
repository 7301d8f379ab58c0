import { join } from "node:path";
import { BACKUP_MANIFEST, type BackupFile, type BackupManifest } from "../core/backup.ts";
import { sha256Stream } from "../core/digest.ts";
import { BackupError } from "../core/errors.ts";
import type { FileSystem, ReadHandle } from "../core/ports/platform.ts";
import {
  CHUNK_BYTES,
  MANIFEST_MAX_BYTES,
  manifestOf,
  type Pause,
  type WrittenManifest,
} from "./backup-format.ts";
import { readTar } from "./backup-tar.ts";

/**
 * Owns: reading a backup, folder or tar, without trusting it.
 *
 * I1. No symlink is followed, and no name leads out of the backup: names come from the checked manifest.
 * I2. What is read twice may differ: whoever uses a content checks its digest in that very reading.
 */

export interface BackupReader {
  readonly source: string;
  readonly manifest: BackupManifest;
  /** Every file of the manifest exactly once, its content in pieces; one after the other. */
  files(): Generator<{ readonly file: BackupFile; chunks(): Generator<Uint8Array> }>;
}

const LABEL = "backup.read";

/** `written` is what the caller itself wrote as the manifest: parsing a large one takes long. */
export function openBackup(fs: FileSystem, source: string, written?: WrittenManifest): BackupReader {
  const stat = fs.lstat(source, LABEL);
  switch (stat?.kind) {
    case "directory":
      return openFolder(fs, source, written);
    case "file":
      return openTar(fs, source, written);
    default:
      throw new BackupError(
        "backup_invalid",
        stat === undefined ? `there is no backup at ${source}` : `${source} is a ${stat.kind}, not a backup`,
      );
  }
}

/** Reads every file and compares it with its digest. Throws `backup_invalid`, naming the first that differs. */
export async function verifyBackup(reader: BackupReader, pause: Pause): Promise<void> {
  await pause();
  for (const { file, chunks } of reader.files()) {
    const digest = sha256Stream();
    let bytes = 0;
    for (const piece of chunks()) {
      digest.update(piece);
      bytes += piece.length;
      await pause();
    }
    requireSame(reader.source, file, bytes, digest.hex());
  }
}

export function requireSame(source: string, file: BackupFile, bytes: number, sha256: string): void {
  if (bytes === file.bytes && sha256 === file.sha256) return;
  throw new BackupError(
    "backup_invalid",
    `${source}: ${file.path} is not what was backed up (its digest differs)`,
  );
}

function openFolder(fs: FileSystem, source: string, written: WrittenManifest | undefined): BackupReader {
  const handle = openRegular(fs, join(source, BACKUP_MANIFEST));
  if (handle === undefined) {
    throw new BackupError(
      "backup_invalid",
      `${source} holds no ${BACKUP_MANIFEST}: it is not a finished backup`,
    );
  }
  const manifest = using(handle, () => {
    const { size } = handle.stat();
    if (size > MANIFEST_MAX_BYTES)
      throw new BackupError("backup_invalid", `${source}: ${BACKUP_MANIFEST} is too large`);
    return manifestOf(source, handle.read(size), written);
  });
  return {
    source,
    manifest,
    *files() {
      for (const file of manifest.files) {
        const path = join(source, ...file.path.split("/"));
        const opened = openRegular(fs, path);
        if (opened === undefined) throw new BackupError("backup_invalid", `${path} is missing`);
        try {
          yield { file, chunks: () => pieces(opened) };
        } finally {
          opened.close();
        }
      }
    },
  };
}

function openTar(fs: FileSystem, source: string, written: WrittenManifest | undefined): BackupReader {
  const begin = () => {
    const handle = openRegular(fs, source);
    if (handle === undefined) throw new BackupError("backup_invalid", `there is no backup at ${source}`);
    return handle;
  };
  const first = begin();
  const manifest = using(first, () => {
    for (const { path, bytes, chunks } of readTar(source, first)) {
      if (path !== BACKUP_MANIFEST || bytes > MANIFEST_MAX_BYTES) break;
      return manifestOf(source, Buffer.concat([...chunks()]), written);
    }
    throw new BackupError(
      "backup_invalid",
      `${source} does not begin with ${BACKUP_MANIFEST}: it is no backup`,
    );
  });
  return {
    source,
    manifest,
    *files() {
      const handle = begin();
      try {
        const left = new Map(manifest.files.map((file) => [file.path, file]));
        for (const { path, chunks } of readTar(source, handle)) {
          if (path === BACKUP_MANIFEST) continue;
          const file = left.get(path);
          if (file === undefined) {
            throw new BackupError(
              "backup_invalid",
              `${source} holds ${JSON.stringify(path)}, which its manifest does not name`,
            );
          }
          left.delete(path);
          yield { file, chunks };
        }
        const [missing] = left.keys();
        if (missing !== undefined)
          throw new BackupError("backup_invalid", `${source}: ${missing} is missing`);
      } finally {
        handle.close();
      }
    },
  };
}

function openRegular(fs: FileSystem, path: string): ReadHandle | undefined {
  const stat = fs.lstat(path, LABEL);
  if (stat === undefined) return undefined;
  const handle = stat.kind === "file" ? fs.open(path, LABEL) : undefined;
  if (handle === undefined) throw new BackupError("backup_invalid", `${path} is not a regular file`);
  return handle;
}

/** What it has now; a file that changes meanwhile is found by its digest. No room is made for more than is left. */
function* pieces(handle: ReadHandle): Generator<Uint8Array> {
  for (let left = handle.stat().size; left > 0; ) {
    const piece = handle.read(Math.min(CHUNK_BYTES, left));
    if (piece.length === 0) return;
    left -= piece.length;
    yield piece;
  }
}

function using<T>(handle: ReadHandle, work: () => T): T {
  try {
    return work();
  } finally {
    handle.close();
  }
}
