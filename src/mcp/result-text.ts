import type { CallToolResult } from "@modelcontextprotocol/sdk/types.js";
import { canonicalJson } from "../core/json.ts";
import { TOOL_IMAGE_MAX_BYTES, TOOL_RESULT_MAX_CHARS } from "../core/limits.ts";

type Content = CallToolResult["content"][number];

/**
 * A tool's result as the text that the model reads: text parts joined by newlines, one line for each part that is
 * not text, the structured content unless a text says the same. Not cut yet: a secret at the cut would be half of one.
 */
export function resultText(result: Pick<CallToolResult, "content" | "structuredContent">): string {
  const parts = result.content.map(partText).filter((part) => part !== "");
  const { structuredContent } = result;
  if (structuredContent !== undefined && !result.content.some((part) => saysTheSame(part, structuredContent)))
    parts.push(JSON.stringify(structuredContent));
  return parts.length === 0 ? "(no content)" : parts.join("\n");
}

/** Servers repeat structured content as text for clients that don't know it, often without its only key. */
function saysTheSame(part: Content, structured: Readonly<Record<string, unknown>>): boolean {
  if (part.type !== "text") return false;
  const values = Object.values(structured);
  const candidates: unknown[] = values.length === 1 ? [structured, values[0]] : [structured];
  const said = jsonOf(part.text);
  return candidates.some(
    (value) => value === part.text || (said !== undefined && canonicalJson(value) === canonicalJson(said)),
  );
}

/** The value of a JSON text; undefined when it is none. */
function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/**
 * Cuts a text to the cap, which counts what is said of the cut and the `end` that follows it whole. Half a surrogate
 * pair, from the cut or from the server, is replaced: providers refuse it.
 */
export function capText(text: string, end = ""): string {
  if (text.length + end.length <= TOOL_RESULT_MAX_CHARS) return `${text}${end}`.toWellFormed();
  const note = `\n[cut: the result had ${text.length} characters]${end}`;
  return `${text.slice(0, TOOL_RESULT_MAX_CHARS - note.length)}${note}`.toWellFormed();
}

function partText(part: Content): string {
  switch (part.type) {
    case "text":
      return part.text;
    case "image":
    case "audio": {
      const bytes = decodedBytes(part.data);
      const tooLarge = part.type === "image" && bytes > TOOL_IMAGE_MAX_BYTES ? ", too large to be shown" : "";
      return `[${part.type}: ${part.mimeType}, ${bytes} bytes${tooLarge}]`;
    }
    case "resource_link":
      return `[resource: ${part.name} ${part.uri}]`;
    case "resource":
      return "text" in part.resource
        ? `[resource: ${part.resource.uri}]\n${part.resource.text}`
        : `[resource: ${part.resource.uri}, ${decodedBytes(part.resource.blob)} bytes]`;
  }
}

function decodedBytes(base64: string): number {
  return Math.floor((base64.replace(/=+$/, "").length * 3) / 4);
}
