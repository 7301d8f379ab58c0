import { afterEach, describe, expect, test } from "bun:test";
import { inspect } from "node:util";
import { BugError } from "../../src/core/errors.ts";
import type { ModelMessage } from "../../src/core/ports/model.ts";
import { createModel } from "../../src/model/create.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { failure, KEY, KINDS, modelAt, recordingLogger, request, WIRE } from "../support/model-rig.ts";
import { anthropicWire, startWireServer, type WireServer } from "../support/model-wire.ts";

let server: WireServer | undefined;
afterEach(async () => {
  await server?.stop();
  server = undefined;
});

/** Where each provider gets its key. */
const KEY_HEADER = {
  anthropic: "x-api-key",
  responses: "authorization",
  chat: "authorization",
  google: "x-goog-api-key",
  compatible: "authorization",
} as const;

describe.each(KINDS)("a call over the %s wire", (kind) => {
  test("has its key in one header and nowhere else", async () => {
    server = startWireServer({ events: WIRE[kind].text(["ok"]), after: "end" });
    await modelAt(server.url, kind).call(request());
    const { headers, path, body } = server.requests[0] ?? { headers: new Headers(), path: "", body: {} };
    expect(headers.get(KEY_HEADER[kind])?.replace("Bearer ", "")).toBe(KEY);
    headers.delete(KEY_HEADER[kind]);
    expect(JSON.stringify([[...headers], path, body])).not.toContain(KEY);
  });

  test("sends earlier calls and results of another model in its own form", async () => {
    server = startWireServer({ events: WIRE[kind].text(["ok"]), after: "end" });
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
    await modelAt(server.url, kind).call(request({ messages }));
    const sent = JSON.stringify(server.requests[0]?.body);
    for (const expected of ["RESULT-ONE", "RESULT-TWO", "not json"]) expect(sent).toContain(expected);
  });

  test("sends nothing when the signal was aborted before", async () => {
    server = startWireServer({ events: WIRE[kind].text(["no"]), after: "end" });
    await failure(modelAt(server.url, kind).call(request({ signal: AbortSignal.abort() })));
    expect(server.requests).toHaveLength(0);
  });

  test("leaves no timer behind", async () => {
    server = startWireServer({ events: WIRE[kind].text(["ok"]), after: "end" });
    const clock = createFakeClock();
    await modelAt(server.url, kind, { clock }).call(request());
    expect(clock.pending()).toBe(0);
  });

  test.if(kind !== "google")(
    "gives back malformed arguments as the string that the model wrote",
    async () => {
      const pieces = ['{"text": "h', "i}"];
      server = startWireServer({ events: WIRE[kind].tools({ id: "c1", pieces }), after: "end" });
      const result = await modelAt(server.url, kind).call(request());
      expect(result.toolCalls).toEqual([{ callId: "c1", name: "echo", input: '{"text": "hi}' }]);
    },
  );
});

test("an overload that Anthropic reports inside the stream is unavailable", async () => {
  const events = [anthropicWire.start(), anthropicWire.error("overloaded_error", `busy ${KEY}`)];
  server = startWireServer({ events, after: "end" });
  const error = await failure(modelAt(server.url, "anthropic").call(request()));
  expect(error).toMatchObject({ code: "model_unavailable", notRun: false });
  expect(error.message).toContain("overloaded");
  expect(inspect(error, { depth: 10 })).not.toContain(KEY);
});

test("an end without a reason for it is not an answer", async () => {
  const [, stop = ""] = anthropicWire.finish("end_turn");
  server = startWireServer({ events: [...WIRE.anthropic.unfinished(["Half"]), stop], after: "end" });
  expect((await failure(modelAt(server.url, "anthropic").call(request()))).code).toBe("model_unavailable");
});

test("an account without credit is not asked again, although its status says 429", async () => {
  const body = JSON.stringify({
    error: { type: "insufficient_quota", code: "insufficient_quota", message: "x" },
  });
  server = startWireServer({ status: 429, body });
  const error = await failure(modelAt(server.url, "responses", { attempts: 3 }).call(request()));
  expect(error).toMatchObject({ code: "model_rejected", notRun: true });
  expect(error.message).toContain("no credit");
  expect(server.requests).toHaveLength(1);
});

test("a window that the provider finds too small is told from other refusals", async () => {
  const body = JSON.stringify({
    error: { type: "invalid_request_error", code: "context_length_exceeded", message: "x" },
  });
  server = startWireServer({ status: 400, body });
  const error = await failure(modelAt(server.url, "compatible").call(request()));
  expect(error.message).toContain("longer than the model's context window");
  expect(error.message).toContain("contextTokens");
});

test("a listener that throws is a mistake of ours, not a fault of the provider", async () => {
  server = startWireServer({ events: WIRE.compatible.text(["ok"]), after: "end" });
  const call = modelAt(server.url, "compatible", { attempts: 3 }).call(
    request({
      onText: () => {
        throw new Error("listener");
      },
    }),
  );
  await expect(call).rejects.toThrow(BugError);
  expect(server.requests).toHaveLength(1);
});

test.each(KINDS)("a mistake over the %s wire never shows what the library said about it", async (kind) => {
  const call = modelAt("http://127.0.0.1:9", kind, {
    attempts: 3,
    fetch: () => Promise.reject(new TypeError(`Header has invalid value: '${KEY}'`)),
  }).call(request());
  const error = await call.catch((thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(BugError);
  expect(String(error)).toContain("TypeError");
  expect(inspect(error, { depth: 10 })).not.toContain(KEY);
});

test.each(KINDS)(
  "only our own limits end a silent call over the %s wire, not Bun's five minutes",
  async (kind) => {
    const seen: unknown[] = [];
    const model = modelAt("http://127.0.0.1:9", kind, {
      fetch: (_, init) => {
        seen.push((init as { timeout?: unknown }).timeout);
        return Promise.resolve(
          new Response(WIRE[kind].text(["ok"]).join(""), {
            headers: { "content-type": "text/event-stream" },
          }),
        );
      },
    });
    expect((await model.call(request())).text).toBe("ok");
    expect(seen).toEqual([false]);
  },
);

test("a local server is reached directly, whatever proxy the environment names", async () => {
  const seen: unknown[] = [];
  const model = createModel({
    name: "ollama:llama3",
    providers: [],
    clock: createFakeClock(),
    logger: recordingLogger(),
    fetch: (input, init) => {
      seen.push(String(input), (init as { proxy?: unknown }).proxy);
      return Promise.resolve(
        new Response(WIRE.compatible.text(["ok"]).join(""), {
          headers: { "content-type": "text/event-stream" },
        }),
      );
    },
  });
  expect((await model.call(request())).text).toBe("ok");
  expect(seen).toEqual(["http://127.0.0.1:11434/v1/chat/completions", false]);
});
