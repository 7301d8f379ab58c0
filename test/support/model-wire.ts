import type { Server } from "bun";

/** A local provider that answers with prepared wire bytes and keeps what it was asked. */
export interface WireServer {
  readonly url: string;
  readonly requests: { path: string; headers: Headers; body: Record<string, unknown> }[];
  /** Resolves when a client has gone away before its answer ended. */
  readonly clientGone: Promise<void>;
  stop(): Promise<void>;
}

export type Reply =
  | { status: number; body: string; headers?: Record<string, string> }
  /** `after`: end cleanly, break the connection, or stay open for ever. */
  | { events: (string | Uint8Array)[]; after: "end" | "break" | "hang" };

/** Several replies are given in turn, the last one again and again. */
export function startWireServer(...replies: [Reply, ...Reply[]]): WireServer {
  const requests: WireServer["requests"] = [];
  const gone = Promise.withResolvers<void>();
  const server: Server<undefined> = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    development: false,
    async fetch(request) {
      const reply = replies[Math.min(requests.length, replies.length - 1)] as Reply;
      requests.push({
        path: new URL(request.url).pathname,
        headers: request.headers,
        body: (await request.json()) as Record<string, unknown>,
      });
      if ("status" in reply) {
        return new Response(reply.body, {
          status: reply.status,
          headers: { "content-type": "application/json", ...reply.headers },
        });
      }
      request.signal.addEventListener("abort", () => gone.resolve());
      const encoder = new TextEncoder();
      const body = new ReadableStream<Uint8Array>({
        async start(controller) {
          for (const event of reply.events) {
            controller.enqueue(typeof event === "string" ? encoder.encode(event) : event);
            await new Promise((resolve) => setImmediate(resolve));
          }
          if (reply.after === "end") controller.close();
          if (reply.after === "break") controller.error(new Error("broken"));
        },
      });
      return new Response(body, { headers: { "content-type": "text/event-stream" } });
    },
  });
  return {
    url: `http://127.0.0.1:${server.port}`,
    requests,
    clientGone: gone.promise,
    stop: () => server.stop(true),
  };
}

export const sse = (event: string | undefined, data: unknown) =>
  `${event === undefined ? "" : `event: ${event}\n`}data: ${typeof data === "string" ? data : JSON.stringify(data)}\n\n`;

/** Anthropic's messages stream. */
export const anthropicWire = {
  start: () =>
    sse("message_start", {
      type: "message_start",
      message: {
        id: "msg_1",
        type: "message",
        role: "assistant",
        model: "claude-test",
        content: [],
        stop_reason: null,
        stop_sequence: null,
        usage: { input_tokens: 11, output_tokens: 1 },
      },
    }),
  text: (index: number, pieces: string[]) => [
    sse("content_block_start", {
      type: "content_block_start",
      index,
      content_block: { type: "text", text: "" },
    }),
    ...pieces.map((text) =>
      sse("content_block_delta", {
        type: "content_block_delta",
        index,
        delta: { type: "text_delta", text },
      }),
    ),
    sse("content_block_stop", { type: "content_block_stop", index }),
  ],
  thinking: (index: number, pieces: string[], signature: string) => [
    sse("content_block_start", {
      type: "content_block_start",
      index,
      content_block: { type: "thinking", thinking: "", signature: "" },
    }),
    ...pieces.map((thinking) =>
      sse("content_block_delta", {
        type: "content_block_delta",
        index,
        delta: { type: "thinking_delta", thinking },
      }),
    ),
    sse("content_block_delta", {
      type: "content_block_delta",
      index,
      delta: { type: "signature_delta", signature },
    }),
    sse("content_block_stop", { type: "content_block_stop", index }),
  ],
  redacted: (index: number, data: string) => [
    sse("content_block_start", {
      type: "content_block_start",
      index,
      content_block: { type: "redacted_thinking", data },
    }),
    sse("content_block_stop", { type: "content_block_stop", index }),
  ],
  tool: (index: number, id: string, name: string, pieces: string[]) => [
    sse("content_block_start", {
      type: "content_block_start",
      index,
      content_block: { type: "tool_use", id, name, input: {} },
    }),
    ...pieces.map((partial_json) =>
      sse("content_block_delta", {
        type: "content_block_delta",
        index,
        delta: { type: "input_json_delta", partial_json },
      }),
    ),
    sse("content_block_stop", { type: "content_block_stop", index }),
  ],
  finish: (stop_reason: string) => [
    sse("message_delta", {
      type: "message_delta",
      delta: { stop_reason, stop_sequence: null },
      usage: { output_tokens: 7 },
    }),
    sse("message_stop", { type: "message_stop" }),
  ],
  error: (type: string, message: string) => sse("error", { type: "error", error: { type, message } }),
};

/** OpenAI's chat completions stream. */
const chunk = (delta: unknown, finish_reason: string | null = null) =>
  sse(undefined, {
    id: "chatcmpl-1",
    object: "chat.completion.chunk",
    created: 1,
    model: "local",
    choices: [{ index: 0, delta, finish_reason }],
  });
export const openaiWire = {
  text: (pieces: string[]) => pieces.map((content) => chunk({ role: "assistant", content })),
  reasoning: (pieces: string[]) => pieces.map((reasoning_content) => chunk({ reasoning_content })),
  refusal: (refusal: string) => chunk({ refusal }),
  tool: (id: string, name: string, pieces: string[], index = 0) => [
    chunk({ tool_calls: [{ index, id, type: "function", function: { name, arguments: "" } }] }),
    ...pieces.map((args) => chunk({ tool_calls: [{ index, function: { arguments: args } }] })),
  ],
  finish: (reason: string) => [
    chunk({}, reason),
    sse(undefined, {
      id: "chatcmpl-1",
      object: "chat.completion.chunk",
      created: 1,
      model: "local",
      choices: [],
      usage: { prompt_tokens: 21, completion_tokens: 9, total_tokens: 30 },
    }),
    sse(undefined, "[DONE]"),
  ],
};
