/** Ports for what the outside world varies: time, identity, files, log. The real ones live in `platform/`. */

export interface Clock {
  /** Milliseconds since the epoch. */
  now(): number;
  /** Calls `fire` once after `delayMs` (at least 0); the returned function cancels it. Never keeps the process alive. */
  timer(delayMs: number, fire: () => void): () => void;
}

export interface Ids {
  /** A random UUID. */
  uuid(): string;
  /** `bytes` random bytes, base64url. */
  token(bytes: number): string;
  /** `run-<base36 ms>-<6 base36 characters>` (host-facts.md §3). */
  runId(nowMs: number): string;
}

export type LogFields = Record<string, string | number | boolean | undefined>;

/** Structured log. Fields never carry payloads, texts, tokens or destinations. */
export interface Logger {
  debug(message: string, fields?: LogFields): void;
  info(message: string, fields?: LogFields): void;
  warn(message: string, fields?: LogFields): void;
  error(message: string, fields?: LogFields): void;
}

export interface FileStat {
  readonly kind: "file" | "directory" | "symlink" | "other";
  readonly size: number;
  /** Permission bits, `& 0o7777`. */
  readonly mode: number;
  readonly uid: number;
  readonly links: number;
  /** Equal, in kind too, for what names the same file: a number where that is exact. */
  readonly device: number | bigint;
  readonly inode: number | bigint;
  readonly mtimeMs: number;
  /** When it, or a name of it, was last changed; as exact as the system tells. */
  readonly ctimeMs: number;
}

/** An open file, read through its descriptor. */
export interface ReadHandle {
  stat(): FileStat;
  /**
   * Reads up to `length` bytes from the current position; shorter only at the end of the file. With `into`, which must
   * have room for them, the bytes are there until somebody else writes to it.
   */
  read(length: number, into?: Uint8Array): Uint8Array;
  close(): void;
}

export interface FilesToRead {
  readonly folder: string;
  readonly names: readonly string[];
  /** Of one file. */
  readonly maxBytes: number;
  readonly label: string;
}

export interface FileAhead {
  readonly name: string;
  readonly data?: Uint8Array;
}

/**
 * One primitive step of a durable change. `label` names the step for logs, counters and fault tests.
 * - `write`: create `path` exclusively with `mode`, write `data`; with `sync`, fsync the file before it is closed. With
 *   `reuse`, a file of ours that is there already is written over in place, which spares the disk a new one: `whole`
 *   ends it after the data, `start` leaves what lies beyond.
 * - `syncFiles`: make the data of files that were written without `sync` durable, all of them; one call to the
 *   system may do for many.
 * - `rename`: with `swap`, what was at `to` gets the name `from`, where the system can swap names; elsewhere it is gone
 *   as without. A missing `from` is an error unless `missingOk`.
 * - `syncDir`: fsync the folder, which makes the names in it durable.
 * - `unlink`: a missing file is an error unless `missingOk`.
 * - `rmdir`: removes an empty folder; a missing one is an error.
 * - `mkdir`: an existing folder is an error unless `existsOk`.
 */
export type FileStep =
  | {
      op: "write";
      path: string;
      data: string | Uint8Array;
      mode: number;
      sync: boolean;
      reuse?: "whole" | "start";
      label: string;
    }
  | { op: "sync"; path: string; label: string }
  | { op: "syncFiles"; folder: string; paths: readonly string[]; label: string }
  | { op: "rename"; from: string; to: string; swap?: boolean; missingOk?: boolean; label: string }
  | { op: "unlink"; path: string; missingOk: boolean; label: string }
  | { op: "mkdir"; path: string; mode: number; existsOk: boolean; label: string }
  | { op: "rmdir"; path: string; label: string }
  | { op: "chmod"; path: string; mode: number; label: string }
  | { op: "syncDir"; path: string; label: string };

/**
 * The filesystem as the store sees it. Reads are synchronous (start-up and single files); changes are lists of
 * labelled steps, carried out strictly in order, stopping at the first that fails (`FileFault`).
 */
export interface FileSystem {
  /** Stat without following a symlink; undefined when nothing is there. */
  lstat(path: string, label: string): FileStat | undefined;
  /** Opens for reading without following a symlink; undefined when nothing is there. */
  open(path: string, label: string): ReadHandle | undefined;
  /** Names in a folder, unsorted; undefined when the folder is not there. */
  list(path: string, label: string): string[] | undefined;
  /**
   * Reads files of a folder by the rules of `readSecureFile`, with a thread that is ahead of the caller where that is
   * worth it. Gives each name once, in any order: with its bytes, which are good until the next is asked for; or without
   * them, when the caller has to read the file himself. So every file out of the ordinary is read and judged by him.
   */
  readAhead?: ((files: FilesToRead) => Iterable<FileAhead>) | undefined;
  /**
   * Takes over the bytes of the steps: whoever calls it does not use them afterwards. Shared memory is only borrowed, and
   * must not change until the list is done.
   */
  run(steps: readonly FileStep[]): Promise<void>;
  runSync(steps: readonly FileStep[]): void;
  /** Waits for the lists under way and gives back what `run` holds (threads). Optional to call. */
  close?(): Promise<void>;
  /** Uid that must own every file, or undefined where the platform has none (Windows). */
  readonly uid: number | undefined;
}

/** A step or read failed. `errno` is the system's name for it, such as ENOSPC. */
export class FileFault extends Error {
  override readonly name = "FileFault";
  constructor(
    readonly label: string,
    readonly path: string,
    readonly errno: string,
    options?: { cause?: unknown },
  ) {
    super(`${label} failed at ${path}: ${errno}`, options);
  }
}

/** Process-lifetime ownership of a folder; the operating system frees it when the process dies. */
export interface OwnershipLock {
  release(): void;
}
