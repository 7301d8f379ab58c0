import type { z } from "zod";
import { ERROR_TABLE, type ErrorCode, ok, type Refusal, type Result, refuse } from "../core/errors.ts";
import { isJsonObject } from "../core/json.ts";
import { BODY_READ_TIMEOUT_MS, JSON_MAX_DEPTH } from "../core/limits.ts";
import type { Clock } from "../core/ports/platform.ts";

/**
 * Owns: reading a request body as JSON within bounds of size, time and depth, and naming its first wrong field.
 *
 * I1. Never holds more than `maxBytes` of a body plus the chunk at hand.
 * I2. Values are those of `JSON.parse`: the last of duplicate keys counts, `__proto__` is an ordinary key.
 */

export interface BodyBounds {
  readonly maxBytes: number;
  readonly clock: Clock;
  /** What an empty body stands for; without it an empty body is `invalid_json`. */
  readonly emptyAs?: unknown;
}

/** ignoreBOM keeps the mark in the text, where JSON.parse refuses it. */
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Reads the body and checks it against the schema. Refusals: those of `readJson`, `invalid_body`, `invalid_<field>`. */
export async function readBody<T>(
  request: Request,
  schema: z.ZodType<T>,
  bounds: BodyBounds,
): Promise<Result<T>> {
  const json = await readJson(request, bounds);
  if (!json.ok) return json;
  const parsed = schema.safeParse(json.value);
  return parsed.success ? ok(parsed.data) : { ok: false, refusal: fieldRefusal(json.value, parsed.error) };
}

/**
 * Reads the body as JSON. Refusals: 413 `payload_too_large`, 408 `request_timeout` after `BODY_READ_TIMEOUT_MS`, and
 * 400 `invalid_json` for a broken body, invalid UTF-8, invalid JSON or nesting beyond `JSON_MAX_DEPTH`.
 */
async function readJson(request: Request, bounds: BodyBounds): Promise<Result<unknown>> {
  const bytes = await readBytes(request, bounds);
  if (!bytes.ok) return bytes;
  if (bytes.value.length === 0 && bounds.emptyAs !== undefined) return ok(bounds.emptyAs);
  let text: string;
  try {
    text = utf8.decode(bytes.value);
  } catch {
    return refuse("invalid_json", "the body is not valid UTF-8");
  }
  // Before parsing: JSON.parse itself gives up on deep nesting, and so does every recursive walk after it.
  if (deeperThan(text, JSON_MAX_DEPTH)) {
    return refuse("invalid_json", `the body is nested deeper than ${JSON_MAX_DEPTH} levels`);
  }
  try {
    const value: unknown = JSON.parse(text);
    return ok(value);
  } catch {
    return refuse("invalid_json", "the body is not valid JSON");
  }
}

async function readBytes(request: Request, bounds: BodyBounds): Promise<Result<Uint8Array>> {
  const { headers, body } = request;
  const tooLarge = refuse("payload_too_large", `the body must be at most ${bounds.maxBytes} bytes`);
  const declared = headers.get("content-length");
  if (declared !== null && Number(declared) > bounds.maxBytes) return tooLarge;
  // The server takes no more than the declared length, so the whole can be asked for at once: much cheaper.
  const whole = declared !== null && !headers.has("transfer-encoding");
  if (!whole && body === null) return ok(new Uint8Array());

  const late = Promise.withResolvers<"late">();
  let giveUp = () => {};
  const stopTimer = bounds.clock.timer(BODY_READ_TIMEOUT_MS, () => {
    late.resolve("late");
    giveUp();
  });
  try {
    const reading = whole || body === null ? request.bytes() : readChunks(body, bounds.maxBytes);
    // Nobody waits for it any more once it is late.
    reading.catch(() => {});
    const read = await Promise.race([reading, late.promise]);
    if (read === "late") return refuse("request_timeout", "the body took too long to arrive");
    return read === "too large" || read.byteLength > bounds.maxBytes ? tooLarge : ok(read);
  } catch {
    return refuse("invalid_json", "the body ended early");
  } finally {
    stopTimer();
  }

  async function readChunks(
    stream: ReadableStream<Uint8Array>,
    maxBytes: number,
  ): Promise<Uint8Array | "too large"> {
    const reader = stream.getReader();
    // Cancelling may fail because the connection is gone already; there is nothing more to free then.
    giveUp = () => void reader.cancel().catch(() => {});
    const chunks: Uint8Array[] = [];
    let size = 0;
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return Buffer.concat(chunks, size);
      size += value.byteLength;
      if (size > maxBytes) {
        giveUp();
        return "too large";
      }
      chunks.push(value);
    }
  }
}

/** Whether brackets outside strings nest deeper than `max`; says nothing about whether the text is valid JSON. */
function deeperThan(text: string, max: number): boolean {
  if (text.length <= max) return false;
  let depth = 0;
  let inString = false;
  for (let index = 0; index < text.length; index += 1) {
    const char = text[index];
    if (inString) {
      if (char === "\\") index += 1;
      else if (char === '"') inString = false;
    } else if (char === '"') inString = true;
    else if (char === "[" || char === "{") {
      depth += 1;
      if (depth > max) return true;
    } else if (char === "]" || char === "}") depth -= 1;
  }
  return false;
}

/** Codes that are not `invalid_<field>`. */
const FIELD_CODES: Partial<Record<string, ErrorCode>> = {
  payload: "missing_payload",
  kind: "invalid_resolution",
};

/** Of unknown fields this many are named, each cut to this length. */
const NAMED_KEYS_MAX = 3;
const KEY_MAX_CHARS = 64;

function fieldRefusal(value: unknown, error: z.ZodError): Refusal {
  const issue = error.issues[0];
  const field = issue?.path[0];
  if (!isJsonObject(value)) return { code: "invalid_body", message: "the body must be a JSON object" };
  if (issue?.code === "unrecognized_keys") {
    const names = issue.keys
      .slice(0, NAMED_KEYS_MAX)
      .map((key) => JSON.stringify(key.slice(0, KEY_MAX_CHARS)));
    return { code: "invalid_body", message: `the body must not have the field ${names.join(", ")}` };
  }
  if (issue === undefined || typeof field !== "string") {
    return { code: "invalid_body", message: `the body is wrong: ${issue?.message ?? "invalid"}` };
  }
  const message = Object.hasOwn(value, field) ? `${field} ${issue.message}` : `${field} is missing`;
  return { code: fieldCode(field), message };
}

function fieldCode(field: string): ErrorCode {
  const special = Object.hasOwn(FIELD_CODES, field) ? FIELD_CODES[field] : undefined;
  if (special !== undefined) return special;
  const code = `invalid_${field}`;
  return isErrorCode(code) ? code : "invalid_body";
}

function isErrorCode(code: string): code is ErrorCode {
  return Object.hasOwn(ERROR_TABLE, code);
}
