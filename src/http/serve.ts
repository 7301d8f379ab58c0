import { hostAndPort } from "../core/address.ts";
import { AppError, errorText } from "../core/errors.ts";
import { SECOND_MS, STOP_TIMEOUT_MS } from "../core/limits.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";
import { createFaultLog, thrownResponse } from "./errors.ts";
import type { Bound } from "./loopback.ts";

/** Closes a connection on which nothing moved for so long. Event streams send a heartbeat more often than that. */
const IDLE_TIMEOUT_MS = 60 * SECOND_MS;
/** A taken port is tried for a second in all; ours. */
const LISTEN_ATTEMPTS = 11;
const LISTEN_RETRY_MS = SECOND_MS / 10;

/** Lifts the idle time-out from a request whose answer may take minutes. Called once its sender is known. */
export type Unhurried = (request: Request) => void;

export interface ServeDeps {
  /** Builds the app once the real port is known. */
  readonly app: (
    bound: Bound,
    unhurried: Unhurried,
  ) => { fetch(request: Request): Response | Promise<Response> };
  readonly host: string;
  /** 0 takes any free port. */
  readonly port: number;
  readonly clock: Clock;
  readonly logger: Logger;
}

export interface HttpServer extends Bound {
  /**
   * Takes no new connection, waits for open requests up to `STOP_TIMEOUT_MS`, then closes what is left. Whoever owns
   * an event stream ends it first. Idempotent.
   */
  stop(): Promise<void>;
}

/** Listens on a loopback address. Rejects with `listen_failed`, naming the address and the way out. */
export async function serveHttp(deps: ServeDeps): Promise<HttpServer> {
  const { host, port, clock, logger } = deps;
  const log = createFaultLog(logger, clock);
  let handle: ReturnType<ServeDeps["app"]>["fetch"] | undefined;
  const listen = () =>
    Bun.serve({
      // By name, a taken 127.0.0.1 would silently become ::1.
      hostname: host === "localhost" ? "127.0.0.1" : host,
      port,
      // Without this a non-development server shares its port with whoever else asks for it.
      reusePort: false,
      idleTimeout: IDLE_TIMEOUT_MS / SECOND_MS,
      // Each route has its own, much smaller limit; Bun's would answer before the credential is looked at.
      maxRequestBodySize: Number.MAX_SAFE_INTEGER,
      development: false,
      fetch: (request) => {
        if (handle === undefined) return new Response(null, { status: 503, headers: { "retry-after": "1" } });
        return handle(request);
      },
      error: (error) => thrownResponse(error, log),
    });
  const server = await patiently(listen, clock).catch((error: unknown) => {
    throw listenError(host, port, error);
  });
  const bound: Bound = { host, port: server.port ?? port };
  handle = deps.app(bound, (request) => server.timeout(request, 0)).fetch;

  let stopped: Promise<void> | undefined;
  const stop = async () => {
    const closed = server.stop(false);
    const { promise: late, resolve } = Promise.withResolvers<"late">();
    const stopTimer = clock.timer(STOP_TIMEOUT_MS, () => resolve("late"));
    if ((await Promise.race([closed, late])) === "late") {
      logger.warn("requests still open at stop were closed", { port: bound.port });
      await server.stop(true);
    }
    stopTimer();
  };
  return {
    ...bound,
    stop: () => {
      stopped ??= stop();
      return stopped;
    },
  };
}

/**
 * A port may be taken for a moment after its owner was killed: a child that the owner was just starting holds a copy of
 * the socket until it becomes its own program.
 */
async function patiently(listen: () => Bun.Server<undefined>, clock: Clock): Promise<Bun.Server<undefined>> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return listen();
    } catch (error) {
      if (codeOf(error) !== "EADDRINUSE" || attempt >= LISTEN_ATTEMPTS) throw error;
    }
    const later = Promise.withResolvers<void>();
    // The clock's timers keep no process alive, and at the start there may be nothing else that does.
    const awake = new MessageChannel();
    awake.port1.onmessage = () => {};
    clock.timer(LISTEN_RETRY_MS, later.resolve);
    await later.promise;
    awake.port1.close();
  }
}

function codeOf(error: unknown): string {
  return error instanceof Error && "code" in error ? String(error.code) : "";
}

function listenError(host: string, port: number, cause: unknown): AppError {
  const address = hostAndPort({ host, port });
  const code = codeOf(cause);
  const message =
    code === "EADDRINUSE"
      ? `cannot listen on ${address}: the port is in use. Stop the program that uses it (perhaps another mono-agent), or set another port in the configuration.`
      : `cannot listen on ${address}: ${code || errorText(cause)}. Set a loopback host and a free port in the configuration.`;
  return new AppError("listen_failed", message, { cause });
}
