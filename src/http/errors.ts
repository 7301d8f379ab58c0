import { AppError, ERROR_TABLE, errorText, type Refusal, type Result } from "../core/errors.ts";
import { MINUTE_MS, SECOND_MS } from "../core/limits.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";
import type { ErrorBody } from "../core/wire.ts";

/** How a refusal or an error becomes an HTTP answer: `{error: {code, message}}` with the status of `ERROR_TABLE`. */

/** The answer to a refusal. 429 and 503 carry `retry-after` in whole seconds, at least 1. */
export function refusalResponse(refusal: Refusal): Response {
  const status = ERROR_TABLE[refusal.code].status;
  const body: ErrorBody = { error: { code: refusal.code, message: refusal.message } };
  const headers = new Headers();
  if (status === 429 || status === 503) {
    headers.set("retry-after", String(Math.max(1, Math.ceil((refusal.retryAfterMs ?? 0) / 1000))));
  }
  if (status === 401) headers.set("www-authenticate", "Bearer");
  return Response.json(body, { status, headers });
}

/** The value as JSON with the given status (200 unless told), or the refusal. */
export function resultResponse<T>(result: Result<T>, status = 200): Response {
  return result.ok ? Response.json(result.value, { status }) : refusalResponse(result.refusal);
}

/** How long a restart of the host may take. */
const RESTART_RETRY_AFTER_MS = 5 * SECOND_MS;

/** What every request throws until the host is restarted; its lines could fill the disk that is full already. */
const UNTIL_RESTART: readonly string[] = ["store_poisoned", "store_write_failed"];

/** Writes down what a request threw: what ends only with a restart once a minute, with how many were left out. */
export type FaultLog = (error: unknown) => void;

export function createFaultLog(logger: Logger, clock: Clock): FaultLog {
  const told = new Map<string, { atMs: number; notLogged: number }>();
  return (error) => {
    const code = error instanceof AppError ? error.code : undefined;
    const fields = { code, error: errorText(error) };
    if (code === undefined || !UNTIL_RESTART.includes(code)) {
      logger.error("request failed", fields);
      return;
    }
    const last = told.get(code);
    const sinceMs = last === undefined ? -1 : clock.now() - last.atMs;
    // The wall time may be set back: rather a line too many than none for hours.
    if (last !== undefined && sinceMs >= 0 && sinceMs < MINUTE_MS) {
      last.notLogged += 1;
      return;
    }
    const notLogged = last?.notLogged ?? 0;
    told.set(code, { atMs: clock.now(), notLogged: 0 });
    logger.error("request failed", { ...fields, ...(notLogged === 0 ? {} : { notLogged }) });
  };
}

/**
 * The answer to something thrown. A typed error of a request (below 500) keeps its code and message. Faults may name
 * paths, so a 503 keeps only its code, and everything else is `internal_error` without detail. Both are logged.
 *
 * Whether a commit failed under this request or an earlier one is the same to its sender: `store_poisoned`.
 */
export function thrownResponse(error: unknown, log: FaultLog): Response {
  if (error instanceof AppError && ERROR_TABLE[error.code].status < 500) return refusalResponse(error);
  const code = error instanceof AppError ? error.code : undefined;
  log(error);
  if (code !== undefined && UNTIL_RESTART.includes(code)) {
    return refusalResponse({
      code: "store_poisoned",
      message:
        "the continuation store could not be written and needs a restart of the host; nothing acknowledged is lost, and the same request may be sent again after it",
      retryAfterMs: RESTART_RETRY_AFTER_MS,
    });
  }
  if (error instanceof AppError && ERROR_TABLE[error.code].status === 503) {
    return refusalResponse({
      code: error.code,
      message: "the service cannot do this now",
      ...(error.retryAfterMs === undefined ? {} : { retryAfterMs: error.retryAfterMs }),
    });
  }
  return refusalResponse({ code: "internal_error", message: "internal error" });
}
