import { isJsonObject, type JsonValue } from "../core/json.ts";
import type { Environment } from "./environment.ts";

/** A variable that a text refers to and that is not set. */
export interface MissingVariable {
  readonly path: readonly PropertyKey[];
  readonly name: string;
}

/** `$${…}` stands for a literal `${…}`; then a name with an optional default. Anything else in `${}` is literal. */
const REFERENCE = /\$(\$\{)|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}/g;

/** The first `${` of each text inside a value that is neither a reference nor escaped, up to its brace if it has one. */
export function literalReferences(
  value: JsonValue,
  path: readonly PropertyKey[],
): { readonly path: readonly PropertyKey[]; readonly text: string }[] {
  if (typeof value === "string") {
    const text = /\$\{[^}]*\}?/.exec(value.replace(REFERENCE, " "))?.[0];
    return text === undefined ? [] : [{ path, text }];
  }
  if (Array.isArray(value)) return value.flatMap((item, at) => literalReferences(item, [...path, at]));
  if (!isJsonObject(value)) return [];
  return Object.entries(value).flatMap(([key, member]) => literalReferences(member, [...path, key]));
}

/**
 * Replaces `${NAME}` and `${NAME:-default}` in every text inside a value, keys excepted. A default counts when the
 * variable is not set or empty. What is replaced is not looked at again.
 */
export function resolveReferences(
  value: JsonValue,
  env: Environment,
  path: readonly PropertyKey[] = [],
): {
  value: JsonValue;
  missing: readonly MissingVariable[];
  /** What was put in the place of references, as often as it was; nothing empty. */
  substituted: readonly string[];
} {
  const missing: MissingVariable[] = [];
  const substituted: string[] = [];
  const text = (source: string, at: readonly PropertyKey[]) =>
    source.replace(REFERENCE, (whole, escaped?: string, name?: string, fallback?: string) => {
      if (escaped !== undefined || name === undefined) return escaped ?? whole;
      const found = env[name];
      const stands = fallback !== undefined && (found === undefined || found === "") ? fallback : found;
      if (stands === undefined) missing.push({ path: at, name });
      else if (stands !== "") substituted.push(stands);
      return stands ?? whole;
    });
  const walk = (node: JsonValue, at: readonly PropertyKey[]): JsonValue => {
    if (typeof node === "string") return text(node, at);
    if (Array.isArray(node)) return node.map((item, index) => walk(item, [...at, index]));
    if (!isJsonObject(node)) return node;
    return Object.fromEntries(Object.entries(node).map(([key, member]) => [key, walk(member, [...at, key])]));
  };
  return { value: walk(value, path), missing, substituted };
}
