import { ok, type Result, refuse } from "../../core/errors.ts";
import { isJsonObject } from "../../core/json.ts";
import { SECOND_MS } from "../../core/limits.ts";

const REQUEST_TIMEOUT_MS = 10 * SECOND_MS;
const FIRST_DELAY_MS = 250;
const LONGEST_DELAY_MS = 5 * SECOND_MS;

/** Waits, and keeps the process alive meanwhile (the timer of `Clock` would not). */
export type Pause = (delayMs: number) => Promise<void>;

export interface SendRequest {
  readonly method: "POST" | "PUT";
  readonly url: string;
  readonly token: string;
  readonly body: string;
  /** How often it is sent at most. */
  readonly attempts: number;
}

/**
 * Sends one JSON request to the host and gives its JSON answer. Repeated while the failure may pass (no connection,
 * 429, 5xx), which is safe because claims and results are idempotent. A refusal names the host's error code; the
 * token is never part of it.
 */
export async function sendJson(request: SendRequest, pause: Pause): Promise<Result<unknown>> {
  for (let attempt = 1; ; attempt += 1) {
    const answer = await once(request);
    if (answer.kind === "done") return ok(answer.body);
    if (answer.kind === "refused" || attempt >= request.attempts)
      return refuse("operation_failed", answer.reason);
    await pause(Math.min(answer.retryAfterMs ?? FIRST_DELAY_MS * 2 ** (attempt - 1), LONGEST_DELAY_MS));
  }
}

type Answer =
  | { readonly kind: "done"; readonly body: unknown }
  | { readonly kind: "refused"; readonly reason: string }
  | { readonly kind: "transient"; readonly reason: string; readonly retryAfterMs: number | undefined };

async function once({ method, url, token, body }: SendRequest): Promise<Answer> {
  let response: Response;
  let text: string;
  try {
    response = await fetch(url, {
      method,
      body,
      headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
      signal: AbortSignal.timeout(REQUEST_TIMEOUT_MS),
      redirect: "error",
      // The host is on this machine: the token must not pass a proxy that the environment names.
      proxy: false,
    });
    text = await response.text();
  } catch {
    return { kind: "transient", reason: "the host can't be reached", retryAfterMs: undefined };
  }
  const parsed = parse(text);
  if (response.ok && parsed !== undefined) return { kind: "done", body: parsed };
  const error = isJsonObject(parsed) && isJsonObject(parsed.error) ? parsed.error : {};
  const code = typeof error.code === "string" ? error.code : "no error code";
  const reason = `the host answered ${response.status} (${code})`;
  if (response.status !== 429 && response.status < 500) return { kind: "refused", reason };
  const seconds = Number(response.headers.get("retry-after") ?? Number.NaN);
  return { kind: "transient", reason, retryAfterMs: seconds > 0 ? seconds * SECOND_MS : undefined };
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
