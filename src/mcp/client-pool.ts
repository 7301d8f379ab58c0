import { McpError } from "../core/errors.ts";
import { MINUTE_MS, SECOND_MS } from "../core/limits.ts";
import type { McpServerSpec } from "../core/mcp-servers.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";
import type { Connection } from "./connection.ts";
import type { Listing } from "./listing.ts";
import { createRestartDelays } from "./restart-delays.ts";
import { unlessAborted } from "./unless-aborted.ts";

/**
 * Owns: which clients live, and for how long: those that all runs share, and those of one run.
 *
 * I1. A shared client is closed only when nobody has it on loan: it idled, it was lost, or a rotation retired it.
 * I2. At most `maxClients` clients live, besides those that are ending (bounded in time); a client that nobody uses
 *     gives way, else the new one is refused.
 * I3. A server that fails is started again, at first at once, then after a growing delay. One that does not list its
 *     tools has failed, whether it is connected or not, and so has one that is lost, however well it started.
 * I4. After `close` no client lives.
 */

/** Clients of all servers and runs together; ours. */
export const MAX_CLIENTS = 128;
/** A shared client that nobody borrowed for so long is closed; ours. */
export const IDLE_CLOSE_MS = 10 * MINUTE_MS;

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
  /** The first list is there, or why it is not. */
  settled: boolean;
  /** Since when it has been connected and listed; undefined before. */
  readySince: number | undefined;
  loans: number;
  retired: boolean;
  cancelIdle: () => void;
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
  const delays = createRestartDelays(clock, logger);
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

  /** Takes a client out of use that nobody has on loan. One that works to its end leaves no failures behind. */
  const dismiss = (server: string, entry: Shared) => {
    const { readySince, connection } = entry;
    if (readySince !== undefined && connection.isOpen()) delays.works(server, readySince);
    retire(server, entry);
  };

  /** Whether there is room for one more client; makes it by closing one that nobody uses. */
  const room = (): boolean => {
    if (live.size < maxClients) return true;
    const idle = [...shared].find(([, entry]) => entry.loans === 0);
    if (idle === undefined) return false;
    dismiss(...idle);
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

  /** Why no new client of the server may be started now, as an empty loan; undefined when it may. */
  const notNow = (server: string): Loan | undefined => {
    const wait = delays.waitMs(server);
    if (wait > 0)
      return nothing(server, `it failed; it is started again in ${Math.ceil(wait / SECOND_MS)} s`);
    if (stop.signal.aborted) return nothing(server, "the tool host is closed");
    if (!room()) return nothing(server, `${maxClients} clients are in use already`);
    return undefined;
  };

  const fail = (server: string, entry: Shared) => {
    if (entry.retired) return;
    delays.failed(server, entry.readySince);
    retire(server, entry);
  };

  const start = (server: string, spec: McpServerSpec): Shared => {
    const connection = create(server, spec);
    live.add(connection);
    const entry: Shared = {
      connection,
      ready: connection.connect(stop.signal).then((listing) => {
        entry.settled = true;
        if (!listing.failed) entry.readySince = clock.now();
        return listing;
      }),
      settled: false,
      readySince: undefined,
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
      dismiss(server, entry);
    });
  };

  return {
    async borrow(server, spec, signal) {
      let entry = shared.get(server);
      if (entry?.settled === true && !entry.connection.isOpen()) {
        fail(server, entry);
        entry = undefined;
      }
      if (entry === undefined) {
        const refused = notNow(server);
        if (refused !== undefined) return refused;
        entry = start(server, spec);
      }
      entry.loans += 1;
      entry.cancelIdle();
      try {
        // A list that failed while nobody waited for it may have failed long ago: then `list` asks again.
        const isStale = entry.settled;
        let listing = await unlessAborted(entry.ready, signal, openingAborted);
        const isOpen = entry.connection.isOpen();
        if (isOpen && (isStale || !listing.failed))
          listing = await unlessAborted(entry.connection.list(), signal, openingAborted);
        if (isOpen && !listing.failed) {
          entry.readySince ??= clock.now();
          return lend(server, entry, listing);
        }
        fail(server, entry);
        giveBack(server, entry);
        return { ...nothing(server, ""), listing };
      } catch (error) {
        giveBack(server, entry);
        throw error;
      }
    },

    async open(connection, signal) {
      const { server } = connection;
      const refused = notNow(server);
      if (refused !== undefined) return refused;
      live.add(connection);
      let released: Promise<void> | undefined;
      const either = AbortSignal.any([signal, stop.signal]);
      const startedAt = clock.now();
      const listing = await connection.connect(either);
      const readySince = listing.failed ? undefined : clock.now();
      if (readySince !== undefined) delays.reached(server);
      // That the run ended is no failure of the server, and runs that met the same failure at once count as one.
      else if (!either.aborted) delays.failed(server, undefined, startedAt);
      return {
        listing,
        connection: connection.isOpen() ? connection : undefined,
        release() {
          if (released === undefined && readySince !== undefined && !stop.signal.aborted) {
            if (connection.isOpen()) delays.works(server, readySince);
            else delays.lost(server, readySince);
          }
          released ??= end(connection);
          return released;
        },
      };
    },

    rotate() {
      delays.forget();
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

const openingAborted = () => new McpError("mcp_failed", "opening the tools was aborted");
