import type { Clock } from "../core/ports/platform.ts";
import { eventStreamResponse, GREETING, HEARTBEAT_MS, SIGN_OF_LIFE } from "./event-streams.ts";

/**
 * Server-sent events that are only live: what happens while somebody looks. A reader that is too slow loses events
 * and is told how many; nothing waits for it, and memory is bounded.
 */

const MAX_WAITING = 1_000;

export interface LiveEvents {
  readonly response: Response;
  /** Ends the stream. Idempotent. */
  close(): void;
}

export function openLiveEvents<T>(
  subscribe: (listener: (event: T) => void) => () => void,
  clock: Clock,
  onClose: () => void,
): LiveEvents {
  const encoder = new TextEncoder();
  const waiting: T[] = [];
  let lost = 0;
  let greeted = false;
  let closed = false;
  let wake = () => {};

  const unsubscribe = subscribe((event) => {
    if (waiting.length < MAX_WAITING) waiting.push(event);
    else lost += 1;
    wake();
  });
  const close = () => {
    if (closed) return;
    closed = true;
    unsubscribe();
    wake();
    onClose();
  };
  /** Resolves when something happened or a heartbeat is due. */
  const happened = () =>
    new Promise<void>((resolve) => {
      const stopTimer = clock.timer(HEARTBEAT_MS, resolve);
      wake = () => {
        stopTimer();
        resolve();
      };
    });

  const next = async (): Promise<string> => {
    if (!closed && waiting.length === 0 && lost === 0) await happened();
    const text = waiting.splice(0).map((event) => `data: ${JSON.stringify(event)}\n\n`);
    if (lost > 0) text.push(`event: lost\ndata: ${lost}\n\n`);
    lost = 0;
    return text.length === 0 ? SIGN_OF_LIFE : text.join("");
  };

  const body = new ReadableStream<Uint8Array>(
    {
      pull: async (controller) => {
        const text = greeted ? await next() : GREETING;
        greeted = true;
        if (closed) controller.close();
        else controller.enqueue(encoder.encode(text));
      },
      cancel: close,
    },
    { highWaterMark: 0 },
  );
  return { response: eventStreamResponse(body), close };
}
