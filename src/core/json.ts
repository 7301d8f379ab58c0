/** Any value that JSON can carry. */
export type JsonValue = null | boolean | number | string | JsonValue[] | { [key: string]: JsonValue };
export type JsonObject = { [key: string]: JsonValue };

/**
 * Canonical JSON (store-format.md §1): at every level integer-like keys come first in numeric order, then the
 * others by UTF-16 code unit; array order is kept; no white space; `-0` is `0`; non-finite numbers are `null`;
 * `__proto__` is an ordinary key. Services compute payload hashes by the same rule.
 *
 * `undefined` members are left out, as JSON does.
 */
export function canonicalJson(value: unknown): string {
  if (value === null || value === undefined) return "null";
  switch (typeof value) {
    case "string":
    case "boolean":
      return JSON.stringify(value);
    case "number":
      return Number.isFinite(value) ? JSON.stringify(value === 0 ? 0 : value) : "null";
    case "object":
      break;
    default:
      return "null";
  }
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join(",")}]`;
  const source = value as Record<string, unknown>;
  const parts: string[] = [];
  for (const key of Object.keys(source).sort(compareKeys)) {
    const member = source[key];
    if (member === undefined) continue;
    parts.push(`${JSON.stringify(key)}:${canonicalJson(member)}`);
  }
  return `{${parts.join(",")}}`;
}

/** The largest array index of the ECMAScript standard, 2^32 - 2: only keys up to it are ordered as integers. */
const LARGEST_INTEGER_KEY = 4294967294;

function integerKey(key: string): number | undefined {
  if (!/^(0|[1-9][0-9]{0,9})$/.test(key)) return undefined;
  const value = Number(key);
  return value <= LARGEST_INTEGER_KEY ? value : undefined;
}

function compareKeys(a: string, b: string): number {
  const left = integerKey(a);
  const right = integerKey(b);
  if (left !== undefined && right !== undefined) return left - right;
  if (left !== undefined) return -1;
  if (right !== undefined) return 1;
  return a < b ? -1 : a > b ? 1 : 0;
}

/** The on-disk form of every JSON file but snapshots: two-space indented, one trailing newline (store-format.md §1). */
export function fileJson(value: unknown): string {
  return `${JSON.stringify(value, null, 2)}\n`;
}

/** UTF-8 size of a string in bytes. */
export function utf8Bytes(text: string): number {
  return Buffer.byteLength(text, "utf8");
}

export function isJsonObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
