import { MINUTE_MS, SECOND_MS } from "../core/limits.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";

/** Owns: when a server that failed may be started again, by the name of the server and whoever started it. */

/** Between starts of a server that fails: doubling from the base to the cap; ours. */
export const RESTART_BASE_MS = SECOND_MS;
export const RESTART_CAP_MS = 5 * MINUTE_MS;
/** Whoever stayed up for so long starts again as if it had never failed. */
export const STABLE_AFTER_MS = MINUTE_MS;

export interface RestartDelays {
  /** For how many milliseconds the server must not be started yet; 0 or less: it may. */
  waitMs(server: string): number;
  /**
   * The server failed, having been ready since `readySince`, or never. An attempt that several may make at once says
   * when it began: what is known of the server since then counts instead of it.
   */
  failed(server: string, readySince: number | undefined, startedAt?: number): void;
  /** A client that had been ready was lost. What several runs lost at once counts as one failure. */
  lost(server: string, readySince: number): void;
  /** The server was reached, which an attempt that is still under way then does not refute. */
  reached(server: string): void;
  /** A client works to its end: earlier failures are forgotten, not those since it was ready. */
  works(server: string, readySince: number): void;
  /** Forgets what is known of all servers. */
  forget(): void;
}

/** What was noted last of a server, at `notedAt`; a count of 0: it works. */
interface Noted {
  readonly count: number;
  readonly notBefore: number;
  readonly notedAt: number;
  /** When it failed last; absent: never. */
  readonly failedAt?: number | undefined;
}

export function createRestartDelays(clock: Clock, logger: Logger): RestartDelays {
  const noted = new Map<string, Noted>();
  const failedSince = (server: string, time: number) => (noted.get(server)?.failedAt ?? time) > time;

  const restartDelays: RestartDelays = {
    waitMs: (server) => (noted.get(server)?.notBefore ?? 0) - clock.now(),
    failed(server, readySince, startedAt) {
      const now = clock.now();
      const last = noted.get(server);
      if (startedAt !== undefined && last !== undefined && last.notedAt > startedAt) return;
      const stable = readySince !== undefined && now - readySince >= STABLE_AFTER_MS;
      const count = (stable ? 0 : (last?.count ?? 0)) + 1;
      // The first time at once: a server may have had its reasons.
      const delay = count === 1 ? 0 : Math.min(RESTART_BASE_MS * 2 ** (count - 2), RESTART_CAP_MS);
      noted.set(server, { count, notBefore: now + delay, notedAt: now, failedAt: now });
      logger.warn("an mcp server failed", { server, failures: count, restartAfterMs: delay });
    },
    lost(server, readySince) {
      if (!failedSince(server, readySince)) restartDelays.failed(server, readySince);
    },
    reached(server) {
      const last = noted.get(server) ?? { count: 0, notBefore: 0 };
      noted.set(server, { ...last, notedAt: clock.now() });
    },
    works(server, readySince) {
      if (failedSince(server, readySince)) return;
      noted.set(server, { count: 0, notBefore: 0, notedAt: clock.now() });
    },
    forget() {
      noted.clear();
    },
  };
  return restartDelays;
}
