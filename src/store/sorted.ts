/**
 * A sorted list in chunks: finding, adding and removing cost O(log n) comparisons and a move inside one chunk, so
 * that an index over 50,000 records costs the same as one over none. Equal items (comparison 0) are one item.
 */

const CHUNK = 512;

export interface Sorted<T> {
  readonly size: number;
  first(): T | undefined;
  last(): T | undefined;
  add(item: T): void;
  /** Removes the item that compares equal and gives it back; undefined when there was none. */
  remove(item: T): T | undefined;
  /** Items in order, from the first on or strictly after `after`. Do not change the list meanwhile. */
  from(after?: T): IterableIterator<T>;
}

/** `initial` may be in any order; in the right order it costs least. */
export function createSorted<T>(compare: (a: T, b: T) => number, initial: readonly T[] = []): Sorted<T> {
  const sorted = isSorted(compare, initial) ? initial : [...initial].sort(compare);
  const chunks: T[][] = [];
  for (let at = 0; at < sorted.length; at += CHUNK) chunks.push(sorted.slice(at, at + CHUNK));
  let size = sorted.length;

  /** The first chunk whose last item is not before `item`; the last chunk when there is none. */
  function chunkIndex(item: T): number {
    let low = 0;
    let high = chunks.length - 1;
    // Most that is added is the newest, and so belongs at one of the ends.
    const first = chunks[0]?.at(-1);
    if (first !== undefined && compare(item, first) <= 0) return 0;
    while (low < high) {
      const middle = (low + high) >> 1;
      const last = chunks[middle]?.at(-1);
      if (last !== undefined && compare(last, item) < 0) low = middle + 1;
      else high = middle;
    }
    return Math.max(0, low);
  }

  /** The first position in the chunk whose item is not before `item`. */
  function position(chunk: readonly T[], item: T): number {
    let low = 0;
    let high = chunk.length;
    if (high === 0 || compare(item, chunk[0] as T) <= 0) return 0;
    if (compare(chunk[high - 1] as T, item) < 0) return high;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (compare(chunk[middle] as T, item) < 0) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  function locate(item: T): { chunk: T[]; index: number; at: number } | undefined {
    const index = chunkIndex(item);
    const chunk = chunks[index];
    if (chunk === undefined) return undefined;
    const at = position(chunk, item);
    return at < chunk.length && compare(chunk[at] as T, item) === 0 ? { chunk, index, at } : undefined;
  }

  function add(item: T): void {
    const index = chunkIndex(item);
    const chunk = chunks[index];
    if (chunk === undefined) {
      chunks.push([item]);
      size = 1;
      return;
    }
    const at = position(chunk, item);
    if (at < chunk.length && compare(chunk[at] as T, item) === 0) {
      chunk[at] = item;
      return;
    }
    chunk.splice(at, 0, item);
    size += 1;
    if (chunk.length > 2 * CHUNK) chunks.splice(index + 1, 0, chunk.splice(CHUNK));
  }

  function remove(item: T): T | undefined {
    const found = locate(item);
    if (found === undefined) return undefined;
    const [removed] = found.chunk.splice(found.at, 1);
    if (found.chunk.length === 0) chunks.splice(found.index, 1);
    size -= 1;
    return removed;
  }

  return {
    get size() {
      return size;
    },
    first: () => chunks[0]?.[0],
    last: () => chunks.at(-1)?.at(-1),
    add,
    remove,
    *from(after) {
      let index = 0;
      let at = 0;
      if (after !== undefined) {
        index = chunkIndex(after);
        const chunk = chunks[index];
        if (chunk === undefined) return;
        at = position(chunk, after);
        if (at < chunk.length && compare(chunk[at] as T, after) === 0) at += 1;
      }
      for (; index < chunks.length; index += 1, at = 0) {
        const chunk = chunks[index];
        if (chunk === undefined) return;
        for (; at < chunk.length; at += 1) yield chunk[at] as T;
      }
    },
  };
}

function isSorted<T>(compare: (a: T, b: T) => number, items: readonly T[]): boolean {
  return items.every((item, index) => index === 0 || compare(items[index - 1] as T, item) < 0);
}

export function compareText(a: string, b: string): number {
  // Equality is by far the cheapest of the comparisons, and dates and ids are often equal.
  return a === b ? 0 : a < b ? -1 : 1;
}
