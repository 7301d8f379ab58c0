import type { JsonValue } from "../core/json.ts";

/**
 * Untrusted data as a block that its content can't leave: compact JSON in which every `<` is escaped, between a tag
 * pair that carries `token`, which the sender of the data can't know.
 */
export function frameUntrusted(name: string, token: string, data: JsonValue): { tag: string; block: string } {
  const tag = `${name}-${token}`;
  const json = JSON.stringify(data).replaceAll("<", "\\u003c");
  return { tag, block: `<${tag}>\n${json}\n</${tag}>` };
}
