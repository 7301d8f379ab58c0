import { BugError, type ErrorCode, ModelError } from "../core/errors.ts";
import { isJsonObject } from "../core/json.ts";

/**
 * Owns: which failure of a provider call is which error of ours. Messages carry the model's name, an HTTP status
 * and the provider's short error type; never a key, a header, a request or an answer. For the same reason the
 * vendor's error, which holds all of those, is not attached as a cause.
 *
 * I1. `notRun` is set only on proof: no connection came about, or the status line of the answer refused the request
 *     (429, another 4xx but 408, or a redirect).
 *     An error inside a stream that began with 200 proves nothing.
 */

interface FailureRow {
  /** Its retry class in the error table: `model_unavailable` later, `model_rejected` never, `model_failed` unknown. */
  readonly code: ErrorCode;
  /** Whether the failure proves that the provider did not run the model. */
  readonly notRun: boolean;
  readonly words: string;
}

const later = (words: string, notRun = false): FailureRow => ({ code: "model_unavailable", notRun, words });
const never = (words: string): FailureRow => ({ code: "model_rejected", notRun: true, words });
const unknown = (words: string): FailureRow => ({ code: "model_failed", notRun: false, words });

/** The one table of failures of a model call. */
export const FAILURES = {
  rate_limited: later("the provider limits requests at present", true),
  overloaded: later("the provider is overloaded at present"),
  server_fault: later("the provider has a fault at present"),
  provider_timeout: later("the provider timed out"),
  unreachable: later("the provider can't be reached", true),
  network: later("the connection to the provider broke"),
  broken_off: later("the answer broke off before the model finished"),
  silent: later("the provider sent nothing for too long"),
  too_slow: later("the answer took too long"),
  bad_key: never("the provider refused the API key"),
  unknown_model: never("the provider knows no such model or address"),
  no_credit: never("the account at the provider has no credit left"),
  context_full: never("the request is longer than the model's context window"),
  refused: never("the provider refused the request"),
  redirected: never("the address redirects elsewhere, where no key is sent; correct its baseUrl"),
  not_accepted: never("this model does not take such input"),
  unreadable: unknown("the answer could not be read"),
  too_long: unknown("the answer is longer than any answer may be and was stopped"),
  aborted: unknown("the call was aborted"),
  failed: unknown("the call failed"),
} as const satisfies Record<string, FailureRow>;

export type FailureKind = keyof typeof FAILURES;

/** The error of one kind. `detail` is for people: a status, a code, numbers; never a text of the conversation. */
export function modelFailure(
  kind: FailureKind,
  model: string,
  detail?: string,
  options: { retryAfterMs?: number | undefined; notRun?: boolean } = {},
): ModelError {
  const { code, notRun, words } = FAILURES[kind];
  const { retryAfterMs } = options;
  return new ModelError(code, `${model}: ${words}${detail === undefined ? "" : ` (${detail})`}`, {
    notRun: options.notRun ?? notRun,
    ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
  });
}

/** What the HTTP exchange had come to when the call failed. */
export interface ExchangeState {
  /** The status of the answer, once it had begun: what the provider did with an accepted request is then unknown. */
  readonly status: number | undefined;
  /** The present time, for a `retry-after` that is a date. */
  readonly nowMs: number;
}

/**
 * Translates whatever the vendor library threw or streamed as an error. Our own errors pass through; a mistake in a
 * program before anything was sent is a `BugError`: no retry and no other model mends it. It keeps only the name of what
 * was thrown, because the words of a `TypeError` quote the value that was wrong, which may be the key.
 */
export function toModelError(error: unknown, model: string, exchange: ExchangeState): Error {
  if (error instanceof ModelError || error instanceof BugError) return error;
  const { status, type, retryAfterMs } = readFailure(error, exchange.nowMs);
  const answered = exchange.status !== undefined;
  if (status !== undefined && status >= 300) {
    const kind = kindOf(status, type);
    const remedy =
      kind === "context_full"
        ? "; if it is smaller than assumed, set contextTokens in its provider's models"
        : "";
    const detail = `HTTP ${status}${type === undefined ? "" : `, ${type}`}${remedy}`;
    // The status may be that of an error inside a stream which the provider had accepted.
    const notRun = FAILURES[kind].notRun && (exchange.status ?? 0) >= 300;
    return modelFailure(kind, model, detail, { retryAfterMs, notRun });
  }
  if (type !== undefined && answered) return modelFailure("server_fault", model, type);
  const network = networkCode(error);
  if (network !== undefined) {
    const unreachable = !answered && UNREACHABLE_CODES.has(network);
    return modelFailure(unreachable ? "unreachable" : "network", model, network);
  }
  if (answered) return modelFailure(ENDED_EARLY.has(nameOf(error)) ? "broken_off" : "unreadable", model);
  return isMistake(error)
    ? new BugError(`${model}: the call could not be made (${nameOf(error)})`)
    : modelFailure("failed", model, nameOf(error));
}

function kindOf(status: number, type: string | undefined): FailureKind {
  if (status < 400) return "redirected";
  if (type === "insufficient_quota" || type === "billing_error" || status === 402) return "no_credit";
  if (status === 429) return "rate_limited";
  if (status === 529 || type === "overloaded_error") return "overloaded";
  if (status === 408 || status === 504) return "provider_timeout";
  if (status >= 500) return "server_fault";
  if (status === 401 || status === 403) return "bad_key";
  if (status === 404) return "unknown_model";
  if (status === 413 || (type !== undefined && /context_length|request_too_large/.test(type))) {
    return "context_full";
  }
  return "refused";
}

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
};

function readFailure(error: unknown, nowMs: number) {
  const source = record(error);
  const body = record(parse(source.responseBody));
  const inner = record(body.error ?? record(source.data).error ?? source.data ?? source);
  // The code says more than the type where a provider sends both.
  const types = [shortName(inner.code), shortName(inner.type), shortName(source.type)];
  const named = types.filter((each) => each !== undefined);
  const type = named.find((each) => each in STATUS_OF_TYPE) ?? named[0];
  const own = numeric(source.statusCode) ?? numeric(inner.code);
  // A status below 400 is that of a stream that had begun; its error type says what went wrong in it.
  const status = own !== undefined && own >= 400 ? own : type === undefined ? own : STATUS_OF_TYPE[type];
  return { status, type, retryAfterMs: retryAfter(record(source.responseHeaders), nowMs) };
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

/** An error type or code as providers write them; anything else might be text from the conversation. */
function shortName(value: unknown): string | undefined {
  return typeof value === "string" && /^[a-z][a-z0-9_]{0,63}$/.test(value) ? value : undefined;
}

/** Codes of a connection that never came about. */
const UNREACHABLE_CODES = new Set([
  "ECONNREFUSED",
  "ENOTFOUND",
  "EAI_AGAIN",
  "ConnectionRefused",
  "FailedToOpenSocket",
]);

const NETWORK_CODES = new Set([
  ...UNREACHABLE_CODES,
  "ECONNRESET",
  "ECONNABORTED",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "ENETDOWN",
  "EPIPE",
  "ETIMEDOUT",
  "ConnectionClosed",
]);

function networkCode(error: unknown): string | undefined {
  let current: unknown = error;
  for (let depth = 0; depth < 5 && current instanceof Error; depth += 1) {
    const code = record(current).code;
    if (typeof code === "string" && NETWORK_CODES.has(code)) return code;
    if (current.name === "TimeoutError") return "time-out";
    current = current.cause;
  }
  return undefined;
}

/** What the vendor library calls a stream that ended without saying why. */
const ENDED_EARLY = new Set(["AI_NoOutputGeneratedError", "AI_InvalidResponseDataError"]);

function isMistake(error: unknown): boolean {
  return error instanceof TypeError || error instanceof ReferenceError || error instanceof RangeError;
}

function nameOf(error: unknown): string {
  return error instanceof Error ? error.name : typeof error;
}

function record(value: unknown): Record<string, unknown> {
  if (isJsonObject(value)) return value;
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

function parse(text: unknown): unknown {
  if (typeof text !== "string") return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
