import { errorText } from "../../core/errors.ts";
import type { Clock, Logger } from "../../core/ports/platform.ts";
import type { ConversationEvent, Message } from "../../core/turn.ts";
import { GREETING, HEARTBEAT_MS, SIGN_OF_LIFE } from "../../http/event-streams.ts";

/**
 * Owns: one observer's server-sent events: committed messages from the feed, live previews in between, heartbeats.
 *
 * I1. Messages come from the feed alone, in its order, each once. A live `message` event is only a sign to read the
 *     feed again: two commits may be announced in the wrong order, and a client that comes back with the id of the
 *     later one would never see the earlier.
 * I2. Only messages carry an `id`, so the browser's or client's last id is always a place in the feed.
 * I3. Memory is bounded: previews beyond `MAX_PREVIEWS` are dropped, signs to read the feed coalesce.
 */

const FEED_PAGE = 100;
const MAX_PREVIEWS = 1_000;
const FEED = Symbol("read the feed");

export interface EventStreamDeps {
  /** Starts listening; returns what ends it. */
  subscribe(listener: (event: ConversationEvent) => void): () => void;
  feed(afterSeq: number, limit: number): Promise<Message[]>;
  readonly afterSeq: number;
  readonly clock: Clock;
  readonly logger: Logger;
  onClose(): void;
}

export interface EventStream {
  readonly body: ReadableStream<Uint8Array>;
  /** Ends the stream for the client. Idempotent. */
  close(): void;
}

export function openEventStream(deps: EventStreamDeps): EventStream {
  const { clock, logger } = deps;
  const encoder = new TextEncoder();
  let lastSeq = deps.afterSeq;
  let pending: (ConversationEvent | typeof FEED)[] = [FEED];
  let page: Message[] = [];
  let greeted = false;
  let closed = false;
  /** The client went away: the runtime has closed the stream already. */
  let gone = false;
  let wake = () => {};

  // Subscribed before the feed is read for the first time: what is committed in between is announced.
  const unsubscribe = deps.subscribe((event) => {
    if (event.type !== "message") {
      if (pending.length < MAX_PREVIEWS) pending.push(event);
    } else if (event.message.seq > lastSeq && pending.at(-1) !== FEED) pending.push(FEED);
    wake();
  });

  const close = () => {
    if (closed) return;
    closed = true;
    unsubscribe();
    pending = [];
    page = [];
    wake();
    deps.onClose();
  };

  /** Resolves true when something happened, false when a heartbeat is due. */
  const happened = () =>
    new Promise<boolean>((resolve) => {
      const stopTimer = clock.timer(HEARTBEAT_MS, () => resolve(false));
      wake = () => {
        stopTimer();
        resolve(true);
      };
    });

  /** The next piece of the stream; undefined when it was closed. */
  const next = async (): Promise<string | undefined> => {
    while (!closed) {
      const message = page.shift();
      if (message !== undefined) {
        lastSeq = message.seq;
        return sse({ type: "message", message }, message.seq);
      }
      const event = pending.shift();
      if (event === FEED) {
        const rows = await deps.feed(lastSeq, FEED_PAGE);
        if (closed) return undefined;
        page = rows;
        if (rows.length === FEED_PAGE) pending.unshift(FEED);
      } else if (event !== undefined) return sse(event);
      else if (!(await happened())) return SIGN_OF_LIFE;
    }
    return undefined;
  };

  const body = new ReadableStream<Uint8Array>(
    {
      pull: async (controller) => {
        try {
          const piece = greeted ? await next() : GREETING;
          greeted = true;
          if (gone) return;
          if (piece === undefined) controller.close();
          else controller.enqueue(encoder.encode(piece));
        } catch (error) {
          if (gone) return;
          logger.error("event stream failed", { error: errorText(error) });
          close();
          controller.error(error);
        }
      },
      cancel: () => {
        gone = true;
        close();
      },
    },
    { highWaterMark: 0 },
  );
  return { body, close };
}

function sse(event: ConversationEvent, id?: number): string {
  const head = id === undefined ? "" : `id: ${id}\n`;
  return `${head}event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`;
}
