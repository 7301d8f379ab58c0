import { heapSize } from "bun:jsc";

/** The heap of this thread. */
export const heap = {
  /** Bytes that its values take up, those included that nobody needs any more. */
  size: (): number => heapSize(),
  /** Asks for a collection, which goes on beside the program; returns at once. */
  collect: (): void => Bun.gc(false),
};
