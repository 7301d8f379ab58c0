import { errorText, StoreError } from "../../core/errors.ts";
import { FileFault } from "../../core/ports/platform.ts";
import type { ContinuationStore } from "../../core/ports/store.ts";

/** What a disk answers whose power is cut, or whose process is killed. */
export const CUT_ERRNO = "EPOWER";

/**
 * The failures that the explorer itself has inflicted on a store, by their errno: faults that it injected, and the cut
 * of its disk. A store that fails without one of them has poisoned itself, and that is as bad as a lost promise.
 */
export interface Inflicted {
  add(errno: string): void;
  readonly nothing: boolean;
  /** What is wrong when the store rejects with `error`; undefined when that comes from what was inflicted. */
  rejection(error: unknown, store?: Pick<ContinuationStore, "fault">): string | undefined;
  /** What is wrong when the store no longer writes; undefined when it does, or cannot for what was inflicted. */
  poison(store: Pick<ContinuationStore, "fault">): string | undefined;
}

export function createInflicted(): Inflicted {
  const errnos = new Set<string>();
  return {
    add: (errno) => void errnos.add(errno),
    get nothing() {
      return errnos.size === 0;
    },
    rejection(error, store) {
      const code = error instanceof StoreError ? error.code : undefined;
      const failed = code === "store_write_failed" && errnos.has(errnoOf(error));
      // A later refusal names no cause of its own; that of the poison is asked for by `poison`.
      const poisoned = code === "store_poisoned" && store?.fault() !== undefined;
      return failed || poisoned ? undefined : `unexpected ${errorText(error)}`;
    },
    poison(store) {
      const fault = store.fault();
      if (fault === undefined || errnos.has(fault.code)) return undefined;
      return `the store is poisoned by ${fault.code}, and its disk was not made to fail so`;
    },
  };
}

/** The errno at the root of an error, empty for none. */
function errnoOf(error: unknown): string {
  if (error instanceof FileFault) return error.errno;
  return error instanceof Error ? errnoOf(error.cause) : "";
}
