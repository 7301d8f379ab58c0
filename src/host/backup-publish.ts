import { basename, dirname, join } from "node:path";
import { BACKUP_MANIFEST } from "../core/backup.ts";
import { BackupError } from "../core/errors.ts";
import type { FileSystem, Ids } from "../core/ports/platform.ts";
import { createSequentialFile } from "../platform/sequential-file.ts";
import { FILE_MODE, type Pause, type WrittenManifest } from "./backup-format.ts";
import { type BackupReader, openBackup, verifyBackup } from "./backup-reader.ts";
import { TAR_END, tarHeader, tarPadding } from "./backup-tar.ts";

/** How a verified backup gets its name: renamed, or packed into a tar that is read back first. */

const LABEL = "backup.publish";
const PARTIAL_ID_BYTES = 9;

/** Gives what is complete its name. Refuses when something has it by now. */
export function publish(fs: FileSystem, partial: string, target: string): void {
  // A rename would take the place of an empty folder or a file that came meanwhile.
  if (fs.lstat(target, LABEL) !== undefined)
    throw new BackupError("backup_refused", `${target} exists already`);
  fs.runSync([
    { op: "rename", from: partial, to: target, label: LABEL },
    { op: "syncDir", path: dirname(target), label: LABEL },
  ]);
}

/** Packs a staged backup into a tar at `target`. */
export async function packTar(
  fs: FileSystem,
  staging: string,
  written: WrittenManifest,
  target: string,
  ids: Ids,
  pause: Pause,
): Promise<void> {
  const partial = join(dirname(target), `.${basename(target)}.${ids.token(PARTIAL_ID_BYTES)}.partial`);
  try {
    await writeTar(fs, openBackup(fs, staging, written), written, partial, pause);
    await verifyBackup(openBackup(fs, partial, written), pause);
    publish(fs, partial, target);
  } finally {
    fs.runSync([{ op: "unlink", path: partial, missingOk: true, label: LABEL }]);
  }
}

async function writeTar(
  fs: FileSystem,
  staged: BackupReader,
  { manifest, data }: WrittenManifest,
  path: string,
  pause: Pause,
) {
  const mtimeMs = Date.parse(manifest.createdAt);
  const out = createSequentialFile(path, FILE_MODE, LABEL);
  try {
    out.write(tarHeader({ path: BACKUP_MANIFEST, bytes: data.length }, mtimeMs));
    out.write(data);
    out.write(tarPadding(data.length));
    for (const { file, chunks } of staged.files()) {
      out.write(tarHeader(file, mtimeMs));
      for (const piece of chunks()) {
        out.write(piece);
        await pause();
      }
      out.write(tarPadding(file.bytes));
    }
    out.write(TAR_END);
  } finally {
    out.close();
  }
  await fs.run([
    { op: "sync", path, label: LABEL },
    { op: "syncDir", path: dirname(path), label: LABEL },
  ]);
}
