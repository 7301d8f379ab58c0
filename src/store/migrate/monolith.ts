import { errorText, StoreError } from "../../core/errors.ts";
import { MIB } from "../../core/limits.ts";
import type { FileStat, FileSystem } from "../../core/ports/platform.ts";
import { requireSafeFile, requireSameFile, unsafe } from "../../core/secure-files.ts";
import { checkValue, corrupt, parseJson } from "../codec.ts";
import { createJsonSource } from "./json-source.ts";
import { v1FrameSchema } from "./legacy-schema.ts";

/**
 * Owns: reading `continuations-v1.json`, record by record, so that a monolith of 200 MiB is never in memory as text.
 * Does not own: what a record is.
 *
 * I1. It is read once, through one descriptor that names the same inode before, at and after the read, and no byte
 *     beyond the size that was checked.
 * I2. Malformed anywhere means refused, though records before that place were already given away.
 */

export const MONOLITH_MAX_BYTES = 256 * MIB;

export interface MonolithReader {
  /** Called for each record with the size of its text. */
  record(id: string, value: unknown, bytes: number): void;
  progress(doneBytes: number, totalBytes: number): void;
}

/** Returns the size of the file; undefined when there is none. Throws a `StoreError` that names the path. */
export function readMonolith(fs: FileSystem, path: string, reader: MonolithReader): number | undefined {
  const seen = fs.lstat(path, "monolith");
  if (seen === undefined) return undefined;
  requireSafeFile(fs, path, seen, MONOLITH_MAX_BYTES);
  const handle = fs.open(path, "monolith");
  if (handle === undefined) throw unsafe(path, "disappeared while it was opened");
  try {
    const opened = handle.stat();
    requireUnchanged(path, seen, opened);
    requireSafeFile(fs, path, opened, MONOLITH_MAX_BYTES);
    let done = 0;
    parseMonolith(
      path,
      createJsonSource(path, (length) => {
        const chunk = handle.read(Math.min(length, opened.size - done));
        done += chunk.length;
        reader.progress(done, opened.size);
        return chunk;
      }),
      reader,
    );
    requireUnchanged(path, opened, handle.stat());
    const named = fs.lstat(path, "monolith");
    if (named === undefined) throw unsafe(path, "disappeared while it was read");
    requireUnchanged(path, opened, named);
    return opened.size;
  } finally {
    handle.close();
  }
}

function requireUnchanged(path: string, before: FileStat, after: FileStat): void {
  requireSameFile(path, before, after);
  if (before.size !== after.size || before.mtimeMs !== after.mtimeMs) {
    throw unsafe(path, "changed while it was read");
  }
}

function parseMonolith(
  path: string,
  source: ReturnType<typeof createJsonSource>,
  reader: MonolithReader,
): void {
  const frame: Record<string, unknown> = Object.create(null);
  source.object((key) => {
    if (key in frame) throw corrupt(path, `has ${JSON.stringify(key)} twice`);
    if (key !== "records") {
      frame[key] = parseJson(path, source.value());
      return;
    }
    frame[key] = true;
    const seen = new Set<string>();
    source.object((id) => {
      if (seen.has(id)) throw corrupt(path, `names continuation ${id} twice`);
      seen.add(id);
      const data = source.value();
      reader.record(id, parseRecord(path, id, data), data.length);
    });
  });
  source.end();
  checkValue(path, v1FrameSchema, { ...frame });
  if (frame.records === undefined) throw corrupt(path, "has no records");
}

function parseRecord(path: string, id: string, data: Uint8Array): unknown {
  try {
    return parseJson(path, data);
  } catch (error) {
    throw new StoreError("store_corrupt", `${errorText(error)} in continuation ${id}`, { cause: error });
  }
}
