import { sha256Hex } from "../../core/digest.ts";
import type { Clock, Ids, Logger } from "../../core/ports/platform.ts";

/** Randomness, time and ids of the explorer: all of them follow from a seed, so that a history can be repeated. */

export const STATE_DIR = "/state";

export interface Random {
  /** A whole number from 0 to below `bound`. */
  below(bound: number): number;
  /** True with the given probability. */
  chance(probability: number): boolean;
  pick<T>(list: readonly [T, ...T[]]): T;
}

/** splitmix32: small, fast and good enough to choose test cases. */
export function createRandom(seed: number): Random {
  let state = seed >>> 0;
  const next = () => {
    state = (state + 0x9e3779b9) >>> 0;
    let mixed = state ^ (state >>> 16);
    mixed = Math.imul(mixed, 0x21f0aaad);
    mixed ^= mixed >>> 15;
    mixed = Math.imul(mixed, 0x735a2d97);
    return (mixed ^ (mixed >>> 15)) >>> 0;
  };
  const below = (bound: number) => Math.floor((next() / 2 ** 32) * bound);
  return {
    below,
    chance: (probability) => next() / 2 ** 32 < probability,
    pick: (list) => list[below(list.length)] ?? list[0],
  };
}

export interface SimulatedClock extends Clock {
  /** Moves time on; timers that become due fire on the way. */
  advance(ms: number): void;
}

export function createSimulatedClock(startMs: number): SimulatedClock {
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
  };
}

/** Ids that count up; the same seed gives the same ids in the same order. */
export function createSimulatedIds(seed: string): Ids {
  let count = 0;
  const next = () => {
    count += 1;
    return count;
  };
  return {
    uuid: () => `00000000-0000-4000-8000-${next().toString(16).padStart(12, "0")}`,
    token: (bytes) =>
      Buffer.from(sha256Hex(`${seed}/${next()}`), "hex")
        .subarray(0, bytes)
        .toString("base64url"),
    runId: (nowMs) => `run-${nowMs.toString(36)}-${next().toString(36).padStart(6, "0")}`,
  };
}

export const silent: Logger = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} };
