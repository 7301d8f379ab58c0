import { SECOND_MS } from "../core/limits.ts";

/** What the event streams of every loopback port have in common. */

/** Silence after which a stream shows that it is there: well within the idle time-out of its connection (serve.ts). */
export const HEARTBEAT_MS = 15 * SECOND_MS;
/** Comments of the format: a reader passes them over. */
export const GREETING = ": connected\n\n";
export const SIGN_OF_LIFE = ": still here\n\n";

/** An answer of server-sent events; without a body, the one to HEAD. */
export function eventStreamResponse(body: ReadableStream<Uint8Array> | null): Response {
  return new Response(body, { headers: { "content-type": "text/event-stream; charset=utf-8" } });
}
