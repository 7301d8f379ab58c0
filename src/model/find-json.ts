import { isJsonObject, type JsonObject, type JsonValue } from "../core/json.ts";

/** Starts that are tried before giving up, so that a text full of brackets stays cheap. */
const MAX_STARTS = 32;

/** The first JSON object inside a text of words; undefined when there is none. */
export function findJsonObject(text: string): JsonObject | undefined {
  for (const value of jsonIn(text, "{")) if (isJsonObject(value)) return value;
  return undefined;
}

/** The text as JSON when all of it is, else the first object or array inside it. */
export function findJson(text: string): JsonValue | undefined {
  const whole = parse(text);
  if (whole !== undefined) return whole;
  for (const value of jsonIn(text, "{[")) return value;
  return undefined;
}

function* jsonIn(text: string, starts: string): Generator<JsonValue> {
  let tried = 0;
  for (let at = 0; at < text.length && tried < MAX_STARTS; at += 1) {
    if (!starts.includes(text.charAt(at))) continue;
    tried += 1;
    const end = balancedEnd(text, at);
    const value = end === undefined ? undefined : parse(text.slice(at, end));
    if (value !== undefined) yield value;
  }
}

/** The index after the bracket that closes the one at `start`, strings skipped; undefined when it stays open. */
function balancedEnd(text: string, start: number): number | undefined {
  let depth = 0;
  let inString = false;
  for (let at = start; at < text.length; at += 1) {
    const char = text.charAt(at);
    if (inString) {
      if (char === "\\") at += 1;
      else if (char === '"') inString = false;
    } else if (char === '"') inString = true;
    else if (char === "{" || char === "[") depth += 1;
    else if (char === "}" || char === "]") {
      depth -= 1;
      if (depth === 0) return at + 1;
    }
  }
  return undefined;
}

function parse(text: string): JsonValue | undefined {
  try {
    return JSON.parse(text) as JsonValue;
  } catch {
    return undefined;
  }
}
