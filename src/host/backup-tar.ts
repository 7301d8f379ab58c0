import { BackupError } from "../core/errors.ts";
import type { ReadHandle } from "../core/ports/platform.ts";
import { CHUNK_BYTES, FILE_MODE } from "./backup-format.ts";

/**
 * The little of tar that a backup needs: POSIX ustar, regular files only. What else may be in a tar (links, devices,
 * extended headers) is refused when it is read, never followed.
 */

const BLOCK = 512;
/** Eleven octal digits. */
const SIZE_MAX = 0o77777777777;
const NAME_MAX = 100;
const PREFIX_MAX = 155;

export interface TarEntry {
  readonly path: string;
  readonly bytes: number;
}

/** The header block of a regular file with mode 0600. */
export function tarHeader({ path, bytes }: TarEntry, mtimeMs: number): Uint8Array {
  const { name, prefix } = splitName(path);
  if (bytes > SIZE_MAX) {
    throw new BackupError("backup_failed", `${path} is too large for a tar; back up into a folder instead`);
  }
  const header = Buffer.alloc(BLOCK);
  const octal = (value: number, at: number, digits: number) =>
    header.write(value.toString(8).padStart(digits, "0"), at, "latin1");
  header.write(name, 0, "utf8");
  octal(FILE_MODE, 100, 7);
  octal(0, 108, 7);
  octal(0, 116, 7);
  octal(bytes, 124, 11);
  octal(Math.max(0, Math.floor(mtimeMs / 1000)), 136, 11);
  header.write("        ", 148, "latin1");
  header.write("0", 156, "latin1");
  header.write("ustar\x0000", 257, "latin1");
  header.write(prefix, 345, "utf8");
  header.write(`${checksum(header).toString(8).padStart(6, "0")}\0 `, 148, "latin1");
  return header;
}

/** What fills the last block of a file. */
export function tarPadding(bytes: number): Uint8Array {
  return Buffer.alloc((BLOCK - (bytes % BLOCK)) % BLOCK);
}

/** Two empty blocks end a tar. */
export const TAR_END: Uint8Array = Buffer.alloc(2 * BLOCK);

/**
 * The files of a tar in their order; the chunks of one are read before the next is asked for, and what is left of them
 * is passed over. Throws `backup_invalid` for anything that `tarHeader` would not have written, and for a cut tar.
 */
export function* readTar(
  source: string,
  handle: ReadHandle,
): Generator<TarEntry & { chunks(): Generator<Uint8Array> }> {
  const invalid = (problem: string) =>
    new BackupError("backup_invalid", `${source} is not a backup: ${problem}`);
  const exactly = (bytes: number) => {
    const data = handle.read(bytes);
    if (data.length !== bytes) throw invalid("it ends in the middle");
    return Buffer.from(data.buffer, data.byteOffset, data.length);
  };
  for (;;) {
    const header = exactly(BLOCK);
    if (header.every((byte) => byte === 0)) return;
    if (header.toString("latin1", 257, 263) !== "ustar\0") throw invalid("a header is not ustar");
    if (checksum(header) !== Number.parseInt(text(header, 148, 8), 8)) throw invalid("a header is damaged");
    if (header.toString("latin1", 156, 157) !== "0") throw invalid("it holds more than regular files");
    const bytes = Number.parseInt(text(header, 124, 12), 8);
    if (!Number.isSafeInteger(bytes) || bytes < 0) throw invalid("a size is damaged");
    const prefix = text(header, 345, PREFIX_MAX);
    const path = `${prefix === "" ? "" : `${prefix}/`}${text(header, 0, NAME_MAX)}`;
    let left = bytes;
    const chunks = function* () {
      while (left > 0) {
        const piece = exactly(Math.min(left, CHUNK_BYTES));
        left -= piece.length;
        yield piece;
      }
    };
    yield { path, bytes, chunks };
    for (const _ of chunks());
    exactly(tarPadding(bytes).length);
  }
}

function splitName(path: string): { name: string; prefix: string } {
  if (Buffer.byteLength(path) <= NAME_MAX) return { name: path, prefix: "" };
  for (let at = path.indexOf("/"); at >= 0; at = path.indexOf("/", at + 1)) {
    const [prefix, name] = [path.slice(0, at), path.slice(at + 1)];
    if (Buffer.byteLength(prefix) <= PREFIX_MAX && Buffer.byteLength(name) <= NAME_MAX)
      return { name, prefix };
  }
  throw new BackupError("backup_failed", `${path} has too long a name for a tar; back up into a folder`);
}

/** The sum of all bytes of the header, its own field counted as spaces. */
function checksum(header: Buffer): number {
  let sum = 0;
  for (let at = 0; at < BLOCK; at += 1) sum += at >= 148 && at < 156 ? 0x20 : (header[at] ?? 0);
  return sum;
}

function text(header: Buffer, at: number, length: number): string {
  const field = header.subarray(at, at + length);
  const end = field.indexOf(0);
  return field.toString("utf8", 0, end < 0 ? length : end).trimEnd();
}
