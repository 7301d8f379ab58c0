import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { ModelError } from "../../src/core/errors.ts";
import type { Attachment, ModelResult } from "../../src/core/ports/model.ts";
import type { StepOutcome } from "../../src/core/ports/turns.ts";
import { createSynthesis } from "../../src/harness/synthesis.ts";
import { createFakeIds } from "../support/fake-ids.ts";
import { calls, createFakeTools, createScriptedModel, says } from "../support/harness-fakes.ts";
import { createRig, HERE, type Rig, runOne, texts, watch } from "./rig.ts";

let rig: Rig;
beforeEach(async () => {
  rig = await createRig();
});
afterEach(() => rig.remove());

const picture: Attachment = {
  kind: "image",
  mediaType: "image/png",
  name: "a.png",
  data: new Uint8Array([1, 2, 3]),
};

/** The ledger, with what each step was closed with. */
function journal() {
  const closed: StepOutcome[] = [];
  const turns: typeof rig.store = {
    ...rig.store,
    closeStep: async (stepId, outcome) => {
      closed.push(outcome);
      await rig.store.closeStep(stepId, outcome);
    },
  };
  return { closed, turns };
}

describe("how a model stopped", () => {
  const cut: [string, ModelResult, RegExp][] = [
    [
      "cut off",
      { ...says("Half an ans"), stopReason: "length" },
      /^Half an ans\n\n\[The answer ends here because the model reached its output limit\.\]$/,
    ],
    [
      "cut off before any text",
      { ...says(""), stopReason: "length" },
      /^\[The model reached its output limit before it had written an answer\.\]$/,
    ],
    [
      "refused",
      { ...says("No."), stopReason: "refusal" },
      /^No\.\n\n\[The model declined to answer this \(refusal\)\.\]$/,
    ],
    [
      "filtered",
      { ...says(""), stopReason: "content_filter" },
      /^\[The model's provider stopped this answer \(content filter\)\.\]$/,
    ],
    ["unexplained", { ...says("So"), stopReason: "other" }, /^So\n\n\[The model ended its answer early/],
  ];

  test.each(cut)("is said in the answer: %s", async (_, result, expected) => {
    const engine = await rig.engine({ model: createScriptedModel([result]) });
    const { events } = watch(engine);
    await engine.submit(rig.input("question"));
    await engine.stop();
    const [, answer = ""] = await texts(rig);
    expect(answer.replace("assistant: ", "")).toMatch(expected);
    const preview = events.flatMap((event) => (event.type === "delta" ? [event.text] : [])).join("");
    expect(`assistant: ${preview}`).toBe(answer);
  });

  test("an ordinary end says nothing, and an empty answer is still a failure", async () => {
    expect((await runOne(rig, { model: createScriptedModel([says("fine")]) })).status).toBe("succeeded");
    expect(await texts(rig)).toContain("assistant: fine");
    const empty = { ...says(""), notices: ["Answered by b:m. a:m: the provider has a fault."] };
    const turn = await runOne(rig, { model: createScriptedModel([empty]) });
    expect(turn.failure?.code).toBe("empty_response");
  });

  test("tools of an answer that was cut short do not run", async () => {
    for (const stopReason of ["length", "content_filter", "refusal"] as const) {
      const tools = createFakeTools({ pay: undefined });
      const model = createScriptedModel([{ ...calls("pay"), text: "Now I", stopReason }]);
      expect((await runOne(rig, { tools, model })).status).toBe("succeeded");
      expect(tools.called).toEqual([]);
      expect((await texts(rig)).at(-1)).toContain("It was about to use tools; they were not run.");
    }
  });
});

describe("a model's own record of its answer", () => {
  const thinking: ModelResult = {
    ...calls({ callId: "", name: "look" }, { callId: "", name: "look" }),
    text: "Let me see.",
    usageComplete: true,
    answeredBy: "b:m",
    measured: { bytes: 100, tokens: 40 },
    reply: {
      model: "b:m",
      parts: [
        { type: "reasoning", text: "SECRET THOUGHT", vendor: { anthropic: { signature: "SIG" } } },
        { type: "text", text: "Let me see." },
        { type: "tool_call", index: 0 },
        { type: "tool_call", index: 1 },
      ],
    },
  };

  test("is journaled and goes back to it unchanged, with the host's own call ids beside it", async () => {
    const { closed, turns } = journal();
    const model = createScriptedModel([thinking, says("done")]);
    await runOne(rig, { model, turns, tools: createFakeTools({ look: undefined }) });
    expect(closed[0]).toMatchObject({ parts: thinking.reply?.parts, answeredBy: "b:m", usageComplete: true });
    const second = model.requests[1];
    const said = second?.messages.find((message) => message.role === "assistant");
    expect(said).toMatchObject({ content: "Let me see.", reply: thinking.reply });
    const ids = said?.role === "assistant" ? (said.toolCalls ?? []).map(({ callId }) => callId) : [];
    expect(new Set(ids).size).toBe(2);
    const results = second?.messages.flatMap((each) => (each.role === "tool" ? [each.callId] : []));
    expect(results).toEqual(ids);
    expect(second).toMatchObject({ startWith: "b:m", measured: { bytes: 100, tokens: 40 } });
  });

  test("reaches no event, no message, no history and no log", async () => {
    const engine = await rig.engine({
      model: createScriptedModel([
        thinking,
        { ...says("done"), reply: { model: "b:m", parts: thinking.reply?.parts ?? [] } },
      ]),
      tools: createFakeTools({ look: undefined }),
    });
    const { events } = watch(engine);
    await engine.submit(rig.input("question"));
    await engine.stop();
    const shown = JSON.stringify([
      events,
      await rig.store.feed(HERE, 0, 100),
      await rig.store.history(HERE, 64),
      rig.logger.lines,
    ]);
    expect(shown).toContain("done");
    for (const hidden of ["SECRET THOUGHT", "SIG"]) expect(shown).not.toContain(hidden);
  });
});

test("what a person should know of any step stands once in the answer", async () => {
  const notices = ["Answered by b:m. a:m: the provider limits requests at present (HTTP 429)."];
  const model = createScriptedModel([
    { ...calls("look"), notices },
    { ...calls("look"), notices },
    says("done"),
  ]);
  await runOne(rig, { model, tools: createFakeTools({ look: undefined }) });
  expect((await texts(rig)).at(-1)).toBe(`assistant: done\n\n[${notices[0]}]`);
});

describe("attachments of a turn", () => {
  test("reach the model with the question, in every step", async () => {
    const model = createScriptedModel([calls("look"), says("a cat")]);
    const engine = await rig.engine({ model, tools: createFakeTools({ look: undefined }) });
    const input = { ...rig.input("what is it?"), attachments: [picture] };
    expect(await engine.submit(input)).toMatchObject({ ok: true });
    expect(await engine.submit(input)).toMatchObject({ ok: true, value: { replayed: true } });
    await engine.stop();
    for (const { messages } of model.requests) {
      expect(messages.find((message) => message.role === "user")).toEqual({
        role: "user",
        content: `what is it?\n\n[attached: ${picture.name}, image/png]`,
        attachments: [picture],
      });
    }
    const history = await rig.store.history(HERE, 64);
    expect(history.map(({ content }) => content)).toEqual([
      `what is it?\n\n[attached: ${picture.name}, image/png]`,
      "a cat",
    ]);
  });

  test("that no model takes end the turn with the reason", async () => {
    const refusing = createScriptedModel([
      () => {
        throw new ModelError("model_rejected", "box:m: this model does not take such input (images)");
      },
    ]);
    const engine = await rig.engine({ model: refusing });
    await engine.submit({ ...rig.input("what is it?"), attachments: [picture] });
    await engine.stop();
    expect((await texts(rig)).at(-1)).toBe(
      "notice: The model could not answer: box:m: this model does not take such input (images)",
    );
  });

  test.each([
    ["too many", Array(9).fill(picture), "at most 8"],
    ["empty", [{ ...picture, data: new Uint8Array() }], "is empty"],
    ["too large", [{ ...picture, data: new Uint8Array(8 * 1024 * 1024 + 1) }], "8 MiB"],
    [
      "too large together",
      Array(3).fill({ ...picture, data: new Uint8Array(7 * 1024 * 1024) }),
      "20 MiB in all",
    ],
    ["of another kind", [{ ...picture, kind: "document" as const }], "is called document"],
    ["without a media type", [{ ...picture, mediaType: "png" }], "media type"],
    ["with a bad name", [{ ...picture, name: "a\nb" }], "name"],
  ])("are refused before anything is durable: %s", async (_, attachments, words) => {
    const engine = await rig.engine();
    const admitted = await engine.submit({ ...rig.input("look"), attachments });
    if (admitted.ok) throw new Error("it was admitted");
    expect(admitted.refusal.code).toBe("invalid_attachment");
    expect(admitted.refusal.message).toContain(words);
    expect(await rig.store.unfinishedTurns()).toEqual([]);
    await engine.stop();
  });
});

describe("a synthesis", () => {
  const synthesize = (result: ModelResult) => {
    const model = createScriptedModel([result]);
    const { synthesize } = createSynthesis({
      model,
      turns: rig.store,
      ids: createFakeIds("synthesis"),
      systemPrompt: "You are a test agent.",
      currentConversation: (id) => id,
    });
    const answer = synthesize({
      continuationId: "c",
      originRunId: "r",
      conversationId: HERE,
      mode: "reply",
      payload: {},
      context: { policy: "detached_latest" },
      signal: new AbortController().signal,
    });
    return { model, answer };
  };

  test("runs its model at most once", async () => {
    const { model, answer } = synthesize(says("ok"));
    expect(await answer).toBe("ok");
    expect(model.requests[0]?.atMostOnce).toBe(true);
  });

  test("says when it was cut off or refused, and who answered instead", async () => {
    const cut = { ...says("Half"), stopReason: "length" as const, notices: ["Answered by b:m. a:m: gone."] };
    expect(await synthesize(cut).answer).toBe(
      "Half\n\n[The answer ends here because the model reached its output limit.]\n[Answered by b:m. a:m: gone.]",
    );
    const refused = { ...says(""), stopReason: "refusal" as const };
    expect(await synthesize(refused).answer).toBe("[The model declined to answer this (refusal).]");
    const ignored = { ...calls("rm"), text: "the text" };
    expect(await synthesize(ignored).answer).toBe("the text");
  });
});
