import type { Clock } from "../core/ports/platform.ts";

/** The longest delay that the runtime's timer can hold; a longer one would fire at once. */
const LONGEST_TIMER_MS = 2_147_483_647;

/** The real clock. A delay longer than the runtime can hold (24.8 days) is waited for in pieces. */
export function createClock(): Clock {
  return {
    now: () => Date.now(),
    timer(delayMs, fire) {
      let remaining = Math.max(0, delayMs);
      let handle: ReturnType<typeof setTimeout>;
      const arm = () => {
        const piece = Math.min(remaining, LONGEST_TIMER_MS);
        remaining -= piece;
        handle = setTimeout(() => (remaining > 0 ? arm() : fire()), piece);
        handle.unref();
      };
      arm();
      return () => clearTimeout(handle);
    },
  };
}
