import { basename, extname, resolve } from "node:path";
import { CliError } from "../../core/errors.ts";
import { ATTACHMENT_MAX_BYTES, MIB } from "../../core/limits.ts";
import { FileFault, type FileSystem } from "../../core/ports/platform.ts";
import type { TurnAttachment } from "../../core/turn.ts";

/** What goes with a message, as the host takes it. */
const MEDIA_TYPES: Readonly<Record<string, string>> = {
  ".png": "image/png",
  ".jpg": "image/jpeg",
  ".jpeg": "image/jpeg",
  ".gif": "image/gif",
  ".webp": "image/webp",
  ".pdf": "application/pdf",
  ".md": "text/markdown",
  ".csv": "text/csv",
  ".html": "text/html",
};
/** Of a file that is text by its name or only by its bytes. */
const TEXT = "text/plain";

const LABEL = "chat.attach";

/**
 * Reads a file that goes with a message: an image, a PDF, or any text.
 *
 * @throws CliError `operation_failed` that names the file and what is wrong with it.
 */
export function readAttachment(fs: FileSystem, cwd: string, given: string): TurnAttachment {
  const path = resolve(cwd, given);
  const no = (why: string) => new CliError("operation_failed", `${path} can't be attached: ${why}`);
  let data: Uint8Array | string;
  try {
    data = readPlainFile(fs, path);
  } catch (error) {
    throw error instanceof FileFault ? no(error.errno) : error;
  }
  if (typeof data === "string") throw no(data);
  const mediaType = MEDIA_TYPES[extname(path).toLowerCase()] ?? TEXT;
  if (mediaType.startsWith("text/") && !isText(data)) {
    throw no("only PNG, JPEG, GIF, WebP, PDF and text can be");
  }
  return { mediaType, name: basename(path), data: Buffer.from(data).toString("base64") };
}

/** The bytes, or what is wrong with the file. */
function readPlainFile(fs: FileSystem, path: string): Uint8Array | string {
  // The kind first: opening a pipe would wait for its other end.
  const stat = fs.lstat(path, LABEL);
  if (stat === undefined) return "there is no such file";
  if (stat.kind !== "file") return "it is no plain file (links are not followed)";
  if (stat.size === 0) return "it is empty";
  if (stat.size > ATTACHMENT_MAX_BYTES) return `it has more than ${ATTACHMENT_MAX_BYTES / MIB} MiB`;
  const handle = fs.open(path, LABEL);
  if (handle === undefined) return "there is no such file";
  try {
    return handle.read(ATTACHMENT_MAX_BYTES);
  } finally {
    handle.close();
  }
}

function isText(data: Uint8Array): boolean {
  if (data.includes(0)) return false;
  try {
    new TextDecoder("utf-8", { fatal: true }).decode(data);
    return true;
  } catch {
    return false;
  }
}
