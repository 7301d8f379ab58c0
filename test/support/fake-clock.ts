import type { Clock } from "../../src/core/ports/platform.ts";

export interface FakeClock extends Clock {
  /** Moves time on by `ms`; due timers fire on the way, in the order of their due times, each at its own time. */
  advance(ms: number): void;
  /** Number of timers that still wait. */
  pending(): number;
}

/** A clock that stands still until a test moves it. */
export function createFakeClock(startMs: number = Date.UTC(2026, 10, 30, 12)): FakeClock {
  let nowMs = startMs;
  let timers: { due: number; fire: () => void }[] = [];
  return {
    now: () => nowMs,
    timer(delayMs, fire) {
      const timer = { due: nowMs + Math.max(0, delayMs), fire };
      timers.push(timer);
      return () => {
        timers = timers.filter((other) => other !== timer);
      };
    },
    advance(ms) {
      const target = nowMs + ms;
      for (;;) {
        const due = timers.filter((timer) => timer.due <= target).sort((a, b) => a.due - b.due)[0];
        if (due === undefined) break;
        timers = timers.filter((other) => other !== due);
        nowMs = Math.max(nowMs, due.due);
        due.fire();
      }
      nowMs = target;
    },
    pending: () => timers.length,
  };
}
