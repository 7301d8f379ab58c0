import type { LanguageModel } from "ai";
import { ModelError } from "../core/errors.ts";
import type { JsonValue } from "../core/json.ts";
import { isLoopbackUrl } from "../core/mcp-servers.ts";
import type { Model, ModelRequest, ModelResult, StopReason, ToolCall } from "../core/ports/model.ts";
import type { Logger } from "../core/ports/platform.ts";
import type { ResolvedModel } from "./resolve.ts";
import { toModelError } from "./vendor-errors.ts";
import { vendorMessages } from "./vendor-messages.ts";

/**
 * Owns: one call of a real provider through the `ai` library. Does not own: retries (the caller decides, and may
 * have streamed text to a person already), running tools, history.
 *
 * I1. Exactly one HTTP request per call.
 * I2. A result is returned only when the provider itself said that it finished; a stream that just ends is an error.
 * I3. Tool arguments that are not valid JSON come back as the string that the model wrote, so that the tool host
 *     can report them and the model can correct itself.
 */

export type FetchLike = (input: string | URL | Request, init?: RequestInit) => Promise<Response>;

export interface VendorModelOptions {
  readonly name: string;
  readonly resolved: Exclude<ResolvedModel, { kind: "demo" }>;
  readonly fetch: FetchLike;
  readonly logger: Logger;
}

type VendorLanguageModel = Exclude<LanguageModel, string>;

/** A model behind Anthropic's API or an OpenAI-compatible one. The libraries are loaded by the first call. */
export function createVendorModel({ name, resolved, fetch: send, logger }: VendorModelOptions): Model {
  return {
    name,
    async call(request) {
      const exchange = { answered: false };
      const observed: FetchLike = async (input, init) => {
        const url = input instanceof Request ? input.url : String(input);
        // A local server is reached directly: a proxy from the environment would neither find it nor may see it.
        const direct = isLoopbackUrl(url) ? { proxy: false as const } : {};
        const response = await send(input, { ...init, ...direct });
        exchange.answered = true;
        return response;
      };
      try {
        const result = await stream(await loadModel(resolved, observed), request, name);
        logger.debug("model call finished", {
          model: name,
          stopReason: result.stopReason,
          inputTokens: result.inputTokens,
          outputTokens: result.outputTokens,
        });
        return result;
      } catch (error) {
        if (request.signal.aborted) throw aborted(name);
        throw toModelError(error, name, exchange);
      }
    },
  };
}

async function loadModel(
  resolved: VendorModelOptions["resolved"],
  send: FetchLike,
): Promise<VendorLanguageModel> {
  // Bun's fetch type has a `preconnect` member that the libraries never call.
  const fetchFunction = Object.assign(send, { preconnect: fetch.preconnect });
  if (resolved.kind === "anthropic") {
    const { createAnthropic } = await import("@ai-sdk/anthropic");
    const provider = createAnthropic({
      apiKey: resolved.apiKey,
      // Always given, so that an ANTHROPIC_BASE_URL of the environment can't redirect the key.
      baseURL: resolved.baseUrl ?? "https://api.anthropic.com/v1",
      fetch: fetchFunction,
    });
    return provider(resolved.model);
  }
  const { createOpenAICompatible } = await import("@ai-sdk/openai-compatible");
  const provider = createOpenAICompatible({
    name: resolved.provider,
    baseURL: resolved.baseUrl,
    includeUsage: true,
    fetch: fetchFunction,
    ...(resolved.apiKey === undefined ? {} : { apiKey: resolved.apiKey }),
  });
  return provider(resolved.model);
}

async function stream(model: VendorLanguageModel, request: ModelRequest, name: string): Promise<ModelResult> {
  const { jsonSchema, streamText, tool } = await import("ai");
  // The library prints warnings to the console unless this is false; we print through our logger only.
  Object.assign(globalThis, { AI_SDK_LOG_WARNINGS: false });
  request.signal.throwIfAborted();
  const tools = Object.fromEntries(
    request.tools.map((each) => [
      each.name,
      tool({ description: each.description, inputSchema: jsonSchema(each.inputSchema) }),
    ]),
  );
  const result = streamText({
    model,
    ...(request.system === "" ? {} : { instructions: request.system }),
    messages: vendorMessages(request.messages),
    ...(request.tools.length === 0 ? {} : { tools }),
    abortSignal: request.signal,
    maxRetries: 0,
    // The default prints the error, with the request in it, to the console.
    onError: () => {},
  });

  let text = "";
  const toolCalls: ToolCall[] = [];
  for await (const part of result.stream) {
    switch (part.type) {
      case "text-delta":
        if (part.text === "") break;
        text += part.text;
        request.onText?.(part.text);
        break;
      case "tool-call":
        toolCalls.push({ callId: part.toolCallId, name: part.toolName, input: part.input as JsonValue });
        break;
      case "error":
        throw part.error;
      case "abort":
        throw aborted(name);
      case "finish": {
        const { inputTokens, outputTokens } = part.totalUsage;
        return {
          text,
          toolCalls,
          stopReason: stopReason(part.finishReason, part.rawFinishReason, toolCalls.length > 0, name),
          ...(inputTokens === undefined ? {} : { inputTokens }),
          ...(outputTokens === undefined ? {} : { outputTokens }),
        };
      }
    }
  }
  throw new ModelError("model_failed", `${name}: the answer ended before the model finished`);
}

function stopReason(reason: string, raw: string | undefined, hasCalls: boolean, name: string): StopReason {
  if (raw === undefined || reason === "error" || reason === "interrupted") {
    throw new ModelError("model_failed", `${name}: the answer ended before the model finished`);
  }
  if (reason === "length") return "length";
  if (reason === "content-filter") return "content_filter";
  // Some local servers say "stop" beside tool calls.
  if (hasCalls) return "tool_calls";
  return reason === "stop" ? "stop" : "other";
}

function aborted(name: string): ModelError {
  return new ModelError("model_failed", `${name}: the call was aborted`);
}
