import { afterEach, describe, expect, test } from "bun:test";
import type { ModelMessage, ModelResult } from "../../src/core/ports/model.ts";
import type { Effort } from "../../src/model/create.ts";
import { KINDS, type Kind, modelAt, NAMES, recordingLogger, request, WIRE } from "../support/model-rig.ts";
import { anthropicWire, openaiWire, startWireServer, type WireServer } from "../support/model-wire.ts";
import { googleWire, responsesWire } from "../support/model-wire-hosted.ts";

let server: WireServer | undefined;
afterEach(async () => {
  await server?.stop();
  server = undefined;
});

const THOUGHT = "the user seems to want an echo";

/** A first answer that thinks and then calls a tool. */
const THINKING: Partial<Record<Kind, string[]>> = {
  anthropic: [
    anthropicWire.start(),
    ...anthropicWire.thinking(0, ["the user seems ", "to want an echo"], "SIGNATURE-1"),
    ...anthropicWire.redacted(1, "REDACTED-2"),
    ...anthropicWire.text(2, ["Let me see."]),
    ...anthropicWire.tool(3, "call_a", "echo", ['{"text":"one"}']),
    ...anthropicWire.finish("tool_use"),
  ],
  responses: [
    responsesWire.start(),
    ...responsesWire.reasoning(0, "rs_1", ["the user seems ", "to want an echo"], "ENCRYPTED-1"),
    ...responsesWire.tool(1, "call_a", "echo", ['{"text":"one"}']),
    ...responsesWire.finish(),
  ],
  google: [
    ...googleWire.thought(["the user seems ", "to want an echo"]),
    ...googleWire.tool("echo", { text: "one" }, "THOUGHT-SIGNATURE-1"),
    ...googleWire.finish("STOP"),
  ],
  compatible: [
    ...openaiWire.reasoning(["the user seems ", "to want an echo"]),
    ...openaiWire.tool("call_a", "echo", ['{"text":"one"}']),
    ...openaiWire.finish("tool_calls"),
  ],
};

/** The conversation after the tool of that answer, with the call under the host's own id for it. */
function next({ text, toolCalls, reply }: ModelResult): ModelMessage[] {
  const own = toolCalls.map((call) => ({ ...call, callId: `own-${call.callId}` }));
  return [
    { role: "user", content: "say one" },
    { role: "assistant", content: text, toolCalls: own, ...(reply === undefined ? {} : { reply }) },
    ...own.map(
      ({ callId }): ModelMessage => ({ role: "tool", callId, name: "echo", content: "one", isError: false }),
    ),
  ];
}

async function roundTrip(kind: Kind) {
  const events = THINKING[kind] ?? [];
  server = startWireServer({ events, after: "end" }, { events: WIRE[kind].text(["done"]), after: "end" });
  const logger = recordingLogger();
  const model = modelAt(server.url, kind, { logger });
  const heard: string[] = [];
  const result = await model.call(request({ onText: (delta) => heard.push(delta) }));
  // As the journal keeps it: what is sent back has been through JSON.
  const stored = JSON.parse(JSON.stringify(result)) as ModelResult;
  await model.call(request({ messages: next(stored) }));
  const body = server.requests[1]?.body ?? {};
  expect(JSON.stringify(logger.lines)).not.toContain(THOUGHT);
  return { result, heard, body, server };
}

describe("reasoning", () => {
  test("goes back to Anthropic with its signature, in its place, redacted blocks too", async () => {
    const { result, heard, body } = await roundTrip("anthropic");
    expect(heard.join("")).toBe("Let me see.");
    expect(result.text).toBe("Let me see.");
    const messages = body.messages as { role: string; content: unknown[] }[];
    expect(messages[1]).toEqual({
      role: "assistant",
      content: [
        { type: "thinking", thinking: THOUGHT, signature: "SIGNATURE-1" },
        { type: "redacted_thinking", data: "REDACTED-2" },
        { type: "text", text: "Let me see." },
        { type: "tool_use", id: "own-call_a", name: "echo", input: { text: "one" } },
      ],
    });
  });

  test("goes back to OpenAI's responses encrypted, and nothing is left to be kept there", async () => {
    const { result, heard, body, server } = await roundTrip("responses");
    expect(heard).toEqual([]);
    expect(result.text).toBe("");
    expect(server.requests[0]?.body).toMatchObject({
      store: false,
      include: ["reasoning.encrypted_content"],
    });
    const input = body.input as Record<string, unknown>[];
    const at = input.findIndex((item) => item.type === "reasoning");
    expect(input[at]).toMatchObject({
      id: "rs_1",
      encrypted_content: "ENCRYPTED-1",
      summary: [{ type: "summary_text", text: THOUGHT }],
    });
    expect(input[at + 1]).toMatchObject({ type: "function_call", call_id: "own-call_a", name: "echo" });
    expect(input[at + 2]).toMatchObject({
      type: "function_call_output",
      call_id: "own-call_a",
      output: "one",
    });
  });

  test("goes back to Google as the signature of its call", async () => {
    const { heard, body } = await roundTrip("google");
    expect(heard).toEqual([]);
    expect(JSON.stringify(body)).toContain('"thoughtSignature":"THOUGHT-SIGNATURE-1"');
  });

  test("of a compatible server is no text, and goes back as its reasoning", async () => {
    const { result, heard, body } = await roundTrip("compatible");
    expect(heard).toEqual([]);
    expect(result.text).toBe("");
    expect(result.toolCalls).toHaveLength(1);
    expect(JSON.stringify(body)).toContain(`"reasoning_content":"${THOUGHT}"`);
  });

  test("of one model is not shown to another, which gets the text and the calls", async () => {
    const { result } = await roundTrip("anthropic");
    await server?.stop();
    server = startWireServer({ events: WIRE.responses.text(["ok"]), after: "end" });
    await modelAt(server.url, "responses").call(request({ messages: next(result) }));
    const sent = JSON.stringify(server.requests[0]?.body);
    expect(sent).toContain("Let me see.");
    expect(sent).toContain("own-call_a");
    for (const hidden of [THOUGHT, "SIGNATURE-1", "REDACTED-2"]) expect(sent).not.toContain(hidden);
  });
});

describe("a refusal of the model", () => {
  test.each([
    ["chat", [openaiWire.refusal("I can't help with that."), ...openaiWire.finish("stop")]],
    ["compatible", [openaiWire.refusal("I can't help with that."), ...openaiWire.finish("stop")]],
    [
      "responses",
      [
        responsesWire.start(),
        ...responsesWire.refusal(0, "msg_1", "I can't help with that."),
        ...responsesWire.finish(),
      ],
    ],
  ] as const)("of %s is told from an answer, with its words", async (kind, events) => {
    server = startWireServer({ events: [...events], after: "end" });
    const result = await modelAt(server.url, kind).call(request());
    expect(result).toMatchObject({ text: "I can't help with that.", stopReason: "refusal" });
  });
});

describe("effort", () => {
  const sent = async (kind: Kind, effort: Effort, name = NAMES[kind]) => {
    server = startWireServer({ events: WIRE[kind].text(["ok"]), after: "end" });
    await modelAt(server.url, kind, { effort, name }).call(request());
    const body: Record<string, unknown> = server.requests[0]?.body ?? {};
    await server.stop();
    return body;
  };

  test("is each provider's own setting", async () => {
    expect(await sent("responses", "low")).toMatchObject({ reasoning: { effort: "low" } });
    expect(await sent("compatible", "medium")).toMatchObject({ reasoning_effort: "medium" });
    expect(await sent("chat", "high", "openai_chat:o3")).toMatchObject({ reasoning_effort: "high" });
    expect(await sent("anthropic", "none")).toMatchObject({ thinking: { type: "disabled" } });
    expect(await sent("anthropic", "medium")).toMatchObject({ thinking: { type: "enabled" } });
    expect(JSON.stringify(await sent("google", "low"))).toContain('"thinkingLevel":"low"');
  });

  test("that a model does not have becomes the nearest that it has", async () => {
    const ultra = await sent("responses", "ultra", "openai:o3");
    expect(ultra.reasoning).toEqual({ effort: "high" });
    expect((await sent("responses", "none", "openai:o3")).reasoning).toEqual({ effort: "low" });
    expect((await sent("responses", "ultra")).reasoning).toEqual({ effort: "high" });
    expect(await sent("chat", "high", "openai_chat:gpt-4o")).not.toHaveProperty("reasoning_effort");
    for (const [given, expected] of [
      ["minimal", "low"],
      ["xhigh", "high"],
      ["max", "high"],
      ["ultra", "high"],
    ] as const) {
      expect(await sent("compatible", given)).toMatchObject({ reasoning_effort: expected });
    }
  });

  test("waits for the next turn on Anthropic when another model began this one", async () => {
    const begun = async (model: string) => {
      server = startWireServer({ events: WIRE.anthropic.text(["ok"]), after: "end" });
      const first: ModelResult = {
        text: "",
        toolCalls: [{ callId: "c", name: "echo", input: {} }],
        stopReason: "tool_calls",
        reply: { model, parts: [{ type: "tool_call", index: 0 }] },
      };
      const messages: ModelMessage[] = [
        { role: "user", content: "before" },
        { role: "assistant", content: "an earlier answer" },
        ...next(first),
      ];
      await modelAt(server.url, "anthropic", { effort: "high" }).call(request({ messages }));
      const { body } = server.requests[0] ?? {};
      await server.stop();
      return body?.thinking;
    };
    expect(await begun(NAMES.anthropic)).toMatchObject({ type: "enabled" });
    expect(await begun("openai:gpt-5")).toBeUndefined();
  });

  test("is not sent unless it is configured", async () => {
    for (const kind of KINDS) {
      server = startWireServer({ events: WIRE[kind].text(["ok"]), after: "end" });
      await modelAt(server.url, kind).call(request());
      const body = JSON.stringify(server.requests[0]?.body);
      await server.stop();
      expect(body).not.toMatch(/"(thinking|reasoning_effort|effort|thinkingConfig)":(?!"none")/);
    }
  });
});
