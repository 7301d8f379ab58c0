import { ModelError } from "../core/errors.ts";
import { isJsonObject, type JsonObject, type JsonValue } from "../core/json.ts";
import type { Model, ModelMessage, ModelRequest, ModelResult, ToolDefinition } from "../core/ports/model.ts";
import { findJson, findJsonObject } from "./find-json.ts";
import { checkInputs, inputsOf } from "./inputs.ts";

/**
 * The built-in `demo:<anything>` model: no network, no key, no randomness. The same request gives the same answer.
 *
 * 1. After tool results it answers with one line per result: `<tool>: <text>` or `<tool> failed: <text>`.
 * 2. Given no tools and a text with data in a named tag pair (the synthesis prompt), it summarises the data: the
 *    member `summary` of the JSON, else all its strings, else the JSON itself.
 * 3. When the last user text names an available tool (`_` and `-` may be written as spaces), it calls that tool, the
 *    first one named; its arguments are the JSON object in the text (`call echo with {"text": "hi"}`), else the
 *    required properties of the input schema, strings filled with the user's own words.
 * 4. Otherwise it repeats what it was told and names its tools.
 */
export function createDemoModel(name: string): Model {
  return {
    name,
    async call(request) {
      checkInputs(request, inputsOf({ kind: "demo" }), name);
      const answer = decide(request);
      for (const delta of deltas(answer.text)) {
        // A turn of the event loop between pieces, so that an abort can arrive.
        await new Promise<void>((resolve) => setImmediate(resolve));
        if (request.signal.aborted) throw new ModelError("model_failed", `${name}: the call was aborted`);
        request.onText?.(delta);
      }
      return answer;
    },
  };
}

const SUMMARY_MAX_CHARS = 2_000;

function decide(request: ModelRequest): ModelResult {
  const results = trailingResults(request.messages);
  if (results.length > 0) {
    return say(
      results.map((r) => `${r.name}${r.isError ? " failed" : ""}: ${clip(r.content.trim())}`).join("\n"),
    );
  }
  const asked = request.messages.findLast((message) => message.role === "user")?.content ?? "";
  if (request.tools.length === 0) {
    const data = delimited(asked);
    return say(data === undefined ? `Demo model. You said: ${clip(asked)}` : clip(summarise(data)));
  }
  const named = namedTool(asked, request.tools);
  if (named === undefined) {
    const names = request.tools.map((tool) => tool.name).join(", ");
    return say(`Demo model. You said: ${clip(asked)}\nI can call: ${names}.`);
  }
  const input = findJsonObject(asked) ?? deriveInput(named.tool.inputSchema, named.rest || asked);
  const earlier = request.messages.filter((message) => message.role === "tool").length;
  return {
    text: "",
    toolCalls: [{ callId: `demo-${earlier + 1}`, name: named.tool.name, input }],
    stopReason: "tool_calls",
  };
}

function say(text: string): ModelResult {
  return { text, toolCalls: [], stopReason: "stop" };
}

function trailingResults(messages: readonly ModelMessage[]): Extract<ModelMessage, { role: "tool" }>[] {
  const results: Extract<ModelMessage, { role: "tool" }>[] = [];
  for (const message of messages.toReversed()) {
    if (message.role !== "tool") break;
    results.unshift(message);
  }
  return results;
}

/** The first tool named in the text, the longest name where two begin together, and the text without the naming. */
function namedTool(text: string, tools: readonly ToolDefinition[]) {
  let best: { tool: ToolDefinition; at: number; length: number } | undefined;
  for (const tool of tools) {
    const words = tool.name.split(/[_-]+/).filter((word) => word !== "");
    if (words.length === 0) continue;
    const pattern = new RegExp(
      `(?<![A-Za-z0-9_-])${words.map(escapePattern).join("[_\\s-]+")}(?![A-Za-z0-9_-])`,
      "i",
    );
    const match = pattern.exec(text);
    if (match === null) continue;
    const closer = best === undefined || match.index < best.at;
    const longer = match.index === best?.at && match[0].length > best.length;
    if (closer || longer) best = { tool, at: match.index, length: match[0].length };
  }
  if (best === undefined) return undefined;
  const after = text.slice(best.at + best.length).replace(/^\s*(with|to|for|on|about)?[\s:,]*/i, "");
  return { tool: best.tool, rest: after.trim() };
}

function escapePattern(word: string): string {
  return word.replace(/[^A-Za-z0-9]/g, "\\$&");
}

function deriveInput(schema: JsonObject, words: string): JsonObject {
  const required = Array.isArray(schema.required) ? schema.required : [];
  const properties = isJsonObject(schema.properties) ? schema.properties : {};
  const input: JsonObject = {};
  for (const key of required) {
    if (typeof key !== "string") continue;
    const property = properties[key];
    input[key] = deriveValue(isJsonObject(property) ? property : {}, words);
  }
  return input;
}

function deriveValue(property: JsonObject, words: string): JsonValue {
  if (property.default !== undefined) return property.default;
  if (property.const !== undefined) return property.const;
  if (Array.isArray(property.enum) && property.enum[0] !== undefined) return property.enum[0];
  switch (property.type) {
    case "number":
    case "integer":
      return typeof property.minimum === "number" ? property.minimum : 1;
    case "boolean":
      return false;
    case "array":
      return [];
    case "object":
      return deriveInput(property, words);
    default:
      return words;
  }
}

/**
 * The longest text between `<name…>` and its `</name>` that holds neither of the two again, so that a mention of
 * the tag in the instructions before or after is not taken for the data; undefined when there is no such pair.
 */
function delimited(text: string): string | undefined {
  const pairs = text.matchAll(/<([A-Za-z][\w.:-]*)(?:\s[^>]*)?>((?:(?!<\/?\1\b)[\s\S])*)<\/\1>/g);
  const found = [...pairs].map((pair) => pair[2] ?? "");
  return found.toSorted((a, b) => b.length - a.length)[0]?.trim();
}

function summarise(data: string): string {
  const value = findJson(data);
  if (value === undefined) return data;
  if (isJsonObject(value) && typeof value.summary === "string") return value.summary;
  const found: string[] = [];
  collectStrings(value, found);
  return found.length > 0 ? found.join("; ") : JSON.stringify(value);
}

function collectStrings(value: JsonValue, into: string[]): void {
  if (typeof value === "string") {
    if (value.trim() !== "") into.push(value);
  } else if (typeof value === "object" && value !== null) {
    for (const member of Object.values(value)) collectStrings(member, into);
  }
}

function clip(text: string): string {
  return text.length > SUMMARY_MAX_CHARS ? `${text.slice(0, SUMMARY_MAX_CHARS)}…` : text;
}

/** Pieces of whole words of about 16 characters; joined they are the text. */
function deltas(text: string): string[] {
  return text.match(/[\s\S]{1,16}\S*\s*/g) ?? [];
}
