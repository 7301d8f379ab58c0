import type { BenchServer } from "./server.ts";

/**
 * Tells when continuations are delivered, by the operator's event stream: one connection for all. Asking for the
 * status of each every few milliseconds would measure the asking.
 */

export interface Deliveries {
  /** Resolves when the continuation is delivered; at once when it already was since the stream began. */
  of(continuationId: string): Promise<void>;
  close(): Promise<void>;
}

const DELIVERED = /"continuationId":"([^"]+)","state":"delivered"/g;

export async function watchDeliveries(server: BenchServer): Promise<Deliveries> {
  const stop = new AbortController();
  const response = await server.operator("/events", { signal: stop.signal });
  const reader = response.body?.getReader();
  if (response.status !== 200 || reader === undefined) throw new Error(`events: ${response.status}`);
  const waiting = new Map<string, () => void>();
  const early = new Set<string>();
  const decoder = new TextDecoder();

  const reading = (async () => {
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += decoder.decode(value, { stream: true });
      const end = text.lastIndexOf("\n\n");
      if (end < 0) continue;
      const events = text.slice(0, end);
      text = text.slice(end);
      if (events.includes("event: lost")) throw new Error("the event stream lost events; measure again");
      for (const [, id = ""] of events.matchAll(DELIVERED)) {
        const resolve = waiting.get(id);
        if (resolve === undefined) early.add(id);
        else {
          waiting.delete(id);
          resolve();
        }
      }
    }
  })();
  reading.catch((error: unknown) => {
    if (stop.signal.aborted) return;
    console.error(error);
    process.exit(1);
  });

  return {
    of(continuationId) {
      if (early.delete(continuationId)) return Promise.resolve();
      return new Promise((resolve) => waiting.set(continuationId, resolve));
    },
    async close() {
      stop.abort();
      await reading.catch(() => {});
    },
  };
}
