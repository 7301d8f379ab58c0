import { ModelError } from "../core/errors.ts";
import { isJsonObject } from "../core/json.ts";

/**
 * Owns: which failure of a provider call is which error of ours. Messages carry the model's name, an HTTP status
 * and the provider's short error type; never a key, a header, a request or an answer. For the same reason the
 * vendor's error, which holds all of those, is not attached as a cause.
 */

/** What the HTTP exchange had come to when the call failed. */
export interface ExchangeState {
  /** The provider had begun to answer: what it did with the request is then unknown. */
  readonly answered: boolean;
}

interface VendorFailure {
  readonly status: number | undefined;
  readonly type: string | undefined;
  readonly retryAfterMs: number | undefined;
}

/** Translates whatever the vendor library threw or streamed as an error. Our own errors pass through. */
export function toModelError(error: unknown, model: string, exchange: ExchangeState): ModelError {
  if (error instanceof ModelError) return error;
  const failure = readFailure(error);
  if (failure.status !== undefined && failure.status >= 400) return ofStatus(failure.status, failure, model);
  if (exchange.answered) {
    return new ModelError("model_failed", `${model}: the answer broke off or could not be read`);
  }
  const network = networkCode(error);
  if (network !== undefined) {
    return new ModelError("model_unavailable", `${model}: the provider can't be reached (${network})`);
  }
  return new ModelError("model_failed", `${model}: the call failed (${errorName(error)})`);
}

function ofStatus(status: number, failure: VendorFailure, model: string): ModelError {
  const type = failure.type === undefined ? "" : `, ${failure.type}`;
  const detail = `(HTTP ${status}${type})`;
  const later = (what: string) =>
    new ModelError(
      "model_unavailable",
      `${model}: ${what} ${detail}`,
      failure.retryAfterMs === undefined ? undefined : { retryAfterMs: failure.retryAfterMs },
    );
  if (status === 429) return later("the provider limits requests at present");
  if (status === 408) return later("the provider timed out");
  if (status >= 500) return later("the provider has a fault at present");
  const what =
    status === 401 || status === 403
      ? "the provider refused the API key"
      : status === 404
        ? "the provider knows no such model or address"
        : "the provider refused the request";
  return new ModelError("model_rejected", `${model}: ${what} ${detail}`);
}

/** Statuses that stand behind Anthropic's error types when they arrive inside a stream that began with 200. */
const STATUS_OF_TYPE: Readonly<Record<string, number>> = {
  overloaded_error: 529,
  api_error: 500,
  timeout_error: 504,
  rate_limit_error: 429,
  invalid_request_error: 400,
  authentication_error: 401,
  permission_error: 403,
  not_found_error: 404,
  request_too_large: 413,
};

function readFailure(error: unknown): VendorFailure {
  const source = record(error);
  const body = record(parse(source.responseBody)) ?? {};
  const inner = record(body.error ?? record(source.data).error ?? source.data ?? source);
  const type = shortName(inner.type) ?? shortName(inner.code) ?? shortName(source.type);
  const own = typeof source.statusCode === "number" ? source.statusCode : undefined;
  // A status below 400 is that of a stream that had begun; its error type says what went wrong in it.
  const status =
    own !== undefined && own >= 400 ? own : type === undefined ? own : (STATUS_OF_TYPE[type] ?? own);
  return { status, type, retryAfterMs: retryAfter(record(source.responseHeaders)["retry-after"]) };
}

/** Seconds form only: a date would need the present time, and providers send seconds. */
function retryAfter(value: unknown): number | undefined {
  const seconds = typeof value === "string" && /^\d{1,6}(\.\d+)?$/.test(value) ? Number(value) : undefined;
  return seconds === undefined ? undefined : Math.ceil(seconds * 1000);
}

/** An error type or code as providers write them; anything else might be text from the conversation. */
function shortName(value: unknown): string | undefined {
  return typeof value === "string" && /^[a-z][a-z0-9_]{0,63}$/.test(value) ? value : undefined;
}

const NETWORK_CODES = new Set([
  "ECONNREFUSED",
  "ECONNRESET",
  "ECONNABORTED",
  "ENOTFOUND",
  "EAI_AGAIN",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "ENETDOWN",
  "EPIPE",
  "ETIMEDOUT",
  "ConnectionRefused",
  "ConnectionClosed",
  "FailedToOpenSocket",
]);

function networkCode(error: unknown): string | undefined {
  let current: unknown = error;
  for (let depth = 0; depth < 5 && current instanceof Error; depth += 1) {
    const code = record(current).code;
    if (typeof code === "string" && NETWORK_CODES.has(code)) return code;
    if (current.name === "TimeoutError") return "time-out";
    if (current.cause === undefined && current instanceof TypeError) return "network error";
    current = current.cause;
  }
  return undefined;
}

function errorName(error: unknown): string {
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
