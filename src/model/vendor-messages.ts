import type { ModelMessage as VendorMessage } from "ai";
import { isJsonObject, type JsonValue } from "../core/json.ts";
import type { ModelMessage } from "../core/ports/model.ts";

/**
 * Our messages in the vendor library's shape. An assistant message without text and calls is left out (providers
 * refuse empty content). Arguments that were not a JSON object go back as `{"input": <what the model sent>}`,
 * because providers accept only objects there.
 */
export function vendorMessages(messages: readonly ModelMessage[]): VendorMessage[] {
  const out: VendorMessage[] = [];
  for (const message of messages) {
    switch (message.role) {
      case "user":
        out.push({ role: "user", content: message.content });
        break;
      case "assistant": {
        const calls = (message.toolCalls ?? []).map((call) => ({
          type: "tool-call" as const,
          toolCallId: call.callId,
          toolName: call.name,
          input: objectInput(call.input),
        }));
        const text = message.content === "" ? [] : [{ type: "text" as const, text: message.content }];
        if (calls.length + text.length > 0) out.push({ role: "assistant", content: [...text, ...calls] });
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
              output: { type: message.isError ? "error-text" : "text", value: message.content },
            },
          ],
        });
        break;
    }
  }
  return out;
}

function objectInput(input: JsonValue): JsonValue {
  return isJsonObject(input) ? input : { input };
}
