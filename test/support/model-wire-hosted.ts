import { sse } from "./model-wire.ts";

/** OpenAI's responses stream, one output item after another. */
const event = (type: string, rest: Record<string, unknown>) => sse(type, { type, ...rest });

export const responsesWire = {
  start: (model = "gpt-5") => event("response.created", { response: { id: "resp_1", created_at: 1, model } }),
  reasoning: (index: number, id: string, pieces: string[], encrypted: string) => [
    event("response.output_item.added", {
      output_index: index,
      item: { type: "reasoning", id, summary: [] },
    }),
    event("response.reasoning_summary_part.added", { item_id: id, output_index: index, summary_index: 0 }),
    ...pieces.map((delta) =>
      event("response.reasoning_summary_text.delta", {
        item_id: id,
        output_index: index,
        summary_index: 0,
        delta,
      }),
    ),
    event("response.reasoning_summary_part.done", { item_id: id, output_index: index, summary_index: 0 }),
    event("response.output_item.done", {
      output_index: index,
      item: { type: "reasoning", id, summary: [], encrypted_content: encrypted },
    }),
  ],
  text: (index: number, id: string, pieces: string[]) => [
    event("response.output_item.added", { output_index: index, item: { type: "message", id } }),
    ...pieces.map((delta) =>
      event("response.output_text.delta", { item_id: id, output_index: index, delta }),
    ),
    event("response.output_item.done", { output_index: index, item: { type: "message", id } }),
  ],
  refusal: (index: number, id: string, delta: string) => [
    event("response.output_item.added", { output_index: index, item: { type: "message", id } }),
    event("response.refusal.delta", { item_id: id, output_index: index, content_index: 0, delta }),
    event("response.output_item.done", { output_index: index, item: { type: "message", id } }),
  ],
  tool: (index: number, callId: string, name: string, pieces: string[]) => {
    const item = { type: "function_call", id: `fc_${callId}`, call_id: callId, name };
    return [
      event("response.output_item.added", { output_index: index, item: { ...item, arguments: "" } }),
      ...pieces.map((delta) =>
        event("response.function_call_arguments.delta", { item_id: item.id, output_index: index, delta }),
      ),
      event("response.output_item.done", {
        output_index: index,
        item: { ...item, arguments: pieces.join(""), status: "completed" },
      }),
    ];
  },
  finish: (incomplete?: string) => {
    const type = incomplete === undefined ? "response.completed" : "response.incomplete";
    const usage = { input_tokens: 31, output_tokens: 5 };
    return [
      event(type, {
        response: { incomplete_details: incomplete === undefined ? null : { reason: incomplete }, usage },
      }),
    ];
  },
};

/** Google's generateContent stream. */
const candidate = (parts: unknown[], rest: Record<string, unknown> = {}) =>
  sse(undefined, { candidates: [{ content: { role: "model", parts }, index: 0, ...rest }] });

export const googleWire = {
  thought: (pieces: string[]) => pieces.map((text) => candidate([{ text, thought: true }])),
  text: (pieces: string[]) => pieces.map((text) => candidate([{ text }])),
  tool: (name: string, args: unknown, thoughtSignature?: string) => [
    candidate([
      { functionCall: { name, args }, ...(thoughtSignature === undefined ? {} : { thoughtSignature }) },
    ]),
  ],
  finish: (finishReason: string) => [
    sse(undefined, {
      candidates: [{ content: { role: "model", parts: [] }, finishReason, index: 0 }],
      usageMetadata: { promptTokenCount: 41, candidatesTokenCount: 6, totalTokenCount: 47 },
    }),
  ],
};
