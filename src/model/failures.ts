import { BugError, type ErrorCode, ModelError } from "../core/errors.ts";
import { isMistake, nameOf, ownError, parseJson, readFailure, systemCode } from "./failure-reading.ts";

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
  /** For whoever runs the host: what can be done about it. */
  readonly remedy?: string;
}

const later = (words: string, remedy: string, notRun = false): FailureRow => ({
  code: "model_unavailable",
  notRun,
  words,
  remedy,
});
const never = (words: string, remedy?: string, notRun = true): FailureRow => ({
  code: "model_rejected",
  notRun,
  words,
  ...(remedy === undefined ? {} : { remedy }),
});
const unknown = (words: string, remedy?: string): FailureRow => ({
  code: "model_failed",
  notRun: false,
  words,
  ...(remedy === undefined ? {} : { remedy }),
});

const PROXY = "the proxy did not let the call through";
const CHECK_PROXY = "check the proxy that HTTPS_PROXY or HTTP_PROXY names";
const LATER = "try again later; what a local server has to say is in its own log";
const BASE_URL = "correct its baseUrl (of most OpenAI-compatible servers it ends in /v1)";

/** The one table of failures of a model call. */
export const FAILURES = {
  rate_limited: later(
    "the provider limits requests at present",
    "wait, or raise the limit of the account",
    true,
  ),
  overloaded: later("the provider is overloaded at present", LATER),
  server_fault: later("the provider has a fault at present", LATER),
  provider_timeout: later("the provider timed out", LATER),
  unreachable: later("the provider can't be reached", "start it, or correct its baseUrl", true),
  network: later(
    "the connection to the provider broke",
    "try again; check the network and http or https in its baseUrl",
  ),
  not_http: later(
    "what answers at its address does not speak HTTP",
    "correct scheme, host and port of its baseUrl",
  ),
  proxy_tunnel: later(PROXY, CHECK_PROXY, true),
  broken_off: later("the answer broke off before the model finished", LATER),
  silent: later(
    "the provider sent nothing for too long",
    "give a slow model a larger runtime.modelCallTimeoutMs",
  ),
  too_slow: later(
    "the answer took too long",
    "give a slow model a larger runtime.modelCallMaxTotalTimeoutMs",
  ),
  bad_key: never(
    "the provider refused the API key",
    "put a valid key into the variable that its apiKeyEnv names",
  ),
  proxy_refused: never(PROXY, CHECK_PROXY),
  forbidden: never(
    "the provider does not allow this with the API key, or from this address",
    "look up what the key may do",
  ),
  untrusted: never(
    "its certificate is not trusted",
    "name a file with the certificate of its authority in NODE_EXTRA_CA_CERTS, or correct its baseUrl",
  ),
  unknown_model: never(
    "the provider knows no such model or address",
    `correct the model's name, or ${BASE_URL}`,
  ),
  no_credit: never("the account at the provider has no credit left", "add credit there"),
  context_full: never("the request is longer than the model's context window"),
  refused: never(
    "the provider refused the request",
    "the model may not take tools, images or the effort; what a local server has to say is in its own log",
  ),
  redirected: never("the address redirects elsewhere, where no key is sent; correct its baseUrl"),
  web_page: never(
    "a web page came instead of an answer",
    `${BASE_URL}, or look what stands before it`,
    false,
  ),
  not_streamed: never("the answer came in one piece", "use a server that streams its answers", false),
  not_accepted: never("this model does not take such input"),
  unreadable: unknown("the answer could not be read", "check that the type of its provider is right"),
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
  const { code, notRun, words, remedy }: FailureRow = FAILURES[kind];
  const { retryAfterMs } = options;
  return new ModelError(code, `${model}: ${words}${detail === undefined ? "" : ` (${detail})`}`, {
    notRun: options.notRun ?? notRun,
    ...(remedy === undefined ? {} : { remedy }),
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
  const ours = ownError(error);
  if (ours !== undefined) return ours;
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
  const code = systemCode(error);
  if (code !== undefined) {
    const kind = kindOfCode(code);
    // Before the answer began it proves something, after that it was on the way.
    return modelFailure(answered && FAILURES[kind].notRun ? "network" : kind, model, code);
  }
  if (answered) return modelFailure(ENDED_EARLY.has(nameOf(error)) ? "broken_off" : "unreadable", model);
  return isMistake(error)
    ? new BugError(`${model}: the call could not be made (${nameOf(error)})`)
    : modelFailure("failed", model, nameOf(error));
}

/**
 * The failure behind a document that came where an accepted request asked for a stream of events: a provider's error, or
 * an answer in one piece.
 */
export function documentFailure(text: string, model: string, nowMs: number): ModelError {
  const parsed = parseJson(text);
  const body: unknown = Array.isArray(parsed) ? parsed[0] : parsed;
  if (typeof body !== "object" || body === null || !("error" in body) || body.error === null) {
    return modelFailure("not_streamed", model);
  }
  const { status, type, retryAfterMs } = readFailure({ responseBody: JSON.stringify(body) }, nowMs);
  const detail = ["HTTP 200", "error", type].filter((each) => each !== undefined).join(", ");
  const kind = kindOf(Math.max(status ?? 400, 400), type);
  return modelFailure(kind, model, detail, { retryAfterMs, notRun: false });
}

function kindOf(status: number, type: string | undefined): FailureKind {
  if (status < 400) return "redirected";
  if (type === "insufficient_quota" || type === "billing_error" || status === 402) return "no_credit";
  if (type === "api_key_invalid") return "bad_key";
  if (status === 429) return "rate_limited";
  if (status === 529 || type === "overloaded_error") return "overloaded";
  if (status === 408 || status === 504) return "provider_timeout";
  if (status >= 500) return "server_fault";
  if (status === 401) return "bad_key";
  if (status === 403) return "forbidden";
  if (status === 407) return "proxy_refused";
  if (status === 404) return "unknown_model";
  if (status === 413 || (type !== undefined && /context_length|request_too_large/.test(type))) {
    return "context_full";
  }
  return "refused";
}

/** What a code of the connection means. Bun and OpenSSL have dozens of codes for a certificate. */
function kindOfCode(code: string): FailureKind {
  if (UNREACHABLE_CODES.has(code)) return "unreachable";
  if (
    /CERT|ISSUER|^ERR_TLS_|^CRL_|^(INVALID_CA|INVALID_PURPOSE|HOSTNAME_MISMATCH|PATH_LENGTH_EXCEEDED)$/.test(
      code,
    )
  ) {
    return "untrusted";
  }
  if (code === "Malformed_HTTP_Response" || code === "InvalidHTTPResponse") return "not_http";
  return code === "ERR_PROXY_TUNNEL" ? "proxy_tunnel" : "network";
}

/** Codes of a connection that never came about. */
const UNREACHABLE_CODES = new Set([
  "ECONNREFUSED",
  "ENOTFOUND",
  "EAI_AGAIN",
  "ConnectionRefused",
  "FailedToOpenSocket",
]);

/** What the vendor library calls a stream that ended without saying why. */
const ENDED_EARLY = new Set([
  "AI_NoOutputGeneratedError",
  "AI_InvalidResponseDataError",
  "AI_EmptyResponseBodyError",
]);
