import { parentPort } from "node:worker_threads";
import { performSteps } from "./filesystem-steps.ts";
import { type ReadAheadMessage, serveReadAhead } from "./read-ahead.ts";
import { decodeSteps, encodeDone } from "./step-message.ts";

/** A thread that carries out lists of steps, one list at a time, in the order in which they come; or reads ahead. */

/** A list of steps, by itself or with its bytes; the shared memory that the next lists refer to; or files to read. */
export type ThreadMessage =
  | string
  | { text: string; bytes: Uint8Array[] }
  | { shared: SharedArrayBuffer }
  | ReadAheadMessage;

let shared: SharedArrayBuffer | undefined;

parentPort?.on("message", (message: ThreadMessage) => {
  if (typeof message === "string") perform(message, []);
  else if ("shared" in message) shared = message.shared;
  else if ("read" in message) serveReadAhead(message);
  else perform(message.text, message.bytes);
});

function perform(text: string, bytes: readonly Uint8Array[]): void {
  const { id, steps } = decodeSteps(text, bytes, shared);
  const failure = performSteps(steps);
  // Not left to the collector, which does not know how large they are.
  for (const { buffer } of bytes) if (buffer instanceof ArrayBuffer) buffer.transfer(0);
  parentPort?.postMessage(encodeDone(id, failure));
}
