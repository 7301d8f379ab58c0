import { MIB } from "../core/limits.ts";

/** The largest message that is taken from a server over HTTP; the SDK's codec for stdio has a bound of its own. */
export const HTTP_MESSAGE_MAX_BYTES = 16 * MIB;
const LF = 0x0a;
const CR = 0x0d;

/**
 * The same response with a body that fails beyond the bound: a JSON body as a whole, a stream of events by each event,
 * for it may go on for days.
 */
export function boundedBody(response: Response, maxBytes = HTTP_MESSAGE_MAX_BYTES): Response {
  if (response.body === null) return response;
  const byEvent = response.headers.get("content-type")?.startsWith("text/event-stream") === true;
  const pending = byEvent ? unfinishedEvent() : total();
  const count = new TransformStream<Uint8Array, Uint8Array>({
    transform(chunk, controller) {
      if (pending(chunk) > maxBytes) controller.error(new Error("the server's message is too big"));
      else controller.enqueue(chunk);
    },
  });
  const { status, statusText, headers } = response;
  return new Response(response.body.pipeThrough(count), { status, statusText, headers });
}

/** Counts the bytes so far. */
function total(): (chunk: Uint8Array) => number {
  let bytes = 0;
  return (chunk) => {
    bytes += chunk.byteLength;
    return bytes;
  };
}

/** Counts the bytes since the last blank line, which ends an event; a line ends with LF, CR or both. */
function unfinishedEvent(): (chunk: Uint8Array) => number {
  let bytes = 0;
  let lineBytes = 0;
  let previous: number | undefined;
  return (chunk) => {
    for (let at = 0; at < chunk.length; at += 1) {
      const byte = chunk[at];
      bytes += 1;
      if (byte !== LF && byte !== CR) lineBytes += 1;
      else if (byte === CR || previous !== CR) {
        if (lineBytes === 0) bytes = 0;
        lineBytes = 0;
      }
      previous = byte;
    }
    return bytes;
  };
}
