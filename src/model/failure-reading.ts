import { BugError, ModelError } from "../core/errors.ts";
import { isJsonObject } from "../core/json.ts";

/**
 * Owns: reading what the vendor library threw or a provider sent: status, error type, time to come back, code of the
 * connection. Only short names and numbers leave it; a text might quote the key or the conversation.
 */

/** Statuses behind the error types that providers send inside a stream that began with 200. */
const STATUS_OF_TYPE: Readonly<Record<string, number>> = {
  overloaded_error: 529,
  api_error: 500,
  server_error: 500,
  timeout_error: 504,
  rate_limit_error: 429,
  rate_limit_exceeded: 429,
  insufficient_quota: 429,
  invalid_request_error: 400,
  context_length_exceeded: 400,
  invalid_prompt: 400,
  authentication_error: 401,
  permission_error: 403,
  not_found_error: 404,
  request_too_large: 413,
  api_key_invalid: 401,
};

/** Status, error type and time to come back; each undefined where nobody told. */
export function readFailure(error: unknown, nowMs: number) {
  const source = record(error);
  const body = record(parseJson(source.responseBody));
  const inner = record(body.error ?? record(source.data).error ?? source.data ?? source);
  // The code says more than the type where a provider sends both.
  const details = Array.isArray(inner.details) ? inner.details.map(record) : [];
  const reasons = details.map(({ reason }) => (reason === "API_KEY_INVALID" ? "api_key_invalid" : undefined));
  const types = [...reasons, shortName(inner.code), shortName(inner.type), shortName(source.type)];
  const named = types.filter((each) => each !== undefined);
  const type = named.find((each) => Object.hasOwn(STATUS_OF_TYPE, each)) ?? named[0];
  const own = numeric(source.statusCode) ?? numeric(inner.code);
  // A status below 400 is that of a stream that had begun; its error type says what went wrong in it.
  const status = own !== undefined && own >= 400 ? own : type === undefined ? own : STATUS_OF_TYPE[type];
  const retryAfterMs = retryAfter(record(source.responseHeaders), nowMs) ?? retryDelay(details);
  return { status, type, retryAfterMs };
}

function numeric(value: unknown): number | undefined {
  return typeof value === "number" && Number.isInteger(value) ? value : undefined;
}

/** `retry-after` in seconds or as a date, or `retry-after-ms`, in milliseconds from now. */
function retryAfter(headers: Record<string, unknown>, nowMs: number): number | undefined {
  const millis = headers["retry-after-ms"];
  if (typeof millis === "string" && /^\d{1,9}(\.\d+)?$/.test(millis)) return Math.ceil(Number(millis));
  const value = headers["retry-after"];
  if (typeof value !== "string") return undefined;
  if (/^\d{1,6}(\.\d+)?$/.test(value)) return Math.ceil(Number(value) * 1000);
  const at = /GMT$/.test(value) ? Date.parse(value) : Number.NaN;
  return Number.isNaN(at) ? undefined : Math.max(0, at - nowMs);
}

/** Google names the time to come back in the details of the error, as in `"retryDelay": "7.5s"`. */
function retryDelay(details: readonly Record<string, unknown>[]): number | undefined {
  for (const { retryDelay: delay } of details) {
    if (typeof delay === "string" && /^\d{1,6}(\.\d+)?s$/.test(delay))
      return Math.ceil(Number(delay.slice(0, -1)) * 1000);
  }
  return undefined;
}

/** An error type or code as providers write them; anything else might be text from the conversation. */
function shortName(value: unknown): string | undefined {
  return typeof value === "string" && /^[a-z][a-z0-9_]{0,63}$/.test(value) ? value : undefined;
}

/** What we threw ourselves into a stream that the vendor library read. */
export function ownError(error: unknown): ModelError | BugError | undefined {
  return causes(error).find((each) => each instanceof ModelError || each instanceof BugError);
}

/**
 * The code that the runtime gave a broken connection, also below the vendor library's own error. Codes of invalid
 * arguments are not among them: those are mistakes of a program.
 */
export function systemCode(error: unknown): string | undefined {
  for (const each of causes(error)) {
    const { code } = record(each);
    if (typeof code === "string" && /^[A-Z][A-Za-z0-9_]{1,63}$/.test(code) && !INVALID.test(code))
      return code;
    if (each.name === "TimeoutError") return "time-out";
  }
  return undefined;
}

function causes(error: unknown): Error[] {
  const found: Error[] = [];
  for (let at = error; at instanceof Error && found.length < 5; at = at.cause) found.push(at);
  return found;
}

const INVALID = /^ERR_(INVALID|MISSING|OUT_OF_RANGE|UNKNOWN)/;

/** A mistake in a program, which no code of the connection explains. */
export function isMistake(error: unknown): boolean {
  return error instanceof TypeError || error instanceof ReferenceError || error instanceof RangeError;
}

/** The name of what was thrown. */
export function nameOf(error: unknown): string {
  return error instanceof Error ? error.name : typeof error;
}

function record(value: unknown): Record<string, unknown> {
  if (isJsonObject(value)) return value;
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

/** The value of a JSON text; undefined when it is none. */
export function parseJson(text: unknown): unknown {
  if (typeof text !== "string") return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
