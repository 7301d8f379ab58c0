import { documentFailure, modelFailure } from "./failures.ts";

/**
 * Owns: telling a stream of events from what comes instead of it with a status of success: the web page of a proxy or of
 * another program, an error as one JSON document, an answer in one piece. The vendor library would read on to the end of
 * each and find nothing.
 *
 * I1. The first character that is no blank decides, not the content type, which some servers get wrong: no line of an
 *     event stream begins with `<`, `{` or `[`.
 * I2. A stream passes byte by byte as it came; of a document, and of an error's body, `DOCUMENT_MAX_BYTES` are kept.
 */

const DOCUMENT_MAX_BYTES = 64 * 1024;

export interface BodyWatch {
  readonly model: string;
  readonly now: () => number;
  /** Something came. */
  touch(): void;
}

/** Passes an event stream; breaks with a `ModelError` that says what else came. */
export function eventStreamOnly({ model, now, touch }: BodyWatch): TransformStream<Uint8Array, Uint8Array> {
  let kind: BodyKind = "unknown";
  const head: Uint8Array[] = [];
  let kept = 0;
  const text = () => new TextDecoder().decode(Buffer.concat(head));
  return new TransformStream({
    transform(chunk, controller) {
      touch();
      if (kind === "stream") return controller.enqueue(chunk);
      head.push(chunk);
      kept += chunk.byteLength;
      if (kind === "unknown") kind = kindOfHead(text());
      // Blanks without end are no document.
      if (kind === "unknown" && kept > DOCUMENT_MAX_BYTES) kind = "stream";
      if (kind === "stream") for (const piece of head.splice(0)) controller.enqueue(piece);
      else if (kind === "page") throw modelFailure("web_page", model);
      else if (kept > DOCUMENT_MAX_BYTES) throw modelFailure("not_streamed", model);
    },
    flush() {
      if (kind === "document") throw documentFailure(text(), model, now());
    },
  });
}

/** Passes the beginning of an error's body, which is all that is looked at. */
export function boundedBody({ touch }: Pick<BodyWatch, "touch">): TransformStream<Uint8Array, Uint8Array> {
  let room = DOCUMENT_MAX_BYTES;
  return new TransformStream({
    transform(chunk, controller) {
      touch();
      controller.enqueue(chunk.subarray(0, room));
      room -= chunk.byteLength;
      if (room <= 0) controller.terminate();
    },
  });
}

type BodyKind = "unknown" | "stream" | "document" | "page";

function kindOfHead(text: string): BodyKind {
  // A mark at the beginning may have come in part yet, which decodes to U+FFFD.
  const first = /[^\s\ufeff\ufffd]/.exec(text)?.[0];
  if (first === undefined) return "unknown";
  if (first === "<") return "page";
  return first === "{" || first === "[" ? "document" : "stream";
}
