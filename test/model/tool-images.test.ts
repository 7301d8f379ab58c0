import { afterEach, describe, expect, test } from "bun:test";
import type { ModelMessage, ToolImage } from "../../src/core/ports/model.ts";
import { KINDS, type Kind, modelAt, providersAt, request, WIRE } from "../support/model-rig.ts";
import { startWireServer, type WireServer } from "../support/model-wire.ts";

let server: WireServer | undefined;
afterEach(async () => {
  await server?.stop();
  server = undefined;
});

const PNG = new Uint8Array([137, 80, 78, 71, 13, 10, 26, 10, 1, 2, 3]);
const BASE64 = Buffer.from(PNG).toString("base64");
const LINE = "[image: image/png, 11 bytes]";

function afterScreenshot(over: { isError?: boolean; images?: readonly ToolImage[] } = {}): ModelMessage[] {
  const call = { callId: "call_a", name: "echo", input: { text: "one" } };
  const images = [{ mediaType: "image/png", data: PNG }];
  return [
    { role: "user", content: "look at the page" },
    { role: "assistant", content: "", toolCalls: [call] },
    { role: "tool", callId: "call_a", name: "echo", content: LINE, isError: false, images, ...over },
  ];
}

async function sent(kind: Kind, messages: ModelMessage[], over: Parameters<typeof modelAt>[2] = {}) {
  server = startWireServer({ events: WIRE[kind].text(["seen"]), after: "end" });
  await modelAt(server.url, kind, over).call(request({ messages }));
  return server.requests[0]?.body ?? {};
}

const SHOWN: [Kind, string | undefined, Record<string, unknown>][] = [
  [
    "anthropic",
    undefined,
    {
      type: "tool_result",
      tool_use_id: "call_a",
      content: [
        { type: "text", text: LINE },
        { type: "image", source: { type: "base64", media_type: "image/png", data: BASE64 } },
      ],
    },
  ],
  [
    "responses",
    undefined,
    {
      type: "function_call_output",
      call_id: "call_a",
      output: [
        { type: "input_text", text: LINE },
        { type: "input_image", image_url: `data:image/png;base64,${BASE64}` },
      ],
    },
  ],
  [
    "google",
    undefined,
    {
      functionResponse: {
        id: "call_a",
        name: "echo",
        response: { name: "echo", content: LINE },
        parts: [{ inlineData: { mimeType: "image/png", data: BASE64 } }],
      },
    },
  ],
  ["google", "google:gemini-2.5-flash", { inlineData: { mimeType: "image/png", data: BASE64 } }],
];

describe("an image in a tool's result", () => {
  test.each(SHOWN)("is a part of the result for %s %s", async (kind, name, part) => {
    const body = await sent(kind, afterScreenshot(), name === undefined ? {} : { name });
    const parts: unknown[] = [];
    const walk = (value: unknown): void => {
      if (typeof value !== "object" || value === null) return;
      parts.push(value);
      Object.values(value).forEach(walk);
    };
    walk(body);
    expect(parts).toContainEqual(expect.objectContaining(part));
  });

  test.each(["chat", "compatible"] as const)(
    "is its line alone for %s, whose results hold only text",
    async (kind) => {
      const box = { models: [{ id: "local:7b", images: true }] };
      const body = JSON.stringify(await sent(kind, afterScreenshot(), { box }));
      expect(body).toContain(LINE);
      expect(body).not.toContain(BASE64);
    },
  );

  test("is its line alone where the configuration says that the model takes no images", async () => {
    server = startWireServer({ events: WIRE.anthropic.text(["ok"]), after: "end" });
    const providers = providersAt(server.url).map((each) => ({
      ...each,
      models: [{ id: "claude-sonnet-4-5", images: false }],
    }));
    await modelAt(server.url, "anthropic", { providers }).call(request({ messages: afterScreenshot() }));
    const body = JSON.stringify(server.requests[0]?.body);
    expect(body).toContain(LINE);
    expect(body).not.toContain(BASE64);
  });

  test.each(KINDS)("is not beside an error, which %s must see as one", async (kind) => {
    const body = JSON.stringify(await sent(kind, afterScreenshot({ isError: true })));
    expect(body).toContain(LINE);
    expect(body).not.toContain(BASE64);
  });

  test("counts for the window of a model that is shown it, and for no other", async () => {
    const images = Array.from({ length: 20 }, () => ({ mediaType: "image/png", data: PNG }));
    const messages = afterScreenshot({ images });
    const models = (id: string) => [{ id, contextTokens: 20_000 }];
    server = startWireServer({ events: WIRE.chat.text(["ok"]), after: "end" });
    const providers = [
      ...providersAt(server.url).map((each) =>
        each.id === "anthropic" ? { ...each, models: models("claude-sonnet-4-5") } : each,
      ),
    ].map((each) => (each.id === "openai" ? { ...each, models: models("gpt-5") } : each));
    const refused = modelAt(server.url, "anthropic", { providers }).call(request({ messages }));
    expect((await refused.catch((error: Error) => error)) as Error).toMatchObject({
      message: expect.stringContaining("the result of the tool echo"),
    });
    await modelAt(server.url, "chat", { providers }).call(request({ messages }));
    expect(server.requests).toHaveLength(1);
  });
});
