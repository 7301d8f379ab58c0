import { afterEach, describe, expect, test } from "bun:test";
import fc from "fast-check";
import type { ModelProvider } from "../../src/model/create.ts";
import { createThinkSplitter, unopenedThought } from "../../src/model/think-tags.ts";
import { modelAt, request, WIRE } from "../support/model-rig.ts";
import { openaiWire, startWireServer, type WireServer } from "../support/model-wire.ts";

let server: WireServer | undefined;
afterEach(async () => {
  await server?.stop();
  server = undefined;
});

async function answer(
  pieces: string[],
  kind: "compatible" | "chat" = "compatible",
  box: Partial<ModelProvider> = {},
) {
  server = startWireServer({ events: WIRE[kind].text(pieces), after: "end" });
  const heard: string[] = [];
  const model = modelAt(server.url, kind, { box });
  const result = await model.call(request({ onText: (text) => heard.push(text) }));
  return { heard: heard.join(""), text: result.text, parts: result.reply?.parts };
}

/** All that the splitter says of these pieces, by what it is. */
function split(pieces: readonly string[], thinksFirst = false) {
  const splitter = createThinkSplitter({ thinksFirst });
  const all = [...pieces.flatMap((piece) => splitter.push(piece)), ...splitter.end()];
  const of = (type: "text" | "reasoning") =>
    all.flatMap((each) => (each.type === type ? [each.text] : [])).join("");
  return { reasoning: of("reasoning"), text: of("text") };
}

describe("reasoning that a local server leaves in the text", () => {
  test("is no text: nobody hears it, and it is kept as reasoning", async () => {
    const { heard, text, parts } = await answer([
      "<thi",
      "nk>\nThe user ",
      "wants…</th",
      "ink>\n\nHello",
      " there",
    ]);
    expect(heard).toBe("Hello there");
    expect(text).toBe("Hello there");
    expect(parts).toEqual([
      { type: "reasoning", text: "\nThe user wants…" },
      { type: "text", text: "Hello there" },
    ]);
  });

  test("goes before tool calls too, and back to its model with them", async () => {
    const call = openaiWire.tool("call_a", "echo", ['{"text":"one"}']);
    const events = [...openaiWire.text(["<think>so</think>"]), ...call, ...openaiWire.finish("tool_calls")];
    server = startWireServer({ events, after: "end" });
    const result = await modelAt(server.url, "compatible").call(request());
    expect(result).toMatchObject({ text: "", toolCalls: [{ name: "echo" }] });
    expect(result.reply?.parts).toEqual([
      { type: "reasoning", text: "so" },
      { type: "tool_call", index: 0 },
    ]);
  });

  test("what was held back comes before the call that follows it", async () => {
    const call = openaiWire.tool("call_a", "echo", ['{"text":"one"}']);
    server = startWireServer({
      events: [...openaiWire.text(["<th"]), ...call, ...openaiWire.finish("tool_calls")],
      after: "end",
    });
    const { reply } = await modelAt(server.url, "compatible").call(request());
    expect(reply?.parts.map(({ type }) => type)).toEqual(["text", "tool_call"]);
  });

  test("is that of a local server only: elsewhere the words are the model's own", async () => {
    expect((await answer(["<think>x</think>y"], "chat")).text).toBe("<think>x</think>y");
  });

  test.each([
    [["Write <think>x</think>"], "", "Write <think>x</think>"],
    [["<thinking>x</thinking>"], "", "<thinking>x</thinking>"],
    [["<thin"], "", "<thin"],
    [["<"], "", "<"],
    [[" \n<think>a</think>"], "a", ""],
    [["<think>a</think>b<think>c</think>"], "a", "b<think>c</think>"],
    [["<think>never ends </thin"], "never ends </thin", ""],
    [["<think></think>\n\n", "\n", "  b"], "", "b"],
    [["  b"], "", "  b"],
    [[""], "", ""],
  ] as const)("%j", (pieces, reasoning, text) => {
    expect(split(pieces)).toEqual({ reasoning, text });
  });

  test("that the chat template has opened is no part of the answer, though it was heard before it was known", async () => {
    const { heard, text, parts } = await answer(["The user wants…\n</th", "ink>\n\nHello"]);
    expect(heard).toContain("The user wants");
    expect(text).toBe("Hello");
    expect(parts).toEqual([
      { type: "reasoning", text: "The user wants…\n" },
      { type: "text", text: "Hello" },
    ]);
  });

  test("of a model that thinks first is heard by nobody", async () => {
    const box = { models: [{ id: "local:7b", thinksFirst: true }] };
    for (const begin of ["", "<think>", "\n<think>\n"]) {
      const { heard, text, parts } = await answer(
        [begin, "Wants…\n</th", "ink>\n\nHello"],
        "compatible",
        box,
      );
      expect([heard, text, parts?.length]).toEqual(["Hello", "Hello", 2]);
      await server?.stop();
    }
  });

  test("of a model that thinks first stays apart where its server tells it apart", async () => {
    const events = [
      ...openaiWire.reasoning(["so"]),
      ...openaiWire.text(["Hello </think>\n there"]),
      ...openaiWire.finish("stop"),
    ];
    server = startWireServer({ events, after: "end" });
    const box = { models: [{ id: "local:7b", thinksFirst: true }] };
    const { text } = await modelAt(server.url, "compatible", { box }).call(request());
    expect(text).toBe("Hello </think>\n there");
  });

  test.each([
    ["a thought.\n</think>\n\nHello", "a thought.\n", "Hello"],
    ["a thought.</think>Hello", "a thought.", "Hello"],
    ["</think>\n\nHello", "", "Hello"],
    ["a thought </think>", "a thought ", ""],
    ["a thought\n</think> Hello", "a thought\n", "Hello"],
  ])("opened by nobody, in %j, ends with its tag", (whole, reasoning, text) => {
    expect(unopenedThought(whole)).toEqual({ reasoning, text });
  });

  test.each([
    "Hello",
    "Write `</think>` at the end.",
    'The tag "</think>" ends it.',
    "The tag </think> ends it.",
    "```\nthought\n</think>\n```",
    "<think>\n</think>\n is how it is written",
  ])("is not suspected in %j", (whole) => {
    expect(unopenedThought(whole)).toBeUndefined();
  });

  test("does not depend on how the text is cut up", () => {
    const words = fc.constantFrom("<think>", "</think>", "<", "</", "think>", "a", " ", "\n", "ü");
    fc.assert(
      fc.property(
        fc.array(words, { maxLength: 12 }),
        fc.nat({ max: 4 }),
        fc.boolean(),
        (parts, less, first) => {
          const size = less + 1;
          const whole = parts.join("");
          const pieces = Array.from({ length: Math.ceil(whole.length / size) }, (_, at) =>
            whole.slice(at * size, (at + 1) * size),
          );
          expect(split(pieces, first)).toEqual(split([whole], first));
        },
      ),
    );
  });
});
