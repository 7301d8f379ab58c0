import type { FileStep } from "../core/ports/platform.ts";
import type { StepFailure } from "./filesystem-steps.ts";

/**
 * Owns: lists of steps, and how they ended, as messages between threads. A text passes at a fraction of what a tree of
 * objects costs (measured: 7 µs instead of 28 for a commit), and commits come many hundred times a second.
 *
 * I1. `decodeSteps` gives what `encodeSteps` took, whatever the texts contain: fields are told apart by their lengths.
 */

/** Bytes travel beside the text: those in shared memory stay where they are, others go over with their buffer. */
export interface EncodedSteps {
  readonly text: string;
  readonly bytes: Uint8Array[];
  readonly shared: SharedArrayBuffer | undefined;
}

const flag = (value: boolean | undefined) => (value === true ? "1" : "");

export function encodeSteps(id: number, steps: readonly FileStep[]): EncodedSteps {
  const fields: string[] = [`${id}`];
  const bytes: Uint8Array[] = [];
  let shared: SharedArrayBuffer | undefined;

  function pushData(data: string | Uint8Array): void {
    if (typeof data === "string") {
      fields.push("text", data);
      return;
    }
    const { buffer } = data;
    if (buffer instanceof SharedArrayBuffer && (shared === undefined || shared === buffer)) {
      shared = buffer;
      fields.push("shared", `${data.byteOffset}`, `${data.byteLength}`);
      return;
    }
    fields.push("bytes");
    bytes.push(buffer instanceof SharedArrayBuffer ? data.slice() : data);
  }

  for (const step of steps) {
    fields.push(step.op, step.label);
    switch (step.op) {
      case "write":
        fields.push(step.path, `${step.mode}`, flag(step.sync), step.reuse ?? "");
        pushData(step.data);
        break;
      case "syncFiles":
        fields.push(step.folder, `${step.paths.length}`, ...step.paths);
        break;
      case "rename":
        fields.push(step.from, step.to, flag(step.swap), flag(step.missingOk));
        break;
      case "unlink":
        fields.push(step.path, flag(step.missingOk));
        break;
      case "mkdir":
        fields.push(step.path, `${step.mode}`, flag(step.existsOk));
        break;
      case "chmod":
        fields.push(step.path, `${step.mode}`);
        break;
      default:
        fields.push(step.path);
    }
  }
  return { text: joined(fields), bytes, shared };
}

/** `shared` is the memory that the sender named, if any. */
export function decodeSteps(
  text: string,
  bytes: readonly Uint8Array[],
  shared: SharedArrayBuffer | undefined,
): { id: number; steps: FileStep[] } {
  const next = reader(text);
  let nextBytes = 0;

  function data(): string | Uint8Array {
    const kind = next();
    if (kind === "text") return next();
    if (kind === "shared") {
      if (shared === undefined) throw new Error("no shared memory was named");
      return new Uint8Array(shared, Number(next()), Number(next()));
    }
    const found = bytes[nextBytes];
    nextBytes += 1;
    if (found === undefined) throw new Error("bytes of a step are missing");
    return found;
  }

  const id = Number(next());
  const steps: FileStep[] = [];
  for (let op = next(); op !== END; op = next()) steps.push(decodeStep(op as FileStep["op"], next, data));
  return { id, steps };
}

function decodeStep(op: FileStep["op"], next: () => string, data: () => string | Uint8Array): FileStep {
  const label = next();
  const path = next();
  const yes = () => next() === "1";
  switch (op) {
    case "write": {
      const mode = Number(next());
      const sync = yes();
      const reuse = next();
      const written = { op, label, path, mode, sync, data: data() };
      return reuse === "whole" || reuse === "start" ? { ...written, reuse } : written;
    }
    case "syncFiles":
      return { op, label, folder: path, paths: Array.from({ length: Number(next()) }, next) };
    case "rename":
      return { op, label, from: path, to: next(), swap: yes(), missingOk: yes() };
    case "unlink":
      return { op, label, path, missingOk: yes() };
    case "mkdir":
      return { op, label, path, mode: Number(next()), existsOk: yes() };
    case "chmod":
      return { op, label, path, mode: Number(next()) };
    default:
      return { op, label, path };
  }
}

export function encodeDone(id: number, failure: StepFailure | undefined): string {
  if (failure === undefined) return joined([`${id}`]);
  return joined([`${id}`, `${failure.index}`, failure.errno, String(failure.cause)]);
}

export function decodeDone(text: string): { id: number; failure: StepFailure | undefined } {
  const next = reader(text);
  const id = Number(next());
  const index = next();
  if (index === END) return { id, failure: undefined };
  return { id, failure: { index: Number(index), errno: next(), cause: new Error(next()) } };
}

/** What `reader` gives after the last field; no field is this by itself, as none that is compared with it is empty. */
const END = "";

/** The lengths of the fields, then the fields. */
function joined(fields: readonly string[]): string {
  let lengths = "";
  for (const field of fields) lengths += `${field.length},`;
  return `${lengths}\n${fields.join("")}`;
}

function reader(text: string): () => string {
  let at = text.indexOf("\n") + 1;
  const lengths = text.slice(0, Math.max(0, at - 2)).split(",");
  let field = 0;
  return () => {
    const length = lengths[field];
    field += 1;
    if (length === undefined) return END;
    const start = at;
    at += Number(length);
    return text.slice(start, at);
  };
}
