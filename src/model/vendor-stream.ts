import type { JSONValue, TextStreamPart, ToolSet } from "ai";
import { BugError } from "../core/errors.ts";
import type { JsonObject, JsonValue } from "../core/json.ts";
import { MODEL_ANSWER_MAX_CHARS, MODEL_TOOL_CALLS_MAX } from "../core/limits.ts";
import type { ModelRequest, ModelResult, ReplyPart, StopReason, ToolCall } from "../core/ports/model.ts";
import { modelFailure } from "./failures.ts";
import { createThinkSplitter, type Split, unopenedThought } from "./think-tags.ts";

/**
 * Owns: one streamed answer from the vendor library's parts to a result.
 *
 * I1. A result is returned only when the provider itself said that it finished; a stream that just ends is an error.
 * I2. Tool arguments that are not valid JSON come back as the string that the model wrote, so that the tool host
 *     can report them and the model can correct itself.
 * I3. Reasoning goes into the reply's parts only, never to `onText`; also what a local server leaves in the text.
 */

type VendorPart = TextStreamPart<ToolSet>;
type Metadata = Record<string, Record<string, JSONValue | undefined>> | undefined;
/** A part that still grows. */
type Open = { type: "text" | "reasoning"; text: string; vendor?: JsonObject };

/**
 * @throws ModelError for an answer that ends early or is too long, and whatever the provider streamed as an error.
 */
export async function readAnswer(
  stream: AsyncIterable<VendorPart>,
  request: Pick<ModelRequest, "onText">,
  model: string,
  { splitThinking = false, thinksFirst = false }: { splitThinking?: boolean; thinksFirst?: boolean } = {},
): Promise<ModelResult> {
  let splitter = splitThinking ? createThinkSplitter({ thinksFirst }) : undefined;
  let text = "";
  const toolCalls: ToolCall[] = [];
  const parts: ReplyPart[] = [];
  const open = new Map<string, Open>();
  let chars = 0;

  const count = (piece: string) => {
    chars += piece.length;
    if (chars > MODEL_ANSWER_MAX_CHARS) {
      throw modelFailure("too_long", model, `limit ${MODEL_ANSWER_MAX_CHARS} characters`);
    }
  };
  const begin = (type: Open["type"], id: string, metadata: Metadata): Open => {
    const part: Open = { type, text: "", ...vendorData(metadata) };
    open.set(`${type} ${id}`, part);
    parts.push(part);
    return part;
  };
  // The newest metadata of a part is the whole: a signature comes with its last piece.
  const grow = (type: Open["type"], id: string, piece: string, metadata: Metadata) => {
    const part = open.get(`${type} ${id}`) ?? begin(type, id, undefined);
    part.text += piece;
    Object.assign(part, vendorData(metadata));
  };

  const write = (id: string, piece: string, metadata: Metadata) => {
    grow("text", id, piece, metadata);
    if (piece === "") return;
    text += piece;
    tell(request, piece);
  };
  const writeSplit = (id: string, splits: readonly Split[]) => {
    for (const each of splits) {
      if (each.type === "text") write(id, each.text, undefined);
      else grow("reasoning", id, each.text, undefined);
    }
  };
  let lastId = "";

  for await (const part of stream) {
    switch (part.type) {
      case "text-start":
        // Split, a text may come after its reasoning: it begins with its first piece.
        if (splitter === undefined) begin("text", part.id, part.providerMetadata);
        break;
      case "reasoning-start":
        begin("reasoning", part.id, part.providerMetadata);
        break;
      case "text-delta":
        count(part.text);
        lastId = part.id;
        if (splitter === undefined) write(part.id, part.text, part.providerMetadata);
        else writeSplit(part.id, splitter.push(part.text));
        break;
      case "reasoning-delta":
        count(part.text);
        // A server that tells it apart, before any text, does not begin the text with it.
        if (thinksFirst && lastId === "") splitter = createThinkSplitter();
        grow("reasoning", part.id, part.text, part.providerMetadata);
        break;
      case "text-end":
        if (splitter === undefined) grow("text", part.id, "", part.providerMetadata);
        break;
      case "reasoning-end":
        grow("reasoning", part.id, "", part.providerMetadata);
        break;
      case "tool-input-delta":
        count(part.delta);
        break;
      case "tool-call":
        if (toolCalls.length === MODEL_TOOL_CALLS_MAX) {
          throw modelFailure("too_long", model, `limit ${MODEL_TOOL_CALLS_MAX} tool calls`);
        }
        writeSplit(lastId, splitter?.end() ?? []);
        parts.push({ type: "tool_call", index: toolCalls.length, ...vendorData(part.providerMetadata) });
        toolCalls.push({ callId: part.toolCallId, name: part.toolName, input: part.input as JsonValue });
        break;
      case "error":
        throw part.error;
      case "finish": {
        const stopReason = stopReasonOf(part.finishReason, part.rawFinishReason, toolCalls.length > 0);
        if (stopReason === undefined) throw modelFailure("broken_off", model);
        writeSplit(lastId, splitter?.end() ?? []);
        if (splitter !== undefined) text = withoutUnopened(parts) ?? text;
        const { inputTokens, outputTokens } = part.totalUsage;
        return {
          text,
          toolCalls,
          stopReason,
          ...(inputTokens === undefined ? {} : { inputTokens }),
          ...(outputTokens === undefined ? {} : { outputTokens }),
          usageComplete: inputTokens !== undefined && outputTokens !== undefined,
          answeredBy: model,
          reply: { model, parts: parts.filter(says) },
        };
      }
    }
  }
  throw modelFailure("broken_off", model);
}

/**
 * Takes reasoning that nobody opened out of the first text of an answer in which no other was found; what then is the
 * whole text. It was heard already, but the message and the history are without it.
 */
function withoutUnopened(parts: ReplyPart[]): string | undefined {
  if (parts.some((part) => part.type === "reasoning" && part.text !== "")) return undefined;
  const at = parts.findIndex((part) => part.type === "text" && part.text !== "");
  const first = parts[at];
  const found = first?.type === "text" ? unopenedThought(first.text) : undefined;
  if (found === undefined) return undefined;
  parts.splice(at, 1, { type: "reasoning", text: found.reasoning }, { type: "text", text: found.text });
  return parts.map((part) => (part.type === "text" ? part.text : "")).join("");
}

/** A part without text and without vendor data says nothing. */
function says(part: ReplyPart): boolean {
  return (
    part.type === "tool_call" || part.text !== "" || (part.type === "reasoning" && part.vendor !== undefined)
  );
}

function tell({ onText }: Pick<ModelRequest, "onText">, piece: string): void {
  try {
    onText?.(piece);
  } catch (cause) {
    // Else it would pass for a fault of the provider.
    throw new BugError("a listener to a model's text failed", { cause });
  }
}

/** The vendor's data was JSON on the wire; the library's type also allows members that are undefined. */
function vendorData(metadata: Metadata): { vendor?: JsonObject } {
  if (metadata === undefined) return {};
  return { vendor: JSON.parse(JSON.stringify(metadata)) as JsonObject };
}

/** Undefined: the provider did not say that the model finished. */
function stopReasonOf(reason: string, raw: string | undefined, hasCalls: boolean): StopReason | undefined {
  switch (reason) {
    case "error":
    case "interrupted":
      return undefined;
    case "length":
      return "length";
    case "content-filter":
      // A refusal of the model itself ends like an ordinary answer, or is called one.
      return raw === undefined || raw === "stop" || raw === "refusal" ? "refusal" : "content_filter";
    default:
      // Some local servers say "stop" beside tool calls.
      if (hasCalls) return "tool_calls";
      if (reason === "stop") return "stop";
      return raw === undefined ? undefined : "other";
  }
}
