import { MIB } from "../core/limits.ts";

/** The largest message that is taken from a server over HTTP; the SDK's codec for stdio has a bound of its own. */
export const HTTP_MESSAGE_MAX_BYTES = 16 * MIB;
const NEWLINE = 0x0a;

/**
 * The same response with a body that fails beyond the bound: a JSON body as a whole, a stream of events by each line,
 * for it may go on for days.
 */
export function boundedBody(response: Response, maxBytes = HTTP_MESSAGE_MAX_BYTES): Response {
  if (response.body === null) return response;
  const byLine = response.headers.get("content-type")?.startsWith("text/event-stream") === true;
  let bytes = 0;
  const count = new TransformStream<Uint8Array, Uint8Array>({
    transform(chunk, controller) {
      const newline = byLine ? chunk.lastIndexOf(NEWLINE) : -1;
      bytes = newline < 0 ? bytes + chunk.byteLength : chunk.byteLength - newline - 1;
      if (bytes > maxBytes) controller.error(new Error("the server's message is too big"));
      else controller.enqueue(chunk);
    },
  });
  const { status, statusText, headers } = response;
  return new Response(response.body.pipeThrough(count), { status, statusText, headers });
}
