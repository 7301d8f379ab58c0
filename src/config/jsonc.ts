import type { JsonValue } from "../core/json.ts";

/**
 * Reads JSON with comments and trailing commas. Exact otherwise: one value, no duplicate keys, nothing after it.
 * (The runtime's own reader takes the last of two equal keys and ignores what follows the value.)
 */

/** The text is not JSON. The message names line and column and never quotes the text, which may hold secrets. */
export class JsoncError extends Error {
  override readonly name = "JsoncError";
}

const MAX_DEPTH = 64;
const NUMBER = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
const STRING = /"(?:[^"\\]|\\.)*"/y;
const WORD = /[A-Za-z]+/y;
const BLANK = /(?:[ \t\r\n]|\/\/[^\n]*|\/\*[\s\S]*?\*\/)+/y;
const WORDS: ReadonlyMap<string, JsonValue> = new Map<string, JsonValue>([
  ["true", true],
  ["false", false],
  ["null", null],
]);

export function parseJsonc(text: string): JsonValue {
  const source = text.charCodeAt(0) === 0xfeff ? text.slice(1) : text;
  let at = 0;

  const fail = (what: string, where = at): never => {
    const before = source.slice(0, where).split("\n");
    throw new JsoncError(`line ${before.length}, column ${(before.at(-1) ?? "").length + 1}: ${what}`);
  };
  const match = (pattern: RegExp): string | undefined => {
    pattern.lastIndex = at;
    const found = pattern.exec(source)?.[0];
    if (found !== undefined) at += found.length;
    return found;
  };
  const blank = () => {
    match(BLANK);
    if (source.startsWith("/*", at)) fail("a comment that is never closed");
  };
  const take = (char: string): boolean => {
    blank();
    if (source[at] !== char) return false;
    at += 1;
    return true;
  };

  const string = (): string => {
    const start = at;
    const raw = match(STRING);
    if (raw === undefined)
      return fail(source[at] === '"' ? "a string that is never closed" : "expected a string");
    try {
      return JSON.parse(raw) as string;
    } catch {
      return fail("a string with a raw control character or an unknown escape", start);
    }
  };

  const members = (depth: number): JsonValue => {
    // Object.fromEntries makes own members of every name, `__proto__` too.
    const entries = new Map<string, JsonValue>();
    while (!take("}")) {
      blank();
      const start = at;
      const key = string();
      if (entries.has(key)) fail(`the key ${JSON.stringify(key)} is there twice`, start);
      if (!take(":")) fail('expected ":" after a key');
      entries.set(key, value(depth));
      if (take(",")) continue;
      if (take("}")) break;
      fail('expected "," or "}"');
    }
    return Object.fromEntries(entries);
  };

  const items = (depth: number): JsonValue => {
    const list: JsonValue[] = [];
    while (!take("]")) {
      list.push(value(depth));
      if (take(",")) continue;
      if (take("]")) break;
      fail('expected "," or "]"');
    }
    return list;
  };

  const value = (depth: number): JsonValue => {
    if (depth > MAX_DEPTH) fail(`more than ${MAX_DEPTH} levels`);
    if (take("{")) return members(depth + 1);
    if (take("[")) return items(depth + 1);
    if (source[at] === '"') return string();
    const number = match(NUMBER);
    if (number !== undefined) return Number(number);
    const start = at;
    const word = match(WORD);
    const constant = word === undefined ? undefined : WORDS.get(word);
    return constant === undefined
      ? fail(at >= source.length ? "the text ends where a value is expected" : "expected a value", start)
      : constant;
  };

  const result = value(0);
  blank();
  if (at < source.length) fail("something follows the value");
  return result;
}
