import { KIB } from "../core/limits.ts";

/**
 * Owns: the shared memory in which a thread lays down the files that it read, and how the files are shared out between it
 * and the caller, who reads too: in blocks, each for whoever claims it first.
 * Does not own: reading (read-ahead.ts).
 *
 * I1. Each block is claimed once. The thread's are published in the order in which it claims them.
 * I2. A slot is written only after the caller released what it held before.
 */

/** Files of one block. While the caller reads one, what the thread has read waits; so it is small. */
const BLOCK_FILES = 32;
const SLOTS = 16;
/** To wake a thread costs as much as to read several files: one that found no free slot is woken when so many are. */
const WAKE_AT_FREE = SLOTS / 2;
/** Room for a block of files of 2 KiB each twice over; the caller reads what does not fit. */
const SLOT_BYTES = 128 * KIB;

// Words of the control part; then, for each slot, the block in it and the length of each file.
const NEXT_BLOCK = 0;
const PUBLISHED = 1;
const RELEASED = 2;
const SLOTS_AT = 3;
const SLOT_WORDS = 1 + BLOCK_FILES;
const DATA_AT = 4 * KIB;

/** The length of a file that the thread leaves to the caller. */
const LEFT = -1;

/** A block of files by their indexes. */
export interface Block {
  readonly number: number;
  readonly from: number;
  readonly to: number;
}

export interface ReadBlock {
  readonly block: Block;
  /** The bytes of a file by its index; undefined when the thread left it. */
  data(index: number): Uint8Array | undefined;
}

export interface ReadRing {
  readonly memory: SharedArrayBuffer;
  readonly blocks: readonly Block[];
  /** The next block that nobody has, or undefined. */
  claim(): Block | undefined;
  /** The caller: the oldest block of the thread that was not released, or undefined when there is none now. */
  published(): ReadBlock | undefined;
  /** The caller: done with it. */
  release(): void;
  /** The caller: waits until the thread publishes a block. False when it did not within `timeoutMs`. */
  waitForBlock(timeoutMs: number): boolean;
  /** The caller: nobody claims any more, and the thread never waits for a slot. */
  stop(): void;
  /**
   * The thread: waits for a free slot and fills it; false when there was none within `timeoutMs`. `read` puts a file at
   * the start of the bytes and gives its length, or undefined to leave it to the caller.
   */
  publish(
    block: Block,
    timeoutMs: number,
    read: (index: number, into: Uint8Array) => number | undefined,
  ): boolean;
}

/** The ring of so many files; the same in the thread, from the memory that the caller made. */
export function createReadRing(
  files: number,
  memory = new SharedArrayBuffer(DATA_AT + SLOTS * SLOT_BYTES),
): ReadRing {
  const words = new Int32Array(memory, 0, DATA_AT / Int32Array.BYTES_PER_ELEMENT);
  const blocks: Block[] = [];
  for (let from = 0; from < files; from += BLOCK_FILES) {
    blocks.push({ number: blocks.length, from, to: Math.min(files, from + BLOCK_FILES) });
  }
  const slotWords = (block: number) => SLOTS_AT + (block % SLOTS) * SLOT_WORDS;
  const slotBytes = (block: number) =>
    new Uint8Array(memory, DATA_AT + (block % SLOTS) * SLOT_BYTES, SLOT_BYTES);

  return {
    memory,
    blocks,
    claim: () => blocks[Atomics.add(words, NEXT_BLOCK, 1)],
    published() {
      const released = Atomics.load(words, RELEASED);
      if (Atomics.load(words, PUBLISHED) === released) return undefined;
      const at = slotWords(released);
      const block = blocks[words[at] ?? 0];
      if (block === undefined) throw new Error("a block that there is not");
      const bytes = slotBytes(released);
      const ends: number[] = [];
      let end = 0;
      for (let index = 0; index < block.to - block.from; index += 1) {
        end += Math.max(0, words[at + 1 + index] ?? LEFT);
        ends.push(end);
      }
      return {
        block,
        data(index) {
          const length = words[at + 1 + index - block.from] ?? LEFT;
          const to = ends[index - block.from] ?? 0;
          return length === LEFT ? undefined : bytes.subarray(to - length, to);
        },
      };
    },
    release() {
      const released = Atomics.add(words, RELEASED, 1) + 1;
      const free = SLOTS - (Atomics.load(words, PUBLISHED) - released);
      if (free === WAKE_AT_FREE || free === SLOTS) Atomics.notify(words, RELEASED);
    },
    waitForBlock(timeoutMs) {
      const seen = Atomics.load(words, RELEASED);
      return Atomics.wait(words, PUBLISHED, seen, timeoutMs) !== "timed-out";
    },
    stop() {
      Atomics.store(words, NEXT_BLOCK, blocks.length);
      Atomics.add(words, RELEASED, SLOTS);
      Atomics.notify(words, RELEASED);
    },
    publish(block, timeoutMs, read) {
      const published = Atomics.load(words, PUBLISHED);
      for (;;) {
        const released = Atomics.load(words, RELEASED);
        if (published - released < SLOTS) break;
        if (Atomics.wait(words, RELEASED, released, timeoutMs) === "timed-out") return false;
      }
      const at = slotWords(published);
      const bytes = slotBytes(published);
      words[at] = block.number;
      let end = 0;
      for (let index = block.from; index < block.to; index += 1) {
        const length = read(index, bytes.subarray(end));
        words[at + 1 + index - block.from] = length ?? LEFT;
        end += length ?? 0;
      }
      Atomics.store(words, PUBLISHED, published + 1);
      Atomics.notify(words, PUBLISHED);
      return true;
    },
  };
}
