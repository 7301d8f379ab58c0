import { Worker, type WorkerOptions } from "node:worker_threads";
import type { FileStep } from "../core/ports/platform.ts";
import { faultOf } from "./filesystem-steps.ts";
import type { ThreadMessage } from "./filesystem-worker.ts";
import type { ReadAheadMessage } from "./read-ahead.ts";
import { decodeDone, encodeSteps } from "./step-message.ts";

/**
 * Owns: the threads that change files, so that an fsync never holds up the event loop, and the one that reads at a start.
 * Does not own: what a step does (filesystem-steps.ts).
 *
 * I1. A list goes to the thread with the least work, so that a commit does not wait behind a long list of record files.
 * I2. The process lives on while a list is under way, and only then.
 * I3. When a thread dies, each of its lists fails: what it did is unknown, so none may count as done.
 */
export interface StepThreads {
  run(steps: readonly FileStep[]): Promise<void>;
  /** Ends the threads once their lists are done; later lists start new ones. */
  close(): Promise<void>;
}

const THREADS = 2;

/**
 * Bun's own option (docs: Workers, "smol"): a thread that collects its garbage early. All that these make is garbage; with
 * the usual heap, two of them grew by some 50 MB under load (measured).
 */
const SMALL: WorkerOptions & { smol: true } = { smol: true };

/** In the compiled binary everything but the threads is one file, and they lie beside it by their path below `src`. */
const FROM_SOURCE = import.meta.url.endsWith("/filesystem-threads.ts");
const THREAD_ENTRY = new URL(
  FROM_SOURCE ? "./filesystem-worker.ts" : "./platform/filesystem-worker.js",
  import.meta.url,
);

interface Waiting {
  readonly steps: readonly FileStep[];
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
}

interface Thread {
  /** Steps handed over and not yet reported back. */
  readonly load: () => number;
  readonly lists: () => number;
  run(list: Waiting): void;
  end(): Promise<unknown>;
}

/** `entry` is the module that the threads run. */
export function createStepThreads(entry: URL = THREAD_ENTRY): StepThreads {
  const threads: Thread[] = [];

  function leastLoaded(): Thread {
    const idle = threads.find((thread) => thread.lists() === 0);
    if (idle !== undefined) return idle;
    if (threads.length < THREADS) {
      const thread = startThread(entry, () => {
        const at = threads.indexOf(thread);
        if (at >= 0) threads.splice(at, 1);
      });
      threads.push(thread);
      return thread;
    }
    return threads.reduce((least, thread) => (thread.load() < least.load() ? thread : least));
  }

  return {
    run(steps) {
      const { promise, resolve, reject } = Promise.withResolvers<void>();
      leastLoaded().run({ steps, resolve, reject });
      return promise;
    },
    async close() {
      await Promise.all(threads.splice(0).map((thread) => thread.end()));
    },
  };
}

function startThread(entry: URL, gone: () => void): Thread {
  const worker = new Worker(entry, SMALL);
  const waiting = new Map<number, Waiting>();
  let count = 0;
  let load = 0;
  let drained: (() => void) | undefined;
  /** The shared memory that the thread knows of. */
  let known: SharedArrayBuffer | undefined;
  worker.unref();

  function send(message: ThreadMessage, transfer?: ArrayBuffer[]): void {
    worker.postMessage(message, transfer);
  }

  function take(id: number): Waiting | undefined {
    const list = waiting.get(id);
    if (list === undefined) return undefined;
    waiting.delete(id);
    load -= list.steps.length;
    if (waiting.size === 0) {
      worker.unref();
      drained?.();
    }
    return list;
  }

  worker.on("message", (text: string) => {
    const { id, failure } = decodeDone(text);
    const list = take(id);
    if (list === undefined) return;
    if (failure === undefined) list.resolve();
    else list.reject(faultOf(list.steps, failure));
  });

  function failAll(cause: unknown): void {
    gone();
    for (const id of [...waiting.keys()]) {
      const list = take(id);
      list?.reject(faultOf(list.steps, { index: 0, errno: "ETHREAD", cause }));
    }
  }
  worker.on("error", failAll);
  worker.on("exit", () => failAll(new Error("the thread ended")));

  return {
    load: () => load,
    lists: () => waiting.size,
    run(list) {
      count += 1;
      if (waiting.size === 0) worker.ref();
      waiting.set(count, list);
      load += list.steps.length;
      const { text, bytes, shared } = encodeSteps(count, list.steps);
      if (shared !== undefined && shared !== known) {
        known = shared;
        send({ shared });
      }
      if (bytes.length === 0) send(text);
      else send({ text, bytes }, handedOver(bytes));
    },
    async end() {
      if (waiting.size > 0) {
        await new Promise<void>((resolve) => {
          drained = resolve;
        });
      }
      await worker.terminate();
    },
  };
}

/** Starts a thread that reads these files, and then is of no more use; the returned function ends it. */
export function startReader(message: ReadAheadMessage): () => void {
  const worker = new Worker(THREAD_ENTRY, SMALL);
  // Whatever it does not read, the caller does.
  worker.on("error", () => {});
  worker.postMessage(message);
  return () => void worker.terminate();
}

/** Buffers that go to the thread without a copy: those that hold nothing but the data of one step. */
function handedOver(bytes: readonly Uint8Array[]): ArrayBuffer[] {
  const buffers: ArrayBuffer[] = [];
  for (const { buffer, byteLength } of bytes) {
    if (buffer instanceof ArrayBuffer && buffer.byteLength === byteLength) buffers.push(buffer);
  }
  return buffers;
}
