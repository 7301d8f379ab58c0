import { isJsonObject, type JsonObject } from "../core/json.ts";
import { nearestName } from "./nearest.ts";
import { type AllowedWords, dottedPath } from "./problems.ts";
import { literalReferences } from "./references.ts";

/**
 * What in an entry of mcp.json has no effect although it was probably meant to have one. The file is shared with other
 * hosts, so keys that are none of ours are no error; a filter of tools that is mistyped would leave all of them on.
 *
 * I1. A value may be secret: none is quoted, but for the `${…}` of other hosts, which holds a name.
 */

/** What other hosts call a key of ours, where no nearness of the words tells it. */
const OTHER_WORDS: Readonly<Record<string, string>> = {
  disabledTools: "denyTools",
  excludeTools: "denyTools",
  enabledTools: "allowTools",
  includeTools: "allowTools",
};

/** The keys of an entry, and of its `oauth`, that mean nothing here but resemble one that does. */
export function keyWarnings(
  name: string,
  entry: JsonObject,
  allowed: AllowedWords,
): { path: string; message: string }[] {
  const resembling = (value: JsonObject, path: readonly string[]) => {
    const known = allowed.keysAt(path);
    return Object.keys(value).flatMap((key) => {
      if (known.includes(key)) return [];
      const meant =
        (Object.hasOwn(OTHER_WORDS, key) ? OTHER_WORDS[key] : undefined) ?? nearestName(key, known);
      if (meant === undefined) return [];
      return [{ path: dottedPath([...path, key]), message: `has no effect here; did you mean "${meant}"?` }];
    });
  };
  const at = ["mcpServers", name];
  const { oauth } = entry;
  return [...resembling(entry, at), ...(isJsonObject(oauth) ? resembling(oauth, [...at, "oauth"]) : [])];
}

/** The `${…}` in a part of an entry that are no references of ours, such as VS Code's, and reach the server as they are. */
export function literalWarnings(
  value: Parameters<typeof literalReferences>[0],
  path: readonly PropertyKey[],
): { path: string; message: string }[] {
  return literalReferences(value, path).map((literal) => {
    const variable = /^\$\{env:([A-Za-z_]\w*)\}$/.exec(literal.text)?.[1];
    const isName = /^\$\{(env|input|config|command):[\w.-]{1,64}\}$/.test(literal.text);
    const instead = variable === undefined ? `\${NAME} for a variable` : `\${${variable}} for the variable`;
    return {
      path: dottedPath(literal.path),
      message: `${isName ? literal.text : "a ${"} is no reference here and is taken literally; write ${instead}, or $\${…} if it is meant so`,
    };
  });
}
