import { expect, test } from "bun:test";
import { latestConversationId } from "../../src/core/buckets.ts";
import { createSynthesis } from "../../src/harness/synthesis.ts";
import { idle } from "../support/continuation-world.ts";
import { createFakeIds } from "../support/fake-ids.ts";
import { createFakeTools, createScriptedModel, says } from "../support/harness-fakes.ts";
import { createRig, HERE, watch } from "./rig.ts";

/** Accidents around one turn. Each was a bug once. */

test("a detached synthesis under daily rollover sees the conversation of today", async () => {
  const rig = await createRig();
  const engine = await rig.engine();
  const seen = watch(engine);
  const turn = await engine.submit(rig.input("the blue car", { conversationId: `${HERE}#2026-11-30` }));
  if (!turn.ok) throw new Error(turn.refusal.code);
  await seen.ended(turn.value.turnId);
  const model = createScriptedModel([says("x")]);
  const synthesis = createSynthesis({
    model,
    turns: rig.store,
    ids: createFakeIds("s"),
    systemPrompt: "",
    currentConversation: (id) =>
      latestConversationId(
        id,
        { rollover: "daily", timezone: "UTC" },
        Date.parse("2026-11-30T12:00:00.000Z"),
      ),
  });
  await synthesis.synthesize({
    continuationId: "c",
    originRunId: "detached:ops:t",
    conversationId: HERE,
    mode: "notify_if_actionable",
    payload: {},
    context: { policy: "detached_latest" },
    signal: new AbortController().signal,
  });
  expect(JSON.stringify(model.requests[0]?.messages)).toContain("the blue car");
  await engine.stop();
  await rig.remove();
});

test("a tool session that never closes holds up neither the turn nor the stop", async () => {
  const rig = await createRig();
  const engine = await rig.engine({ tools: createFakeTools({}, [], { close: () => new Promise(() => {}) }) });
  await engine.submit(rig.input("q"));
  await idle();
  let stopped = false;
  void engine.stop().then(() => {
    stopped = true;
  });
  for (let look = 0; look < 4; look += 1) {
    await idle();
    rig.clock.advance(60_000);
  }
  await idle();
  expect(stopped).toBe(true);
  await rig.remove();
});

test("a turn whose admission was durable but never answered runs when the request is repeated", async () => {
  const rig = await createRig();
  let answered = false;
  const turns: typeof rig.store = {
    ...rig.store,
    async admit(turn) {
      const admitted = await rig.store.admit(turn);
      if (answered) return admitted;
      answered = true;
      throw new Error("the answer of COMMIT was lost");
    },
  };
  const engine = await rig.engine({ turns });
  const seen = watch(engine);
  const input = rig.input("q");
  expect(engine.submit(input)).rejects.toThrow("lost");
  const again = await engine.submit(input);
  if (!again.ok) throw new Error(again.refusal.code);
  await seen.ended(again.value.turnId);
  expect((await rig.store.getTurn(again.value.turnId))?.status).toBe("succeeded");
  await engine.stop();
  await rig.remove();
});

test("a question with a lone surrogate is one turn, however often its request is repeated", async () => {
  const rig = await createRig();
  const engine = await rig.engine();
  const seen = watch(engine);
  const input = rig.input("broken \ud800 text");
  const first = await engine.submit(input);
  if (!first.ok) throw new Error(first.refusal.code);
  await seen.ended(first.value.turnId);
  expect(await engine.submit(input)).toEqual({
    ok: true,
    value: { turnId: first.value.turnId, replayed: true },
  });
  await engine.stop();
  await rig.remove();
});
