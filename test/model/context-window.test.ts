import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { ModelError } from "../../src/core/errors.ts";
import type { ModelMessage } from "../../src/core/ports/model.ts";
import { fitToWindow } from "../../src/model/context-window.ts";

const user = (content: string): ModelMessage => ({ role: "user", content });
const assistant = (content: string): ModelMessage => ({ role: "assistant", content });
const result = (content: string, name = "search"): ModelMessage => ({
  role: "tool",
  callId: "c",
  name,
  content,
  isError: false,
});
/** About so many tokens by the estimate of four bytes. */
const tokens = (count: number) => "word".repeat(count);

function fit(messages: ModelMessage[], windowTokens: number | undefined, over = {}) {
  return fitToWindow({ system: "", tools: [], messages, ...over }, windowTokens, "box:m").messages;
}
function refusal(messages: ModelMessage[], windowTokens: number, over = {}): ModelError {
  try {
    fit(messages, windowTokens, over);
  } catch (error) {
    if (error instanceof ModelError) return error;
    throw error;
  }
  throw new Error("it fitted");
}

describe("the context window", () => {
  test("takes away whole turns, oldest first, until the request fits", () => {
    const messages = [
      user(tokens(300)),
      assistant(tokens(300)),
      assistant("a later answer of that turn"),
      user(tokens(100)),
      assistant(tokens(100)),
      user("now"),
    ];
    expect(fit(messages, 10_000)).toEqual(messages);
    expect(fit(messages, 600)).toEqual(messages.slice(3));
    expect(fit(messages, 200)).toEqual(messages.slice(5));
  });

  test("is not guessed where nobody told its size", () => {
    const messages = [user(tokens(1_000_000)), assistant("ok"), user("now")];
    expect(fit(messages, undefined)).toEqual(messages);
  });

  test("keeps the present turn whole, or refuses it by the name of its largest part", () => {
    const calls: ModelMessage = {
      role: "assistant",
      content: "",
      toolCalls: [{ callId: "c", name: "search", input: {} }],
    };
    const turn = [user("now"), calls, result(tokens(500))];
    expect(fit([user(tokens(400)), assistant("ok"), ...turn], 1_000)).toEqual(turn);
    const tool = refusal([user("before"), assistant("ok"), ...turn], 500);
    expect(tool).toMatchObject({ code: "model_rejected", notRun: true });
    expect(tool.message).toBe(
      "box:m: the request is longer than the model's context window (it holds 500 tokens; the result of the tool search has about 504)",
    );
    expect(refusal([user(tokens(900))], 500).message).toContain("the message to answer has about 904");
    expect(refusal([user("hi")], 500, { system: tokens(900) }).message).toContain(
      "the agent's instructions and tools",
    );
  });

  test("goes by what the provider counted where that is more than the estimate", () => {
    const messages = [user(tokens(200)), assistant("ok"), user(tokens(100))];
    expect(fit(messages, 1_000)).toHaveLength(3);
    // Twice the tokens of the estimate.
    expect(fit(messages, 700, { measured: { bytes: 400, tokens: 200 } })).toHaveLength(1);
    // Fewer tokens than the estimate are not believed: other text may have more.
    expect(fit(messages, 200 + 200, { measured: { bytes: 4000, tokens: 100 } })).toHaveLength(1);
  });

  test("counts images and documents", () => {
    const image = { kind: "image", mediaType: "image/png", name: "a", data: new Uint8Array(10) } as const;
    const seen: ModelMessage = { role: "user", content: "look", attachments: [image, image] };
    expect(refusal([seen], 3_000).code).toBe("model_rejected");
    const text = {
      kind: "document",
      mediaType: "text/plain",
      name: "a",
      data: new Uint8Array(40_000),
    } as const;
    expect(refusal([{ role: "user", content: "read", attachments: [text] }], 9_000).message).toContain(
      "the message to answer",
    );
  });

  test("whatever the history, what is left begins with a user message or is all of it, and ends alike", () => {
    const message = fc.oneof(
      fc.nat(400).map((size) => user(tokens(size))),
      fc.nat(400).map((size) => assistant(tokens(size))),
    );
    fc.assert(
      fc.property(
        fc.array(message, { maxLength: 12 }),
        fc.integer({ min: 700, max: 4_000 }),
        (history, size) => {
          const messages = [...history, user("now")];
          const left = fit(messages, size);
          expect(left).toEqual(messages.slice(messages.length - left.length));
          expect(left.length === messages.length || left[0]?.role === "user").toBe(true);
        },
      ),
    );
  });
});
