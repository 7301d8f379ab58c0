import { errorText } from "../core/errors.ts";
import type { Logger } from "../core/ports/platform.ts";

/**
 * Owns: which waiting work starts when.
 *
 * I1. Work of one thread runs one at a time, in the order it was added.
 * I2. At most `maxConcurrent` run at a time; among threads the one that waits longest goes first.
 */
export interface ThreadScheduler {
  /** `work` handles its own failures; a rejection is logged. After `stop` it never starts. */
  add(thread: string, id: string, work: () => Promise<void>): void;
  /** Takes work that has not started out of the queue. False when it has, or was never there. */
  remove(id: string): boolean;
  /** Starts nothing any more; resolves when what runs has ended. */
  stop(): Promise<void>;
}

interface Waiting {
  readonly thread: string;
  readonly id: string;
  readonly work: () => Promise<void>;
}

export function createThreadScheduler(maxConcurrent: number, logger: Logger): ThreadScheduler {
  const waiting: Waiting[] = [];
  const busy = new Set<string>();
  const active = new Set<Promise<void>>();
  let stopped = false;

  function pump(): void {
    let at = 0;
    while (!stopped && busy.size < maxConcurrent) {
      const next = waiting[at];
      if (next === undefined) return;
      if (busy.has(next.thread)) {
        at++;
        continue;
      }
      waiting.splice(at, 1);
      start(next);
    }
  }

  function start(entry: Waiting): void {
    busy.add(entry.thread);
    const ended = run(entry).then(() => {
      busy.delete(entry.thread);
      active.delete(ended);
      pump();
    });
    active.add(ended);
  }

  async function run({ id, work }: Waiting): Promise<void> {
    try {
      await work();
    } catch (error) {
      logger.error("a turn broke its runner", { turnId: id, error: errorText(error) });
    }
  }

  return {
    add(thread, id, work) {
      waiting.push({ thread, id, work });
      pump();
    },
    remove(id) {
      const at = waiting.findIndex((entry) => entry.id === id);
      if (at >= 0) waiting.splice(at, 1);
      return at >= 0;
    },
    async stop() {
      stopped = true;
      await Promise.all([...active]);
    },
  };
}
