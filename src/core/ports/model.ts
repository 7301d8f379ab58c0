import type { JsonObject, JsonValue } from "../json.ts";

/** One model call: text streams through `onText`, tool calls come back unexecuted. Vendor shapes stop behind it. */

export interface ToolDefinition {
  readonly name: string;
  readonly description: string;
  readonly inputSchema: JsonObject;
}

export interface ToolCall {
  readonly callId: string;
  readonly name: string;
  readonly input: JsonValue;
}

export type ModelMessage =
  | { readonly role: "user"; readonly content: string }
  | { readonly role: "assistant"; readonly content: string; readonly toolCalls?: readonly ToolCall[] }
  | {
      readonly role: "tool";
      readonly callId: string;
      readonly name: string;
      readonly content: string;
      readonly isError: boolean;
    };

export interface ModelRequest {
  readonly system: string;
  readonly messages: readonly ModelMessage[];
  readonly tools: readonly ToolDefinition[];
  readonly signal: AbortSignal;
  readonly onText?: (delta: string) => void;
}

export type StopReason = "stop" | "tool_calls" | "length" | "content_filter" | "other";

export interface ModelResult {
  readonly text: string;
  readonly toolCalls: readonly ToolCall[];
  readonly stopReason: StopReason;
  readonly inputTokens?: number;
  readonly outputTokens?: number;
}

export interface Model {
  /** `<provider>:<model>` as configured. */
  readonly name: string;
  /** Rejects with a `ModelError`: `model_unavailable` (later), `model_rejected` (never) or `model_failed` (unknown). */
  call(request: ModelRequest): Promise<ModelResult>;
}
