import { MIB } from "../../core/limits.ts";
import { corrupt, parseJson } from "../codec.ts";

/** Bytes asked for at a time. */
const CHUNK_BYTES = 4 * MIB;
/** The indented form of a record in a monolith is at most a few times its 2 MiB. */
const VALUE_MAX_BYTES = 16 * MIB;

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COMMA = 0x2c;
const COLON = 0x3a;
const OPEN_BRACE = 0x7b;
const CLOSE_BRACE = 0x7d;
const OPEN_BRACKET = 0x5b;
const CLOSE_BRACKET = 0x5d;

/**
 * Walks through JSON text as bytes that come in chunks, and cuts out the values. Only the bounds of a value are found
 * here; JSON.parse then judges it. Every fault is a `StoreError` `store_corrupt` that names `path`.
 */
export interface JsonSource {
  /** Expects an object; calls `member` with each key, which must take the value by `value` or `object`. */
  object(member: (key: string) => void): void;
  /** The text of the next value; valid until the next call. */
  value(): Uint8Array;
  /** Expects nothing but white space. */
  end(): void;
}

/** `read` gives up to `length` bytes, and none only at the end. */
export function createJsonSource(path: string, read: (length: number) => Uint8Array): JsonSource {
  let window: Uint8Array = new Uint8Array();
  let at = 0;

  const syntax = () => corrupt(path, "is not valid JSON (syntax)");

  /** Appends the next chunk, keeping what is from `start` on, which becomes 0. False at the end of the text. */
  function more(start: number): boolean {
    const kept = window.length - start;
    if (kept > VALUE_MAX_BYTES) throw corrupt(path, `holds a value of more than ${VALUE_MAX_BYTES} bytes`);
    const chunk = read(CHUNK_BYTES);
    if (chunk.length === 0) return false;
    window = kept === 0 ? chunk : Buffer.concat([window.subarray(start), chunk]);
    at -= start;
    return true;
  }

  /** The next byte that is no white space, not taken; undefined at the end. */
  function peek(): number | undefined {
    for (;;) {
      for (; at < window.length; at += 1) {
        const byte = window[at];
        if (byte !== 0x20 && byte !== 0x0a && byte !== 0x0d && byte !== 0x09) return byte;
      }
      if (!more(window.length)) return undefined;
    }
  }

  function take(byte: number): void {
    if (peek() !== byte) throw syntax();
    at += 1;
  }

  function value(): Uint8Array {
    const first = peek();
    if (first === undefined) throw syntax();
    const scalar = first !== OPEN_BRACE && first !== OPEN_BRACKET && first !== QUOTE;
    let start = at;
    let depth = 0;
    let inString = false;
    for (;;) {
      // More than once when a backslash ended the window and the next chunk is a single byte.
      while (at >= window.length) {
        const moved = start;
        if (!more(start)) throw syntax();
        start -= moved;
      }
      const byte = window[at];
      if (scalar) {
        if (byte === COMMA || byte === CLOSE_BRACE || byte === CLOSE_BRACKET) break;
        at += 1;
        continue;
      }
      at += 1;
      if (inString) {
        // A backslash takes the next byte with it; at the end of the window that one is the first of the next chunk.
        if (byte === BACKSLASH) at += 1;
        else if (byte === QUOTE) inString = false;
        else continue;
      } else if (byte === QUOTE) inString = true;
      else if (byte === OPEN_BRACE || byte === OPEN_BRACKET) depth += 1;
      else if (byte === CLOSE_BRACE || byte === CLOSE_BRACKET) depth -= 1;
      if (depth === 0 && !inString && (byte === QUOTE || byte === CLOSE_BRACE || byte === CLOSE_BRACKET))
        break;
    }
    if (at - start > VALUE_MAX_BYTES)
      throw corrupt(path, `holds a value of more than ${VALUE_MAX_BYTES} bytes`);
    return window.subarray(start, at);
  }

  function object(member: (key: string) => void): void {
    take(OPEN_BRACE);
    if (peek() === CLOSE_BRACE) {
      at += 1;
      return;
    }
    for (;;) {
      if (peek() !== QUOTE) throw syntax();
      const key = parseJson(path, value());
      if (typeof key !== "string") throw syntax();
      take(COLON);
      member(key);
      if (peek() === COMMA) {
        at += 1;
        continue;
      }
      take(CLOSE_BRACE);
      return;
    }
  }

  return {
    object,
    value,
    end() {
      if (peek() !== undefined) throw syntax();
    },
  };
}
