import type {
  AssistantModelMessage,
  ToolModelMessage,
  UserModelMessage,
  ModelMessage as VendorMessage,
} from "ai";
import { isJsonObject, type JsonValue } from "../core/json.ts";
import type { Attachment, ModelMessage, ReplyPart } from "../core/ports/model.ts";
import { isTextDocument } from "./inputs.ts";

type AssistantMessage = Extract<ModelMessage, { role: "assistant" }>;
type AssistantPart = Exclude<AssistantModelMessage["content"], string>[number];
type ToolOutput = Extract<ToolModelMessage["content"][number], { type: "tool-result" }>["output"];
type UserPart = Exclude<UserModelMessage["content"], string>[number];

/**
 * Our messages in the vendor library's shape, for the model of this name. What that model said in this turn goes back
 * part by part with the vendor's own data; what another model said goes as text and calls, because reasoning and its
 * signatures are valid only where they were made. An assistant message without text and calls is left out (providers
 * refuse empty content). Arguments that were not a JSON object go back as `{"input": <what the model sent>}`, because
 * providers accept only objects there.
 */
export function vendorMessages(messages: readonly ModelMessage[], model: string): VendorMessage[] {
  const out: VendorMessage[] = [];
  for (const message of messages) {
    switch (message.role) {
      case "user": {
        const attached = message.attachments ?? [];
        const content: UserModelMessage["content"] =
          attached.length === 0
            ? message.content
            : [...attached.map(attachmentPart), { type: "text", text: message.content }];
        out.push({ role: "user", content });
        break;
      }
      case "assistant": {
        const parts = message.reply?.model === model ? message.reply.parts : plainParts(message);
        const content = parts.flatMap((part) => assistantPart(part, message));
        if (content.length > 0) out.push({ role: "assistant", content });
        break;
      }
      case "tool":
        out.push({
          role: "tool",
          content: [
            {
              type: "tool-result",
              toolCallId: message.callId,
              toolName: message.name,
              output: toolOutput(message),
            },
          ],
        });
        break;
    }
  }
  return out;
}

function plainParts({ content, toolCalls = [] }: AssistantMessage): ReplyPart[] {
  return [
    ...(content === "" ? [] : [{ type: "text" as const, text: content }]),
    ...toolCalls.map((_, index) => ({ type: "tool_call" as const, index })),
  ];
}

function assistantPart(part: ReplyPart, { toolCalls = [] }: AssistantMessage): AssistantPart[] {
  // The vendor's data is JSON by what it was parsed from; the library's own type for it is a looser record.
  const own =
    part.vendor === undefined
      ? {}
      : { providerOptions: part.vendor as NonNullable<AssistantModelMessage["providerOptions"]> };
  switch (part.type) {
    case "text":
    case "reasoning":
      return [{ type: part.type, text: part.text, ...own }];
    case "tool_call": {
      const call = toolCalls[part.index];
      if (call === undefined) return [];
      const { callId, name, input } = call;
      return [{ type: "tool-call", toolCallId: callId, toolName: name, input: objectInput(input), ...own }];
    }
  }
}

/** An error stays text: with images beside it, providers would not be told that it is one. */
function toolOutput({ content, isError, images = [] }: Extract<ModelMessage, { role: "tool" }>): ToolOutput {
  if (isError) return { type: "error-text", value: content };
  if (images.length === 0) return { type: "text", value: content };
  const files = images.map(({ mediaType, data }) => ({
    type: "file" as const,
    mediaType,
    data: { type: "data" as const, data },
  }));
  return { type: "content", value: [{ type: "text", text: content }, ...files] };
}

function attachmentPart(attachment: Attachment): UserPart {
  const { mediaType, name, data } = attachment;
  if (isTextDocument(attachment)) {
    return { type: "text", text: `[document ${name}]\n${new TextDecoder().decode(data)}` };
  }
  return { type: "file", mediaType, filename: name, data };
}

function objectInput(input: JsonValue): JsonValue {
  return isJsonObject(input) ? input : { input };
}
