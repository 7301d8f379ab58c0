import { KIB } from "../core/limits.ts";
import type { ContinuationRecord } from "../core/record.ts";

/**
 * Records that nothing works on any more, as bytes in large segments. As objects, or as a text each, they would cost the
 * garbage collector a walk over every member of tens of thousands of them, and memory that it gives back in parts only.
 *
 * I1. `read` gives a record equal to the one that was added, with its members in the same order.
 * I2. A handle is good until it is removed, wherever its bytes move meanwhile.
 * I3. Of what is written in a segment, more than three quarters is in use, but for the one that is being filled.
 */
export interface FrozenRecords {
  /** The handle of its bytes; undefined for a record of more than `FROZEN_MAX_CHARS`. */
  add(record: ContinuationRecord): number | undefined;
  read(handle: number): ContinuationRecord;
  remove(handle: number): void;
  /** Bytes that the segments take. */
  readonly reserved: number;
}

/** Larger records stay objects, as the whole would be read at each look at one. */
export const FROZEN_MAX_CHARS = 8 * KIB;
/** What one compaction moves at most: some tens of microseconds. Every record fits, whatever its characters. */
const SEGMENT_BYTES = 256 * KIB;
const LEAST_USE = 0.75;
const SPARE_SEGMENTS = 4;
/** Sets of keys that are kept once for all records that have them. Ours are a few dozen; unknown keys could be any. */
const KEY_SETS_MAX = 1024;

/** Before each record: its length, its handle, its key set. */
const HEAD_BYTES = 12;
const REMOVED = 0xffff_ffff;
const NOWHERE = -1;
/** The record is whole JSON, and not only its values. */
const NO_KEY_SET = 0xffff_ffff;

interface Segment {
  readonly bytes: Buffer;
  /** Up to here it is written. */
  end: number;
  /** How much of that is in use. */
  used: number;
}

export function createFrozenRecords(): FrozenRecords {
  const segments = new Map<number, Segment>();
  /** Where the bytes of each handle are: the number of the segment times its size, and the offset in it. */
  const places: number[] = [];
  const freeHandles: number[] = [];
  const keySets: (readonly string[])[] = [];
  let lastKeySet = -1;
  const keySetNumbers = new Map<string, number>();
  /** Written again rather than left to the garbage collector, which comes late for what it does not hold itself. */
  const spare: Buffer[] = [];
  let newest = -1;
  let newestSegment: Segment | undefined;

  function place(handle: number): { number: number; segment: Segment; at: number } {
    const at = places[handle] ?? NOWHERE;
    const number = Math.floor(at / SEGMENT_BYTES);
    const segment = segments.get(number);
    if (segment === undefined) throw new Error("a handle that there is not");
    return { number, segment, at: at % SEGMENT_BYTES };
  }

  /** The segment to write so many bytes at the end of. */
  function room(bytes: number): Segment {
    if (newestSegment !== undefined && newestSegment.end + bytes <= SEGMENT_BYTES) return newestSegment;
    const full = newest;
    const segment = { bytes: spare.pop() ?? Buffer.allocUnsafeSlow(SEGMENT_BYTES), end: 0, used: 0 };
    newest += 1;
    newestSegment = segment;
    segments.set(newest, segment);
    compact(full);
    return newestSegment;
  }

  /** Moves what is still in use out of a segment of which too little is. */
  function compact(number: number): void {
    const segment = segments.get(number);
    if (segment === undefined || number === newest || segment.used > segment.end * LEAST_USE) return;
    segments.delete(number);
    const { bytes, end } = segment;
    for (let at = 0; at < end; ) {
      const size = HEAD_BYTES + bytes.readUInt32LE(at);
      const handle = bytes.readUInt32LE(at + 4);
      if (handle !== REMOVED) {
        const to = room(size);
        bytes.copy(to.bytes, to.end, at, at + size);
        places[handle] = newest * SEGMENT_BYTES + to.end;
        to.end += size;
        to.used += size;
      }
      at += size;
    }
    if (spare.length < SPARE_SEGMENTS) spare.push(bytes);
  }

  function keySetOf(keys: readonly string[]): number {
    // Records come in runs of the same kind, and to join so many keys costs more than all else here.
    const last = keySets[lastKeySet];
    if (last?.length === keys.length && last.every((key, index) => key === keys[index])) return lastKeySet;
    const joined = keys.join("\0");
    const known = keySetNumbers.get(joined) ?? newKeySet(joined, keys);
    if (known !== NO_KEY_SET) lastKeySet = known;
    return known;
  }

  function newKeySet(joined: string, keys: readonly string[]): number {
    // Set by its name, this key would not become a member.
    if (keySets.length >= KEY_SETS_MAX || keys.includes("__proto__")) return NO_KEY_SET;
    keySetNumbers.set(joined, keySets.length);
    return keySets.push(keys) - 1;
  }

  return {
    add(record) {
      const values: unknown[] = Object.values(record);
      // What is undefined is left out, as in JSON; hardly any record has that.
      const keySet = values.includes(undefined) ? NO_KEY_SET : keySetOf(Object.keys(record));
      const text = JSON.stringify(keySet === NO_KEY_SET ? record : values);
      if (text.length > FROZEN_MAX_CHARS) return undefined;
      const segment = room(HEAD_BYTES + text.length * 3);
      const at = segment.end;
      const length = segment.bytes.write(text, at + HEAD_BYTES, "utf8");
      const handle = freeHandles.pop() ?? places.length;
      places[handle] = newest * SEGMENT_BYTES + at;
      segment.bytes.writeUInt32LE(length, at);
      segment.bytes.writeUInt32LE(handle, at + 4);
      segment.bytes.writeUInt32LE(keySet, at + 8);
      segment.end += HEAD_BYTES + length;
      segment.used += HEAD_BYTES + length;
      return handle;
    },
    read(handle) {
      const { segment, at } = place(handle);
      const from = at + HEAD_BYTES;
      const text = segment.bytes.toString("utf8", from, from + segment.bytes.readUInt32LE(at));
      const keys = keySets[segment.bytes.readUInt32LE(at + 8)];
      if (keys === undefined) return JSON.parse(text) as ContinuationRecord;
      const values = JSON.parse(text) as unknown[];
      const record: Record<string, unknown> = {};
      for (const [index, key] of keys.entries()) record[key] = values[index];
      return record as ContinuationRecord;
    },
    remove(handle) {
      const { number, segment, at } = place(handle);
      segment.bytes.writeUInt32LE(REMOVED, at + 4);
      segment.used -= HEAD_BYTES + segment.bytes.readUInt32LE(at);
      places[handle] = NOWHERE;
      freeHandles.push(handle);
      compact(number);
    },
    get reserved() {
      return (segments.size + spare.length) * SEGMENT_BYTES;
    },
  };
}
