import { isJsonObject } from "../core/json.ts";
import type { Fetch } from "./oauth-fetch.ts";

/**
 * Owns: what becomes of a request over streamable HTTP whose stream of events ends before its answer, because the
 * server crashed, say. The SDK would wait for the time-out.
 *
 * I1. The end is told in the stream, after all that came: whoever was answered before passes it over.
 * I2. A stream with event ids is left alone: the SDK asks the server for the rest of it.
 */

const CONNECTION_CLOSED = -32000;
/** Tells our own answer from one of the server. A server that says the same only says that nobody knows the outcome. */
const STREAM_ENDED = "mono-agent: the stream of events ended";

/** Whether the data of a protocol error say that the stream ended before the answer. */
export function isStreamEnd(data: unknown): boolean {
  return data === STREAM_ENDED;
}

/** Whether an error of the client only says that a stream ended after its answer, as every one does. */
export function isOrdinaryEnd(error: Error): boolean {
  return error.message.includes(STREAM_ENDED);
}

/** Answers a request with a protocol error when the stream that was to bring its answer ends. */
export function answeredStreams(send: Fetch): Fetch {
  return async (url, init) => {
    const response = await send(url, init);
    const id = init?.method === "POST" ? requestId(init.body) : undefined;
    const isStream = response.headers.get("content-type")?.startsWith("text/event-stream") === true;
    if (id === undefined || !response.ok || !isStream || response.body === null) return response;
    const { status, statusText, headers } = response;
    return new Response(withEnd(response.body, id), { status, statusText, headers });
  };
}

/** The id of the request that a body is; undefined when it is a notification or an answer. */
function requestId(body: unknown): string | number | undefined {
  if (typeof body !== "string") return undefined;
  const message: unknown = JSON.parse(body);
  if (!isJsonObject(message) || typeof message.method !== "string") return undefined;
  const { id } = message;
  return typeof id === "string" || typeof id === "number" ? id : undefined;
}

function withEnd(body: ReadableStream<Uint8Array>, id: string | number): ReadableStream<Uint8Array> {
  const reader = body.getReader();
  const isResumable = eventIds();
  let resumable = false;
  const error = { code: CONNECTION_CLOSED, message: "Connection closed", data: STREAM_ENDED };
  // A blank line first: the last event may be unfinished.
  const end = `\n\ndata: ${JSON.stringify({ jsonrpc: "2.0", id, error })}\n\n`;
  return new ReadableStream({
    async pull(controller) {
      try {
        const { done, value } = await reader.read();
        if (!done) {
          resumable ||= isResumable(value);
          controller.enqueue(value);
          return;
        }
      } catch (cause) {
        if (resumable) {
          controller.error(cause);
          return;
        }
      }
      if (!resumable) controller.enqueue(new TextEncoder().encode(end));
      controller.close();
    },
    cancel: (reason) => reader.cancel(reason),
  });
}

/** Whether some line so far began with `id:`, however the bytes are cut up. */
function eventIds(): (chunk: Uint8Array) => boolean {
  const field = [..."id:"].map((char) => char.charCodeAt(0));
  /** How much of the field the line has so far; undefined when it is another. */
  let matched: number | undefined = 0;
  return (chunk) => {
    for (const byte of chunk) {
      if (byte === 0x0a || byte === 0x0d) matched = 0;
      else if (matched !== undefined) matched = byte === field[matched] ? matched + 1 : undefined;
      if (matched === field.length) return true;
    }
    return false;
  };
}
