import { openaiWire } from "./model-wire.ts";

/** A local OpenAI-compatible model whose every answer the test decides, one request at a time. */

export interface ModelRequestSeen {
  readonly messages: { role: string; content: unknown; tool_calls?: unknown }[];
  readonly tools: { function: { name: string } }[];
  /** Whole body, to search it for what must not be in it. */
  readonly text: string;
}

export type ModelReply =
  | { text: string }
  | { tool: string; input: unknown }
  | { status: number; body: string }
  | "hang";

export interface ModelServer {
  readonly url: string;
  readonly requests: ModelRequestSeen[];
  /** Decides each answer; may wait as long as it likes. */
  reply: (request: ModelRequestSeen) => Promise<ModelReply> | ModelReply;
  stop(): Promise<void>;
}

export function startModelServer(): ModelServer {
  const requests: ModelRequestSeen[] = [];
  const hung: (() => void)[] = [];
  const model: ModelServer = {
    url: "",
    requests,
    reply: () => ({ text: "fine" }),
    async stop() {
      for (const release of hung) release();
      await server.stop(true);
    },
  };
  const server = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    idleTimeout: 0,
    async fetch(request) {
      const text = await request.text();
      const body = JSON.parse(text) as {
        messages: ModelRequestSeen["messages"];
        tools?: ModelRequestSeen["tools"];
      };
      const seen: ModelRequestSeen = { messages: body.messages, tools: body.tools ?? [], text };
      requests.push(seen);
      const reply = await model.reply(seen);
      if (reply === "hang") {
        await new Promise<void>((resolve) => hung.push(resolve));
        return new Response(null, { status: 500 });
      }
      if ("status" in reply) return new Response(reply.body, { status: reply.status });
      const events =
        "tool" in reply
          ? [
              ...openaiWire.tool("call_1", reply.tool, [JSON.stringify(reply.input)]),
              ...openaiWire.finish("tool_calls"),
            ]
          : [...openaiWire.text([reply.text]), ...openaiWire.finish("stop")];
      return new Response(events.join(""), { headers: { "content-type": "text/event-stream" } });
    },
  });
  return Object.assign(model, { url: `http://127.0.0.1:${server.port}/v1` });
}

/** Configuration blocks that use it. */
export function modelBlocks(model: ModelServer): Record<string, unknown> {
  return {
    runtime: { model: "box:test" },
    providers: { local: [{ id: "box", type: "openai_compat", baseUrl: model.url }] },
  };
}

/** Whether the last message is a tool's result: then the turn's second model call is at hand. */
export function afterTool(request: ModelRequestSeen): boolean {
  return request.messages.at(-1)?.role === "tool";
}
