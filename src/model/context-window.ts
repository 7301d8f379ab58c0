import { utf8Bytes } from "../core/json.ts";
import type { InputMeasure, ModelMessage, ModelRequest, ToolDefinition } from "../core/ports/model.ts";
import { modelFailure } from "./failures.ts";

/**
 * Owns: how much of a request fits into a model's context window, and what is left out when it does not.
 *
 * I1. Left out are whole turns of the history, oldest first: a cut is always before a user message.
 * I2. The present turn (the last user message and all after it) is never cut; too large, it is refused by name.
 * I3. Counting is by estimate: four bytes a token (for plain English about four characters; other scripts have more
 *     bytes and more tokens), or what the provider counted for the call before where that is more; with a margin.
 */

/** Bytes of UTF-8 behind one token, when no provider has counted yet. */
const BYTES_PER_TOKEN = 4;
/** Part of the window that is left free for what the estimate misses. */
const MARGIN = 0.1;
/** Room for the answer: a quarter of the window, at most this. */
const ANSWER_MAX_TOKENS = 16_384;
/** Providers count an image by its area, up to about this. */
const IMAGE_BYTES = 1_600 * BYTES_PER_TOKEN;
/** A PDF is read as text and as pictures of its pages; a coarse share of its size. */
const DOCUMENT_SHARE = 0.25;
/** What a message costs besides its text. */
const MESSAGE_BYTES = 4 * BYTES_PER_TOKEN;

export interface FittedInput {
  readonly messages: readonly ModelMessage[];
  /** Bytes of system prompt, tools and these messages, by the same rule as the estimate. */
  readonly bytes: number;
}

/**
 * The request's messages, without the oldest turns where the window (in tokens; undefined: unknown) asks for it.
 *
 * @throws ModelError `model_rejected` when the present turn alone does not fit; it names the largest part.
 */
export function fitToWindow(
  request: Pick<ModelRequest, "system" | "tools" | "messages" | "measured">,
  windowTokens: number | undefined,
  model: string,
): FittedInput {
  const fixed = utf8Bytes(request.system) + toolBytes(request.tools);
  const sizes = request.messages.map(messageBytes);
  let bytes = sizes.reduce((sum, size) => sum + size, fixed);
  if (windowTokens === undefined) return { messages: request.messages, bytes };

  const perByte = tokensPerByte(request.measured);
  const answer = Math.min(windowTokens / 4, ANSWER_MAX_TOKENS);
  const budget = (windowTokens - answer) * (1 - MARGIN);
  const present = request.messages.findLastIndex((message) => message.role === "user");
  let from = 0;
  while (bytes * perByte > budget) {
    const next = request.messages.findIndex((message, at) => at > from && message.role === "user");
    if (next < 0 || from >= present) {
      const named = largestPart(request, sizes, Math.max(present, 0), fixed);
      const tokens = Math.ceil(named.bytes * perByte);
      throw modelFailure(
        "context_full",
        model,
        `it holds ${windowTokens} tokens; ${named.words} has about ${tokens}`,
      );
    }
    for (const size of sizes.slice(from, next)) bytes -= size;
    from = next;
  }
  return { messages: request.messages.slice(from), bytes };
}

function tokensPerByte(measured: InputMeasure | undefined): number {
  const estimate = 1 / BYTES_PER_TOKEN;
  if (measured === undefined || measured.bytes === 0) return estimate;
  // No text has more tokens than bytes; a provider that says so has counted something else.
  return Math.min(1, Math.max(estimate, measured.tokens / measured.bytes));
}

function toolBytes(tools: readonly ToolDefinition[]): number {
  return tools.length === 0 ? 0 : utf8Bytes(JSON.stringify(tools));
}

function messageBytes(message: ModelMessage): number {
  const text = MESSAGE_BYTES + utf8Bytes(message.content);
  switch (message.role) {
    case "user":
      return (message.attachments ?? []).reduce((sum, { kind, mediaType, data }) => {
        if (kind === "image") return sum + IMAGE_BYTES;
        return sum + Math.ceil(data.byteLength * (mediaType.startsWith("text/") ? 1 : DOCUMENT_SHARE));
      }, text);
    case "assistant": {
      const calls = message.toolCalls === undefined ? 0 : utf8Bytes(JSON.stringify(message.toolCalls));
      const reasoning = (message.reply?.parts ?? []).filter((part) => part.type === "reasoning");
      return text + calls + (reasoning.length === 0 ? 0 : utf8Bytes(JSON.stringify(reasoning)));
    }
    case "tool":
      return text + (message.images?.length ?? 0) * IMAGE_BYTES;
  }
}

/** The largest part of what can't be left out, in words for the person who asked. */
function largestPart(
  { messages }: Pick<ModelRequest, "messages">,
  sizes: readonly number[],
  from: number,
  fixed: number,
): { words: string; bytes: number } {
  let largest = { words: "the agent's instructions and tools", bytes: fixed };
  for (const [at, message] of messages.entries()) {
    const bytes = sizes[at] ?? 0;
    if (at < from || bytes <= largest.bytes) continue;
    largest = { words: partName(message), bytes };
  }
  return largest;
}

function partName(message: ModelMessage): string {
  switch (message.role) {
    case "user":
      return "the message to answer";
    case "assistant":
      return "what the agent said before its tools ran";
    case "tool":
      return `the result of the tool ${message.name}`;
  }
}
