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

/** An image, or a document (PDF, or any `text/…`), that a person sent with a message. */
export interface Attachment {
  readonly kind: "image" | "document";
  /** IANA media type in lower case, such as `image/png`. */
  readonly mediaType: string;
  /** File name for the model and for people. */
  readonly name: string;
  readonly data: Uint8Array;
}

/** An image that a tool gave back; its bytes are of the type that it says. */
export interface ToolImage {
  readonly mediaType: string;
  readonly data: Uint8Array;
}

/**
 * One part of what a model said, in its order. `vendor` is the provider's own data about it (the signature of a
 * reasoning block, the encrypted reasoning): opaque, stored as it came and sent back unchanged.
 */
export type ReplyPart =
  | { readonly type: "text"; readonly text: string; readonly vendor?: JsonObject }
  | { readonly type: "reasoning"; readonly text: string; readonly vendor?: JsonObject }
  /** `index` counts in the tool calls of the same answer. */
  | { readonly type: "tool_call"; readonly index: number; readonly vendor?: JsonObject };

/**
 * The whole answer of one model call, for that model alone: it is sent back to the model that made it, within the
 * same turn, and never reaches an event, the history or another model.
 */
export interface ModelReply {
  /** `<provider>:<model>` that made it. */
  readonly model: string;
  readonly parts: readonly ReplyPart[];
}

export type ModelMessage =
  | {
      readonly role: "user";
      readonly content: string;
      readonly attachments?: readonly Attachment[];
    }
  | {
      readonly role: "assistant";
      readonly content: string;
      readonly toolCalls?: readonly ToolCall[];
      readonly reply?: ModelReply;
    }
  | {
      readonly role: "tool";
      readonly callId: string;
      readonly name: string;
      /** Names the images too, in a line each: enough for a model that can't be shown them. */
      readonly content: string;
      readonly isError: boolean;
      readonly images?: readonly ToolImage[];
    };

/** What a provider counted for a request of ours: the measure for the next estimate. */
export interface InputMeasure {
  /** UTF-8 bytes of what was sent. */
  readonly bytes: number;
  readonly tokens: number;
}

export interface ModelRequest {
  readonly system: string;
  readonly messages: readonly ModelMessage[];
  readonly tools: readonly ToolDefinition[];
  readonly signal: AbortSignal;
  readonly onText?: (delta: string) => void;
  /** The model that answered the call before in the same turn is asked first, so that a turn stays with one model. */
  readonly startWith?: string;
  /** `measured` of the call before in the same turn. */
  readonly measured?: InputMeasure;
  /** The model must not run twice for this request: it is asked again only when it certainly did not run. */
  readonly atMostOnce?: boolean;
}

/**
 * Why a model ended. `length`: its output limit. `content_filter`: the provider stopped it. `refusal`: it declined.
 * Tool calls beside any of these three are not complete and must not run.
 */
export type StopReason = "stop" | "tool_calls" | "length" | "content_filter" | "refusal" | "other";

export interface ModelResult {
  readonly text: string;
  readonly toolCalls: readonly ToolCall[];
  readonly stopReason: StopReason;
  readonly inputTokens?: number;
  readonly outputTokens?: number;
  /** True when the tokens are all that this call cost: the provider told both, and no failed attempt may have cost more. */
  readonly usageComplete?: boolean;
  /** `<provider>:<model>` that answered; absent: the model that was called. */
  readonly answeredBy?: string;
  readonly reply?: ModelReply;
  readonly measured?: InputMeasure;
  /** What the person should know about how this answer came about, a line each. */
  readonly notices?: readonly string[];
}

export interface Model {
  /** `<provider>:<model>` as configured. */
  readonly name: string;
  /** Rejects with a `ModelError`: `model_unavailable` (later), `model_rejected` (never) or `model_failed` (unknown). */
  call(request: ModelRequest): Promise<ModelResult>;
}
