import { SECOND_MS } from "../core/limits.ts";
import type { FileAhead, FilesToRead } from "../core/ports/platform.ts";
import { readSecureFile } from "../core/secure-files.ts";
import { fileReads } from "./filesystem-reads.ts";
import { type Block, createReadRing } from "./read-ring.ts";

/**
 * Owns: reading many files by two at once: a thread, and the caller who takes what is there and reads as well while
 * nothing is. Does not own: the thread (filesystem-threads.ts), the memory between both (read-ring.ts).
 */

/** What the thread is told. */
export interface ReadAheadMessage {
  readonly read: Omit<FilesToRead, "names"> & {
    /** Joined by slashes, which no name has: one text passes between threads at a fraction of what a list costs. */
    readonly names: string;
    readonly ring: SharedArrayBuffer;
  };
}

/** Below so many files the start of a thread costs more than it saves. */
export const READ_AHEAD_FROM = 1024;
/** A thread that is silent for so long is not waited for; the caller reads what it had claimed. */
const CALLER_PATIENCE_MS = 2 * SECOND_MS;
/** A caller who takes nothing for so long is gone, and the thread has other work to do. */
const THREAD_PATIENCE_MS = 10 * SECOND_MS;

/** Gives each name once, as `FileSystem.readAhead`. `start` hands the message to a thread; what it gives back ends that. */
export function* readAhead(
  { names, ...files }: FilesToRead,
  start: (message: ReadAheadMessage) => () => void,
  patienceMs = CALLER_PATIENCE_MS,
): Generator<FileAhead> {
  if (names.length < READ_AHEAD_FROM) {
    for (const name of names) yield { name };
    return;
  }
  const ring = createReadRing(names.length);
  const open = new Set(ring.blocks);
  const end = start({ read: { ...files, names: names.join("/"), ring: ring.memory } });
  try {
    while (open.size > 0) {
      const ready = ring.published();
      if (ready !== undefined) {
        open.delete(ready.block);
        for (let index = ready.block.from; index < ready.block.to; index += 1) {
          const name = names[index] ?? "";
          const data = ready.data(index);
          yield data === undefined ? { name } : { name, data };
        }
        ring.release();
        continue;
      }
      const own = ring.claim();
      if (own !== undefined) {
        open.delete(own);
        yield* namesOf(own);
      } else if (!ring.waitForBlock(patienceMs)) break;
    }
  } finally {
    ring.stop();
    end();
  }
  for (const block of open) yield* namesOf(block);

  function* namesOf({ from, to }: Block): Generator<FileAhead> {
    for (const name of names.slice(from, to)) yield { name };
  }
}

/** What the thread does: claims blocks until there are none. Whatever is out of the ordinary is left to the caller. */
export function serveReadAhead({ read }: ReadAheadMessage, patienceMs = THREAD_PATIENCE_MS): void {
  const names = read.names.split("/");
  const ring = createReadRing(names.length, read.ring);
  for (let block = ring.claim(); block !== undefined; block = ring.claim()) {
    const waitedFor = ring.publish(block, patienceMs, (index, into) => {
      const path = `${read.folder}/${names[index]}`;
      try {
        return readSecureFile(fileReads, path, Math.min(read.maxBytes, into.length), read.label, into)
          ?.length;
      } catch {
        return undefined;
      }
    });
    if (!waitedFor) return;
  }
}
