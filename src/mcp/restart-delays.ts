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
  /** The server failed, having been ready since `readySince`, or never. */
  failed(server: string, readySince: number | undefined): void;
  /** Forgets the failures of a server, or of all. */
  forget(server?: string): void;
}

export function createRestartDelays(clock: Clock, logger: Logger): RestartDelays {
  const failures = new Map<string, { readonly count: number; readonly notBefore: number }>();
  return {
    waitMs: (server) => (failures.get(server)?.notBefore ?? 0) - clock.now(),
    failed(server, readySince) {
      const stable = readySince !== undefined && clock.now() - readySince >= STABLE_AFTER_MS;
      const count = (stable ? 0 : (failures.get(server)?.count ?? 0)) + 1;
      // The first time at once: a server may have had its reasons.
      const delay = count === 1 ? 0 : Math.min(RESTART_BASE_MS * 2 ** (count - 2), RESTART_CAP_MS);
      failures.set(server, { count, notBefore: clock.now() + delay });
      logger.warn("an mcp server failed", { server, failures: count, restartAfterMs: delay });
    },
    forget(server) {
      if (server === undefined) failures.clear();
      else failures.delete(server);
    },
  };
}
