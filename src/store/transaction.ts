import { KIB, MIB } from "../core/limits.ts";
import type { ContinuationRecord } from "../core/record.ts";
import { encodeMember } from "./codec.ts";

/**
 * Owns: versions of records on their way to the disk, and the content of the transaction file that carries them.
 * Does not own: which versions it carries when (journal.ts, checkpoint.ts).
 *
 * I1. The content is byte for byte what `fileJson` gives for the frame of store-format.md §6, and then blanks.
 * I2. What `content` returned does not change before the next call of `put` or `content`; `drop` only takes note.
 */

/** One version of one record. The object itself is the identity of the version. */
export interface Entry {
  readonly id: string;
  /** Undefined for a delete. */
  readonly record: ContinuationRecord | undefined;
  /** As it stands in a transaction file, without the indentation of its first line. */
  readonly text: string;
  /** What it adds to a transaction file, in bytes. */
  readonly bytes: number;
}

/** Between two members of a list in the file, or before the first. */
const BEFORE_MEMBER = ",\n    ";

/** Throws `record_too_large`. */
export function putEntry(record: ContinuationRecord): Entry {
  return entry(record.continuationId, record, encodeMember(record));
}

export function deleteEntry(id: string): Entry {
  return entry(id, undefined, JSON.stringify(id));
}

function entry(id: string, record: ContinuationRecord | undefined, text: string): Entry {
  return { id, record, text, bytes: BEFORE_MEMBER.length + Buffer.byteLength(text, "utf8") };
}

/**
 * The transaction file as it grows. Its bytes are kept from commit to commit, so that one costs what is new and not
 * what is carried, and in shared memory, so that the thread that writes them needs no copy.
 */
export interface TransactionFile {
  /** Takes the place of an older version of the same record. */
  put(entry: Entry): void;
  /** The version is durable in its own file. No effect when a newer one has taken its place. */
  drop(entry: Entry): void;
  content(frame: TransactionFrame): Uint8Array;
}

export interface TransactionFrame {
  readonly generation: string;
  readonly createdAt: string;
  /** How long the content shall be, at least `bytes`: what is more is blank. */
  readonly length: (bytes: number) => number;
}

interface Member {
  readonly entry: Entry;
  at: number;
}

/** Room for the frame up to the first member. It is written against that, as its length may vary. */
const HEAD_ROOM = 1 * KIB;
const FIRST_CAPACITY = 64 * KIB;
/** More than this is given back when nothing is carried. */
const KEPT_CAPACITY = 4 * MIB;

export function createTransactionFile(): TransactionFile {
  // Writes stand in `buffer`, in the order of the map, each after BEFORE_MEMBER; between them may be what was dropped.
  const writes = new Map<string, Member>();
  const deletes = new Map<string, Entry>();
  let buffer: Buffer = Buffer.alloc(0);
  let end = HEAD_ROOM;

  function reserve(bytes: number): void {
    const needed = end + bytes;
    if (needed <= buffer.length) return;
    let capacity = Math.max(FIRST_CAPACITY, buffer.length);
    while (capacity < needed) capacity *= 2;
    const larger = Buffer.from(new SharedArrayBuffer(capacity));
    buffer.copy(larger, 0, 0, end);
    buffer = larger;
  }

  function append(text: string): void {
    end += buffer.write(text, end, "utf8");
  }

  /** Closes the gaps that dropped and replaced versions left, run by run. */
  function compact(): void {
    let to = HEAD_ROOM;
    let from = HEAD_ROOM;
    let length = 0;
    const moveRun = () => {
      if (from !== to) buffer.copyWithin(to, from, from + length);
      to += length;
    };
    for (const member of writes.values()) {
      if (member.at !== from + length) {
        moveRun();
        from = member.at;
        length = 0;
      }
      member.at = to + length;
      length += member.entry.bytes;
    }
    moveRun();
    end = to;
  }

  return {
    put(entry) {
      writes.delete(entry.id);
      deletes.delete(entry.id);
      if (entry.record === undefined) {
        deletes.set(entry.id, entry);
        return;
      }
      if (writes.size === 0) end = HEAD_ROOM;
      reserve(entry.bytes);
      writes.set(entry.id, { entry, at: end });
      append(BEFORE_MEMBER);
      append(entry.text);
    },
    drop(entry) {
      if (writes.get(entry.id)?.entry === entry) writes.delete(entry.id);
      if (deletes.get(entry.id) === entry) deletes.delete(entry.id);
      if (writes.size === 0 && buffer.length > KEPT_CAPACITY) buffer = Buffer.alloc(0);
    },
    content({ generation, createdAt, length }) {
      compact();
      const head = `{
  "schemaVersion": 3,
  "generation": ${JSON.stringify(generation)},
  "createdAt": ${JSON.stringify(createdAt)},
  "writes": `;
      let tail = writes.size === 0 ? "[" : "\n  ";
      tail += `],\n  "deletes": [`;
      let separator = BEFORE_MEMBER.slice(1);
      for (const { text } of deletes.values()) {
        tail += separator + text;
        separator = BEFORE_MEMBER;
      }
      tail += `${deletes.size === 0 ? "" : "\n  "}]\n}\n`;
      const headBytes = Buffer.byteLength(head, "utf8");
      const start = HEAD_ROOM - headBytes;
      const contentEnd = end + Buffer.byteLength(tail, "utf8");
      const blankEnd = start + length(contentEnd - start);
      reserve(blankEnd - end);
      buffer.write(head, start, "utf8");
      buffer.write(tail, end, "utf8");
      buffer.fill(" ", contentEnd, blankEnd);
      // The comma before the first member becomes the bracket of the list; the first stays the first until it leaves.
      if (writes.size > 0) buffer.write("[", HEAD_ROOM);
      return new Uint8Array(buffer.buffer, buffer.byteOffset + start, blankEnd - start);
    },
  };
}
