import { inspect } from "node:util";
import { ModelError } from "../../src/core/errors.ts";
import type { Model, ModelRequest, ToolDefinition } from "../../src/core/ports/model.ts";
import type { LogFields, Logger } from "../../src/core/ports/platform.ts";
import { createModel, type ModelOptions, type ModelProvider } from "../../src/model/create.ts";
import { createFakeClock } from "./fake-clock.ts";
import { anthropicWire, openaiWire } from "./model-wire.ts";
import { googleWire, responsesWire } from "./model-wire-hosted.ts";

/** The five wire formats, the same questions to each. */

export const KEY = "sk-canary-5f1d2c3b4a";
export const PROMPT = "canary prompt about the merger";

export const echo: ToolDefinition = {
  name: "echo",
  description: "Says it again.",
  inputSchema: { type: "object", properties: { text: { type: "string" } }, required: ["text"] },
};

export const KINDS = ["anthropic", "responses", "chat", "google", "compatible"] as const;
export type Kind = (typeof KINDS)[number];

export const NAMES: Record<Kind, string> = {
  anthropic: "anthropic:claude-sonnet-4-5",
  responses: "openai:gpt-5",
  chat: "openai_chat:gpt-5",
  google: "google:gemini-3-pro-preview",
  compatible: "box:local:7b",
};

/** The path that each is asked at below its base URL. */
export const PATHS: Record<Kind, string> = {
  anthropic: "/v1/messages",
  responses: "/v1/responses",
  chat: "/v1/chat/completions",
  google: "/v1/models/gemini-3-pro-preview:streamGenerateContent",
  compatible: "/v1/chat/completions",
};

/** Every provider at one address. */
export function providersAt(url: string, box: Partial<ModelProvider> = {}): ModelProvider[] {
  const baseUrl = `${url}/v1`;
  return [
    { id: "anthropic", type: "anthropic", apiKey: KEY, baseUrl },
    { id: "openai", type: "openai", apiKey: KEY, baseUrl },
    { id: "google", type: "google", apiKey: KEY, baseUrl },
    { id: "box", type: "openai_compat", apiKey: KEY, baseUrl, ...box },
  ];
}

export interface RecordingLogger extends Logger {
  readonly lines: { message: string; fields: LogFields | undefined }[];
}

export function recordingLogger(): RecordingLogger {
  const lines: RecordingLogger["lines"] = [];
  const log = (message: string, fields?: LogFields) => void lines.push({ message, fields });
  return { lines, debug: log, info: log, warn: log, error: log };
}

export function modelAt(
  url: string,
  kind: Kind,
  options: Partial<ModelOptions> & { box?: Partial<ModelProvider> } = {},
): Model {
  const { box, ...rest } = options;
  return createModel({
    name: NAMES[kind],
    providers: providersAt(url, box),
    clock: createFakeClock(),
    logger: recordingLogger(),
    ...rest,
  });
}

export function request(over: Partial<ModelRequest> = {}): ModelRequest {
  return {
    system: "You are terse.",
    messages: [{ role: "user", content: PROMPT }],
    tools: [echo],
    signal: new AbortController().signal,
    ...over,
  };
}

export async function failure(call: Promise<unknown>): Promise<ModelError> {
  const error = await call.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  if (!(error instanceof ModelError)) throw new Error(`expected a ModelError, got ${inspect(error)}`);
  return error;
}

/** Whole answers in each format. */
export const WIRE: Record<
  Kind,
  {
    text(pieces: string[]): string[];
    /** Calls of `echo`, in pieces of arguments where the format has them. */
    tools(...calls: { id: string; pieces: string[] }[]): string[];
    cutOff(pieces: string[]): string[];
    filtered(pieces: string[]): string[];
    unfinished(pieces: string[]): string[];
    tokens: { inputTokens: number; outputTokens: number };
  }
> = {
  anthropic: {
    text: (pieces) => [
      anthropicWire.start(),
      ...anthropicWire.text(0, pieces),
      ...anthropicWire.finish("end_turn"),
    ],
    tools: (...calls) => [
      anthropicWire.start(),
      ...calls.flatMap(({ id, pieces }, at) => anthropicWire.tool(at, id, "echo", pieces)),
      ...anthropicWire.finish("tool_use"),
    ],
    cutOff: (pieces) => [
      anthropicWire.start(),
      ...anthropicWire.text(0, pieces),
      ...anthropicWire.finish("max_tokens"),
    ],
    filtered: (pieces) => [
      anthropicWire.start(),
      ...anthropicWire.text(0, pieces),
      ...anthropicWire.finish("refusal"),
    ],
    unfinished: (pieces) => [anthropicWire.start(), ...anthropicWire.text(0, pieces)],
    tokens: { inputTokens: 11, outputTokens: 7 },
  },
  responses: {
    text: (pieces) => [
      responsesWire.start(),
      ...responsesWire.text(0, "msg_1", pieces),
      ...responsesWire.finish(),
    ],
    tools: (...calls) => [
      responsesWire.start(),
      ...calls.flatMap(({ id, pieces }, at) => responsesWire.tool(at, id, "echo", pieces)),
      ...responsesWire.finish(),
    ],
    cutOff: (pieces) => [
      responsesWire.start(),
      ...responsesWire.text(0, "msg_1", pieces),
      ...responsesWire.finish("max_output_tokens"),
    ],
    filtered: (pieces) => [
      responsesWire.start(),
      ...responsesWire.text(0, "msg_1", pieces),
      ...responsesWire.finish("content_filter"),
    ],
    unfinished: (pieces) => [responsesWire.start(), ...responsesWire.text(0, "msg_1", pieces)],
    tokens: { inputTokens: 31, outputTokens: 5 },
  },
  chat: chatWire(),
  compatible: chatWire(),
  google: {
    text: (pieces) => [...googleWire.text(pieces), ...googleWire.finish("STOP")],
    tools: (...calls) => [
      ...calls.flatMap(({ pieces }) => googleWire.tool("echo", JSON.parse(pieces.join("")))),
      ...googleWire.finish("STOP"),
    ],
    cutOff: (pieces) => [...googleWire.text(pieces), ...googleWire.finish("MAX_TOKENS")],
    filtered: (pieces) => [...googleWire.text(pieces), ...googleWire.finish("SAFETY")],
    unfinished: (pieces) => googleWire.text(pieces),
    tokens: { inputTokens: 41, outputTokens: 6 },
  },
};

function chatWire(): (typeof WIRE)[Kind] {
  return {
    text: (pieces) => [...openaiWire.text(pieces), ...openaiWire.finish("stop")],
    tools: (...calls) => [
      ...calls.flatMap(({ id, pieces }, at) => openaiWire.tool(id, "echo", pieces, at)),
      ...openaiWire.finish("tool_calls"),
    ],
    cutOff: (pieces) => [...openaiWire.text(pieces), ...openaiWire.finish("length")],
    filtered: (pieces) => [...openaiWire.text(pieces), ...openaiWire.finish("content_filter")],
    unfinished: (pieces) => openaiWire.text(pieces),
    tokens: { inputTokens: 21, outputTokens: 9 },
  };
}
