import { McpError } from "../core/errors.ts";
import { MINUTE_MS, SECOND_MS } from "../core/limits.ts";
import type { McpServerSpec } from "../core/mcp-servers.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";
import type { Connection } from "./connection.ts";
import type { Listing } from "./listing.ts";
import { unlessAborted } from "./unless-aborted.ts";

/**
 * Owns: which clients live, and for how long: those that all runs share, and those of one run.
 *
 * I1. A shared client is closed only when nobody has it on loan: it idled, it was lost, or a rotation retired it.
 * I2. At most `maxClients` clients live, besides those that are ending (bounded in time); a client that nobody uses
 *     gives way, else the new one is refused.
 * I3. A shared server that fails is started again, at first at once, then after a growing delay.
 * I4. After `close` no client lives.
 */

/** Clients of all servers and runs together; ours. */
export const MAX_CLIENTS = 128;
/** A shared client that nobody borrowed for so long is closed; ours. */
export const IDLE_CLOSE_MS = 10 * MINUTE_MS;
/** Between starts of a server that fails: doubling from the base to the cap; ours. */
export const RESTART_BASE_MS = SECOND_MS;
export const RESTART_CAP_MS = 5 * MINUTE_MS;
/** Whoever stayed up for so long starts again as if it had never failed. */
export const STABLE_AFTER_MS = MINUTE_MS;

export interface PoolOptions {
  /** Makes the shared client of a server; nothing starts before its `connect`. */
  readonly create: (server: string, spec: McpServerSpec) => Connection;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly maxClients?: number;
}

/** A client on loan with the list as it was then. Without a connection the warnings of the list say why. */
export interface Loan {
  readonly listing: Listing;
  readonly connection: Connection | undefined;
  /** Gives it back. Idempotent. The client of one run is closed by it. */
  release(): Promise<void>;
}

export interface ClientPool {
  /** The shared client of a server, started when there is none. Rejects only when the signal fires. */
  borrow(server: string, spec: McpServerSpec, signal: AbortSignal): Promise<Loan>;
  /** A client for one run alone. */
  open(connection: Connection, signal: AbortSignal): Promise<Loan>;
  /** Retires every shared client: each is closed after its last loan, and the next run gets a new one. */
  rotate(): void;
  close(): Promise<void>;
}

interface Shared {
  readonly connection: Connection;
  readonly ready: Promise<Listing>;
  readonly startedAt: number;
  loans: number;
  retired: boolean;
  cancelIdle: () => void;
}

interface Failures {
  count: number;
  notBefore: number;
}

export function createClientPool({
  create,
  clock,
  logger,
  maxClients = MAX_CLIENTS,
}: PoolOptions): ClientPool {
  const shared = new Map<string, Shared>();
  const live = new Set<Connection>();
  const ending = new Set<Promise<void>>();
  const failures = new Map<string, Failures>();
  const stop = new AbortController();

  const end = (connection: Connection): Promise<void> => {
    live.delete(connection);
    const ended = connection.close().finally(() => ending.delete(ended));
    ending.add(ended);
    return ended;
  };

  /** Takes a client out of use; it ends now, or with its last loan. */
  const retire = (server: string, entry: Shared) => {
    entry.retired = true;
    entry.cancelIdle();
    if (shared.get(server) === entry) shared.delete(server);
    if (entry.loans === 0) void end(entry.connection);
  };

  /** Whether there is room for one more client; makes it by closing one that nobody uses. */
  const room = (): boolean => {
    if (live.size < maxClients) return true;
    const idle = [...shared].find(([, entry]) => entry.loans === 0);
    if (idle === undefined) return false;
    retire(...idle);
    return true;
  };

  const nothing = (server: string, message: string): Loan => ({
    listing: {
      tools: [],
      warnings: [{ server, code: "mcp_init_failed", message: `${server}: ${message}` }],
      failed: true,
    },
    connection: undefined,
    release: async () => {},
  });

  const noteFailure = (server: string, entry: Shared) => {
    const before = clock.now() - entry.startedAt >= STABLE_AFTER_MS ? undefined : failures.get(server);
    const count = (before?.count ?? 0) + 1;
    // The first time at once: a server may have had its reasons.
    const delay = count === 1 ? 0 : Math.min(RESTART_BASE_MS * 2 ** (count - 2), RESTART_CAP_MS);
    failures.set(server, { count, notBefore: clock.now() + delay });
    logger.warn("an mcp server failed", { server, failures: count, restartAfterMs: delay });
  };

  const start = (server: string, spec: McpServerSpec): Shared => {
    const connection = create(server, spec);
    live.add(connection);
    const entry: Shared = {
      connection,
      ready: connection.connect(stop.signal),
      startedAt: clock.now(),
      loans: 0,
      retired: false,
      cancelIdle: () => {},
    };
    shared.set(server, entry);
    return entry;
  };

  const lend = (server: string, entry: Shared, listing: Listing): Loan => {
    let released = false;
    return {
      listing,
      connection: entry.connection,
      async release() {
        if (released) return;
        released = true;
        giveBack(server, entry);
      },
    };
  };

  const giveBack = (server: string, entry: Shared) => {
    entry.loans -= 1;
    if (entry.loans > 0) return;
    if (entry.retired) {
      void end(entry.connection);
      return;
    }
    entry.cancelIdle = clock.timer(IDLE_CLOSE_MS, () => {
      logger.debug("an idle mcp client is closed", { server });
      retire(server, entry);
    });
  };

  return {
    async borrow(server, spec, signal) {
      let entry = shared.get(server);
      if (entry !== undefined && (await isLost(entry))) {
        // Whoever came first has seen to it.
        if (shared.get(server) === entry) {
          noteFailure(server, entry);
          retire(server, entry);
        }
        entry = shared.get(server);
      }
      if (entry === undefined) {
        const wait = (failures.get(server)?.notBefore ?? 0) - clock.now();
        if (wait > 0)
          return nothing(server, `it failed; it is started again in ${Math.ceil(wait / SECOND_MS)} s`);
        if (stop.signal.aborted) return nothing(server, "the tool host is closed");
        if (!room()) return nothing(server, `${maxClients} clients are in use already`);
        entry = start(server, spec);
      }
      entry.loans += 1;
      entry.cancelIdle();
      try {
        const first = await unlessAborted(entry.ready, signal, openingAborted);
        if (!entry.connection.isOpen()) {
          if (!entry.retired) {
            noteFailure(server, entry);
            retire(server, entry);
          }
          giveBack(server, entry);
          return { ...nothing(server, ""), listing: first };
        }
        const listing = await unlessAborted(entry.connection.list(), signal, openingAborted);
        return lend(server, entry, listing);
      } catch (error) {
        giveBack(server, entry);
        throw error;
      }
    },

    async open(connection, signal) {
      const { server } = connection;
      if (stop.signal.aborted) return nothing(server, "the tool host is closed");
      if (!room()) return nothing(server, `${maxClients} clients are in use already`);
      live.add(connection);
      let released: Promise<void> | undefined;
      const listing = await connection.connect(AbortSignal.any([signal, stop.signal]));
      return {
        listing,
        connection,
        release() {
          released ??= end(connection);
          return released;
        },
      };
    },

    rotate() {
      failures.clear();
      for (const [server, entry] of [...shared]) retire(server, entry);
    },

    async close() {
      stop.abort();
      for (const [server, entry] of [...shared]) {
        shared.delete(server);
        entry.retired = true;
        entry.cancelIdle();
      }
      for (const connection of [...live]) void end(connection);
      await Promise.all(ending);
    },
  };
}

/** Whether a client that was connected is not any more; one that still connects is not lost. */
async function isLost({ ready, connection }: Shared): Promise<boolean> {
  const pending = Symbol("pending");
  const state = await Promise.race([ready, Promise.resolve(pending)]);
  return state !== pending && !connection.isOpen();
}

const openingAborted = () => new McpError("mcp_failed", "opening the tools was aborted");
