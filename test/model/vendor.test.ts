import { afterEach, describe, expect, test } from "bun:test";
import { inspect } from "node:util";
import { ModelError } from "../../src/core/errors.ts";
import type { ModelMessage, ModelRequest, ToolDefinition } from "../../src/core/ports/model.ts";
import type { Logger } from "../../src/core/ports/platform.ts";
import { createModel } from "../../src/model/create.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import {
  anthropicWire,
  openaiWire,
  type Reply,
  startWireServer,
  type WireServer,
} from "../support/model-wire.ts";

const KEY = "sk-canary-5f1d2c3b4a";
const PROMPT = "canary prompt about the merger";
const silent: Logger = { debug() {}, info() {}, warn() {}, error() {} };

const echo: ToolDefinition = {
  name: "echo",
  description: "Says it again.",
  inputSchema: { type: "object", properties: { text: { type: "string" } }, required: ["text"] },
};

let server: WireServer | undefined;
afterEach(async () => {
  await server?.stop();
  server = undefined;
});

function request(over: Partial<ModelRequest> = {}): ModelRequest {
  return {
    system: "You are terse.",
    messages: [{ role: "user", content: PROMPT }],
    tools: [echo],
    signal: new AbortController().signal,
    ...over,
  };
}

function vendor(kind: "anthropic" | "openai", reply: Reply) {
  server = startWireServer(reply);
  const model =
    kind === "anthropic"
      ? createModel({
          name: "anthropic:claude-test",
          providers: [{ id: "anthropic", type: "anthropic", apiKey: KEY, baseUrl: `${server.url}/v1` }],
          clock: createFakeClock(),
          logger: silent,
        })
      : createModel({
          name: "openai_compat:local:7b",
          providers: [{ id: "mine", type: "openai_compat", apiKey: KEY, baseUrl: `${server.url}/v1/` }],
          clock: createFakeClock(),
          logger: silent,
        });
  return { model, server };
}

async function failure(call: Promise<unknown>): Promise<ModelError> {
  const error = await call.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  if (!(error instanceof ModelError)) throw new Error(`expected a ModelError, got ${inspect(error)}`);
  return error;
}

const finished = {
  anthropic: {
    text: (pieces: string[]) => [
      anthropicWire.start(),
      ...anthropicWire.text(0, pieces),
      ...anthropicWire.finish("end_turn"),
    ],
    tool: (pieces: string[]) => [
      anthropicWire.start(),
      ...anthropicWire.text(0, ["Looking."]),
      ...anthropicWire.tool(1, "call_1", "echo", pieces),
      ...anthropicWire.finish("tool_use"),
    ],
    unfinished: [anthropicWire.start(), ...anthropicWire.text(0, ["Half an ans"])],
    path: "/v1/messages",
    tokens: { inputTokens: 11, outputTokens: 7 },
  },
  openai: {
    text: (pieces: string[]) => [...openaiWire.text(pieces), ...openaiWire.finish("stop")],
    tool: (pieces: string[]) => [
      ...openaiWire.text(["Looking."]),
      ...openaiWire.tool("call_1", "echo", pieces),
      ...openaiWire.finish("tool_calls"),
    ],
    unfinished: openaiWire.text(["Half an ans"]),
    path: "/v1/chat/completions",
    tokens: { inputTokens: 21, outputTokens: 9 },
  },
};

describe.each(["anthropic", "openai"] as const)("the %s wire", (kind) => {
  const wire = finished[kind];

  test("streams text piece by piece and gives it back whole, with token usage", async () => {
    const { model, server } = vendor(kind, { events: wire.text(["Hel", "lo ", "there"]), after: "end" });
    const heard: string[] = [];
    const result = await model.call(request({ onText: (delta) => heard.push(delta) }));
    expect(heard).toEqual(["Hel", "lo ", "there"]);
    expect(result).toMatchObject({
      text: "Hello there",
      toolCalls: [],
      stopReason: "stop",
      usageComplete: true,
      ...wire.tokens,
    });
    expect(server.requests.map((each) => each.path)).toEqual([wire.path]);
    expect(JSON.stringify(server.requests[0]?.body)).toContain("You are terse.");
  });

  test("gives back a tool call whose arguments came in pieces, without executing it", async () => {
    const { model } = vendor(kind, { events: wire.tool(['{"te', 'xt": "h', 'i"}']), after: "end" });
    const result = await model.call(request());
    expect(result.text).toBe("Looking.");
    expect(result.toolCalls).toEqual([{ callId: "call_1", name: "echo", input: { text: "hi" } }]);
    expect(result.stopReason).toBe("tool_calls");
  });

  test("gives back malformed arguments as the string that the model wrote", async () => {
    const { model } = vendor(kind, { events: wire.tool(['{"text": "h', "i}"]), after: "end" });
    const result = await model.call(request());
    expect(result.toolCalls).toEqual([{ callId: "call_1", name: "echo", input: '{"text": "hi}' }]);
  });

  test("sends earlier calls and results in the provider's own form", async () => {
    const { model, server } = vendor(kind, { events: wire.text(["ok"]), after: "end" });
    const messages: ModelMessage[] = [
      { role: "user", content: "say hi" },
      {
        role: "assistant",
        content: "",
        toolCalls: [
          { callId: "c1", name: "echo", input: { text: "hi" } },
          { callId: "c2", name: "echo", input: "not json" },
        ],
      },
      { role: "tool", callId: "c1", name: "echo", content: "RESULT-ONE", isError: false },
      { role: "tool", callId: "c2", name: "echo", content: "RESULT-TWO", isError: true },
    ];
    await model.call(request({ messages }));
    const sent = JSON.stringify(server.requests[0]?.body);
    for (const expected of ["c1", "c2", "RESULT-ONE", "RESULT-TWO", "not json"])
      expect(sent).toContain(expected);
  });

  test.each([
    [429, "model_unavailable"],
    [500, "model_unavailable"],
    [503, "model_unavailable"],
    [400, "model_rejected"],
    [401, "model_rejected"],
    [404, "model_rejected"],
  ] as const)(
    "turns HTTP %i into %s after one request, with no key or body in the error",
    async (status, code) => {
      const body = JSON.stringify({
        type: "error",
        error: { type: "some_error", message: `bad key ${KEY} for ${PROMPT}` },
      });
      const { model, server } = vendor(kind, { status, body, headers: { "retry-after": "7" } });
      const error = await failure(model.call(request()));
      expect(error.code).toBe(code);
      expect(error.message).toContain(`HTTP ${status}`);
      if (code === "model_unavailable") expect(error.retryAfterMs).toBe(7000);
      expect(server.requests).toHaveLength(1);
      const everything = inspect(error, { depth: 10 });
      expect(everything).not.toContain(KEY);
      expect(everything).not.toContain(PROMPT);
    },
  );

  test.each(["end", "break"] as const)(
    "never takes an unfinished stream for an answer (%s)",
    async (after) => {
      const { model } = vendor(kind, { events: wire.unfinished, after });
      const heard: string[] = [];
      const error = await failure(model.call(request({ onText: (delta) => heard.push(delta) })));
      expect(error.code).toBe("model_unavailable");
      expect(error.notRun).toBe(false);
      expect(inspect(error, { depth: 10 })).not.toContain(PROMPT);
    },
  );

  test("an abort ends the request at the provider", async () => {
    const { model, server } = vendor(kind, { events: wire.unfinished, after: "hang" });
    const controller = new AbortController();
    const call = model.call(request({ signal: controller.signal, onText: () => controller.abort() }));
    const error = await failure(call);
    expect(error.code).toBe("model_failed");
    expect(error.message).toContain("aborted");
    await server.clientGone;
  });

  test("an unreachable provider is unavailable", async () => {
    const { model, server } = vendor(kind, { events: [], after: "end" });
    await server.stop();
    const error = await failure(model.call(request()));
    expect(error.code).toBe("model_unavailable");
  });

  test("sends nothing when the signal was aborted before", async () => {
    const { model, server } = vendor(kind, { events: wire.text(["no"]), after: "end" });
    await failure(model.call(request({ signal: AbortSignal.abort() })));
    expect(server.requests).toHaveLength(0);
  });
});

test("an overload that Anthropic reports inside the stream is unavailable", async () => {
  const { model } = vendor("anthropic", {
    events: [anthropicWire.start(), anthropicWire.error("overloaded_error", `busy ${KEY}`)],
    after: "end",
  });
  const error = await failure(model.call(request()));
  expect(error.code).toBe("model_unavailable");
  expect(inspect(error, { depth: 10 })).not.toContain(KEY);
});

test("an end without a reason for it is not an answer", async () => {
  const [, stop = ""] = anthropicWire.finish("end_turn");
  const { model } = vendor("anthropic", { events: [...finished.anthropic.unfinished, stop], after: "end" });
  expect((await failure(model.call(request()))).code).toBe("model_unavailable");
});

test("the key goes to the provider in its header only", async () => {
  const { model, server } = vendor("openai", { events: finished.openai.text(["ok"]), after: "end" });
  await model.call(request());
  expect(server.requests[0]?.headers.get("authorization")).toBe(`Bearer ${KEY}`);
  expect(server.requests[0]?.body.model).toBe("local:7b");
  expect(JSON.stringify(server.requests[0]?.body)).not.toContain(KEY);
});

test("a local server is reached directly, whatever proxy the environment names", async () => {
  const seen: unknown[] = [];
  const model = createModel({
    name: "ollama:llama3",
    providers: [],
    clock: createFakeClock(),
    logger: silent,
    fetch: (input, init) => {
      seen.push(String(input), (init as { proxy?: unknown }).proxy);
      return Promise.resolve(
        new Response(finished.openai.text(["ok"]).join(""), {
          headers: { "content-type": "text/event-stream" },
        }),
      );
    },
  });
  expect((await model.call(request())).text).toBe("ok");
  expect(seen).toEqual(["http://127.0.0.1:11434/v1/chat/completions", false]);
});
