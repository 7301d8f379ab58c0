import { afterEach, describe, expect, test } from "bun:test";
import { inspect } from "node:util";
import { MODEL_TOOL_CALLS_MAX } from "../../src/core/limits.ts";
import type { ModelMessage } from "../../src/core/ports/model.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import {
  echo,
  failure,
  KEY,
  KINDS,
  modelAt,
  PATHS,
  PROMPT,
  recordingLogger,
  request,
  WIRE,
} from "../support/model-rig.ts";
import { type Reply, startWireServer, type WireServer } from "../support/model-wire.ts";

let servers: WireServer[] = [];
afterEach(async () => {
  for (const server of servers) await server.stop();
  servers = [];
});
function serve(...replies: [Reply, ...Reply[]]): WireServer {
  const server = startWireServer(...replies);
  servers.push(server);
  return server;
}

describe.each(KINDS)("the %s wire", (kind) => {
  const wire = WIRE[kind];

  test("streams text in pieces and gives it back whole, with complete usage", async () => {
    const server = serve({ events: wire.text(["Hel", "lo ", "there"]), after: "end" });
    const heard: string[] = [];
    const result = await modelAt(server.url, kind).call(request({ onText: (delta) => heard.push(delta) }));
    expect(heard).toEqual(["Hel", "lo ", "there"]);
    expect(result).toMatchObject({ text: "Hello there", toolCalls: [], stopReason: "stop", ...wire.tokens });
    expect(result.usageComplete).toBe(true);
    expect(server.requests.map((each) => each.path)).toEqual([PATHS[kind]]);
    const sent = JSON.stringify(server.requests[0]?.body);
    for (const part of ["You are terse.", PROMPT, "Says it again."]) expect(sent).toContain(part);
    expect(sent).not.toContain(KEY);
  });

  test("reads events that arrive cut at every place", async () => {
    const bytes = new TextEncoder().encode(wire.text(["Grüße, ", "世界 🌍"]).join(""));
    const pieces = Array.from({ length: Math.ceil(bytes.length / 7) }, (_, at) =>
      bytes.slice(at * 7, at * 7 + 7),
    );
    const server = serve({ events: pieces, after: "end" });
    const result = await modelAt(server.url, kind).call(request());
    expect(result.text).toBe("Grüße, 世界 🌍");
  });

  test("gives back parallel tool calls in their order, and sends their results in one request", async () => {
    const first = { id: "call_a", pieces: ['{"text":"one"}'] };
    const second = { id: "call_b", pieces: ['{"text":"two"}'] };
    const server = serve(
      { events: wire.tools(first, second), after: "end" },
      { events: wire.text(["done"]), after: "end" },
    );
    const model = modelAt(server.url, kind);
    const result = await model.call(request());
    expect(result.stopReason).toBe("tool_calls");
    expect(result.toolCalls.map(({ input }) => input)).toEqual([{ text: "one" }, { text: "two" }]);
    const { text, toolCalls, reply } = result;
    const results = toolCalls.map(
      ({ callId }, at): ModelMessage => ({
        role: "tool",
        callId,
        name: "echo",
        content: `RESULT-${at}`,
        isError: at === 1,
      }),
    );
    await model.call(
      request({
        messages: [
          { role: "user", content: PROMPT },
          { role: "assistant", content: text, toolCalls, ...(reply === undefined ? {} : { reply }) },
          ...results,
        ],
      }),
    );
    const sent = JSON.stringify(server.requests[1]?.body);
    for (const part of ["RESULT-0", "RESULT-1", "one", "two"]) expect(sent).toContain(part);
    expect(sent.indexOf("RESULT-0")).toBeLessThan(sent.indexOf("RESULT-1"));
  });

  test.if(kind !== "google")("puts a tool call together that came in 50 pieces", async () => {
    const text = "x".repeat(500);
    const pieces = JSON.stringify({ text }).match(/[\s\S]{1,10}/g) ?? [];
    expect(pieces.length).toBeGreaterThan(50);
    const server = serve({ events: wire.tools({ id: "call_a", pieces }), after: "end" });
    const result = await modelAt(server.url, kind).call(request());
    expect(result.toolCalls).toEqual([{ callId: "call_a", name: "echo", input: { text } }]);
  });

  test("says when the model hit its output limit and when it was stopped", async () => {
    const cut = serve({ events: wire.cutOff(["Half an ans"]), after: "end" });
    expect(await modelAt(cut.url, kind).call(request())).toMatchObject({
      text: "Half an ans",
      stopReason: "length",
    });
    const filtered = serve({ events: wire.filtered(["Some"]), after: "end" });
    expect((await modelAt(filtered.url, kind).call(request())).stopReason).toBe(
      kind === "anthropic" ? "refusal" : "content_filter",
    );
  });

  test.each(["end", "break"] as const)(
    "never takes an unfinished stream for an answer (%s)",
    async (after) => {
      const server = serve({ events: wire.unfinished(["Half an ans"]), after });
      const error = await failure(modelAt(server.url, kind).call(request({ onText: () => {} })));
      expect(error.code).toBe("model_unavailable");
      expect(error.notRun).toBe(false);
      expect(inspect(error, { depth: 10 })).not.toContain(PROMPT);
    },
  );

  test("never takes a stream for an answer that is cut in the middle of an event", async () => {
    const whole = wire.text(["Half ", "an answer"]).join("");
    const server = serve({ events: [whole.slice(0, Math.floor(whole.length * 0.6))], after: "end" });
    const error = await failure(modelAt(server.url, kind).call(request()));
    expect(["model_unavailable", "model_failed"]).toContain(error.code);
    expect(error.notRun).toBe(false);
  });

  test.each(["data: {not json\n\n", "data: 17\n\n", 'data: {"choices": "no", "candidates": 3}\n\n'])(
    "does not take malformed events for an answer: %j",
    async (event) => {
      const server = serve({ events: [event], after: "end" });
      const error = await failure(modelAt(server.url, kind).call(request()));
      expect(["model_unavailable", "model_failed"]).toContain(error.code);
      expect(inspect(error, { depth: 10 })).not.toContain(KEY);
    },
  );

  test.each([
    [429, "model_unavailable", true],
    [529, "model_unavailable", false],
    [500, "model_unavailable", false],
    [503, "model_unavailable", false],
    [408, "model_unavailable", false],
    [400, "model_rejected", true],
    [401, "model_rejected", true],
    [404, "model_rejected", true],
  ] as const)("turns HTTP %i into %s, and says nothing of what was sent", async (status, code, notRun) => {
    const secret = `bad key ${KEY} for ${PROMPT}`;
    const body = JSON.stringify({ type: "error", error: { type: "some_error", message: secret } });
    const server = serve({ status, body, headers: { "retry-after": "7" } });
    const logger = recordingLogger();
    const error = await failure(modelAt(server.url, kind, { logger }).call(request()));
    expect(error.code).toBe(code);
    expect(error.notRun).toBe(notRun);
    expect(error.message).toContain(`HTTP ${status}`);
    if (code === "model_unavailable") expect(error.retryAfterMs).toBe(7000);
    expect(server.requests).toHaveLength(1);
    const everything = inspect([error, logger.lines], { depth: 10 });
    expect(everything).not.toContain(KEY);
    expect(everything).not.toContain(PROMPT);
  });

  test("follows no redirect, which would take the key elsewhere", async () => {
    const other = serve({ events: wire.text(["stolen"]), after: "end" });
    const server = serve({ status: 307, body: "", headers: { location: `${other.url}${PATHS[kind]}` } });
    const error = await failure(modelAt(server.url, kind).call(request()));
    expect(error).toMatchObject({ code: "model_rejected", notRun: true });
    expect(error.message).toContain("redirects elsewhere");
    expect(other.requests).toHaveLength(0);
  });

  test("a provider that falls silent is given up after the inactivity limit, and its request ends", async () => {
    const server = serve({ events: wire.unfinished(["Half"]), after: "hang" });
    const clock = createFakeClock();
    const limits = { inactivityMs: 5_000, totalMs: 60_000 };
    const call = modelAt(server.url, kind, { clock, limits }).call(
      request({ onText: () => void setImmediate(() => clock.advance(5_000)) }),
    );
    const error = await failure(call);
    expect(error.code).toBe("model_unavailable");
    expect(error.message).toContain("5000 ms");
    await server.clientGone;
    expect(clock.pending()).toBe(0);
  });

  test("a cancelled call ends its request", async () => {
    const server = serve({ events: wire.unfinished(["Half"]), after: "hang" });
    const abort = new AbortController();
    const call = modelAt(server.url, kind).call(
      request({ signal: abort.signal, onText: () => abort.abort(new Error("cancelled")) }),
    );
    expect((await failure(call)).message).toContain("aborted");
    await server.clientGone;
  });

  test("sends an image and a PDF where the model takes them, and text documents as text", async () => {
    const server = serve({ events: wire.text(["seen"]), after: "end" });
    const png = new Uint8Array([137, 80, 78, 71, 13, 10, 26, 10, 1, 2, 3]);
    const pdf = new TextEncoder().encode("%PDF-1.7 canary");
    const message: ModelMessage = {
      role: "user",
      content: PROMPT,
      attachments: [
        { kind: "image", mediaType: "image/png", name: "a.png", data: png },
        { kind: "document", mediaType: "application/pdf", name: "b.pdf", data: pdf },
        {
          kind: "document",
          mediaType: "text/markdown",
          name: "notes.md",
          data: new TextEncoder().encode("# Notes"),
        },
      ],
    };
    const box = { models: [{ id: "local:7b", images: true, documents: true }] };
    await modelAt(server.url, kind, { box }).call(request({ messages: [message] }));
    const sent = JSON.stringify(server.requests[0]?.body);
    expect(sent).toContain(Buffer.from(png).toString("base64"));
    expect(sent).toContain(Buffer.from(pdf).toString("base64"));
    expect(sent).toContain("[document notes.md]\\n# Notes");
  });
});

test("a stream that never ends is broken off after the total limit, although it never falls silent", async () => {
  const clock = createFakeClock();
  const [word = ""] = WIRE.compatible.unfinished(["word "]);
  const cancelled = Promise.withResolvers<void>();
  const endless = () =>
    new ReadableStream<Uint8Array>({
      pull(controller) {
        clock.advance(4_000);
        controller.enqueue(new TextEncoder().encode(word));
      },
      cancel: () => cancelled.resolve(),
    });
  const model = modelAt("http://127.0.0.1:9", "compatible", {
    clock,
    limits: { inactivityMs: 30_000, totalMs: 60_000 },
    fetch: async () => new Response(endless(), { headers: { "content-type": "text/event-stream" } }),
  });
  const error = await failure(model.call(request()));
  expect(error.code).toBe("model_unavailable");
  expect(error.message).toContain("took too long (limit 60000 ms)");
  await cancelled.promise;
});

test.each(["compatible", "anthropic", "google"] as const)(
  "an answer that asks for tools without end is stopped, and none of them runs (%s)",
  async (kind) => {
    const many = Array.from({ length: MODEL_TOOL_CALLS_MAX + 1 }, (_, at) => ({
      id: `c${at}`,
      pieces: ["{}"],
    }));
    const over = serve({ events: WIRE[kind].tools(...many), after: "end" });
    const error = await failure(modelAt(over.url, kind).call(request()));
    expect(error).toMatchObject({ code: "model_failed", notRun: false });
    expect(error.message).toContain(`limit ${MODEL_TOOL_CALLS_MAX} tool calls`);
    const atLimit = serve({ events: WIRE[kind].tools(...many.slice(1)), after: "end" });
    const { toolCalls } = await modelAt(atLimit.url, kind).call(request());
    expect(toolCalls).toHaveLength(MODEL_TOOL_CALLS_MAX);
  },
);

test("an answer without end is stopped at the limit of characters", async () => {
  const server = serve({
    events: WIRE.compatible.unfinished(Array(12).fill("y".repeat(100_000))),
    after: "hang",
  });
  const error = await failure(modelAt(server.url, "compatible").call(request()));
  expect(error.code).toBe("model_failed");
  expect(error.message).toContain("1000000 characters");
  await server.clientGone;
});

test("an image for a model that takes none is refused before anything is sent, and the setting is named", async () => {
  const server = serve({ events: WIRE.compatible.text(["no"]), after: "end" });
  const image = { kind: "image", mediaType: "image/png", name: "a.png", data: new Uint8Array([1]) } as const;
  const messages: ModelMessage[] = [{ role: "user", content: "look", attachments: [image] }];
  const error = await failure(modelAt(server.url, "compatible").call(request({ messages })));
  expect(error.code).toBe("model_rejected");
  expect(error.message).toContain("images");
  expect(error.message).toContain("providers.local[].models");
  const tiff = [{ ...image, mediaType: "image/tiff" }];
  const other = await failure(
    modelAt(server.url, "anthropic").call(
      request({ messages: [{ role: "user", content: "look", attachments: tiff }] }),
    ),
  );
  expect(other.message).toContain("image/tiff");
  expect(server.requests).toHaveLength(0);
});

test("a provider that counts only a part leaves the usage incomplete", async () => {
  const [text = ""] = WIRE.compatible.text(["ok"]);
  const end =
    'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n';
  const server = serve({ events: [text, end], after: "end" });
  const result = await modelAt(server.url, "compatible").call(request());
  expect(result.usageComplete).toBe(false);
  expect(result).not.toHaveProperty("inputTokens");
});

test("chunks with empty choices are no answer, and no obstacle to one", async () => {
  const empty = 'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[]}\n\n';
  const alone = serve({ events: [empty, "data: [DONE]\n\n"], after: "end" });
  expect((await failure(modelAt(alone.url, "compatible").call(request()))).code).toBe("model_unavailable");
  const between = serve({ events: [empty, ...WIRE.compatible.text(["ok"])], after: "end" });
  expect((await modelAt(between.url, "compatible").call(request({ tools: [echo] }))).text).toBe("ok");
});
