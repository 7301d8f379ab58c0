import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { STOP_TIMEOUT_MS, TURN_TEXT_MAX_BYTES } from "../../src/core/limits.ts";
import type { ModelRequest } from "../../src/core/ports/model.ts";
import type { RunningTurnEngine, TurnEngineDeps } from "../../src/harness/turn-engine.ts";
import {
  calls,
  createFakeClaims,
  createFakeTools,
  createGate,
  createScriptedModel,
  type Gate,
  says,
  traceStore,
} from "../support/harness-fakes.ts";
import { AT, admission } from "../support/turns-fixture.ts";
import { createRig, HERE, type Rig, texts, watch } from "./rig.ts";

let rig: Rig;
beforeEach(async () => {
  rig = await createRig();
});
afterEach(() => rig.remove());

const lastText = (request: ModelRequest) => request.messages.at(-1)?.content ?? "";
const code = (result: { ok: boolean; refusal?: { code: string } }) => result.refusal?.code;
const statusOf = async (turnId: string) => (await rig.store.getTurn(turnId))?.status;

async function submit(engine: RunningTurnEngine, ...input: Parameters<Rig["input"]>): Promise<string> {
  const admitted = await engine.submit(rig.input(...input));
  if (!admitted.ok) throw new Error(admitted.refusal.code);
  return admitted.value.turnId;
}

/** A model that waits in each call until the test lets the text through. */
function createGatedModel() {
  const gates = new Map<string, { begun: Gate; go: Gate }>();
  const gate = (text: string) => {
    const known = gates.get(text) ?? { begun: createGate(), go: createGate() };
    gates.set(text, known);
    return known;
  };
  let atOnce = 0;
  const most = { value: 0 };
  const started: string[] = [];
  const model = createScriptedModel([
    async (request) => {
      const text = lastText(request);
      started.push(text);
      most.value = Math.max(most.value, ++atOnce);
      gate(text).begun.open();
      await gate(text).go.opened;
      atOnce--;
      return says(`re: ${text}`);
    },
  ]);
  return {
    model,
    most,
    started,
    begun: (text: string) => gate(text).begun.opened,
    go: (text: string) => gate(text).go.open(),
  };
}

describe("admission", () => {
  test("submit answers at admission, before the turn has run", async () => {
    const gated = createGatedModel();
    const engine = await rig.engine({ model: gated.model });
    const turnId = await submit(engine, "one");
    expect(["queued", "running"]).toContain((await statusOf(turnId)) ?? "");
    gated.go("one");
    await engine.stop();
    expect(await statusOf(turnId)).toBe("succeeded");
  });

  test("a request sent again runs once, also when both arrive together", async () => {
    const model = createScriptedModel([says("answer")]);
    const engine = await rig.engine({ model });
    const input = rig.input("one", { requestId: "same" });
    const [first, second] = await Promise.all([engine.submit(input), engine.submit(input)]);
    await engine.stop();
    expect(first).toMatchObject({ ok: true, value: { replayed: false } });
    expect(second).toMatchObject({ ok: true, value: { replayed: true } });
    expect(model.requests).toHaveLength(1);
    expect(await texts(rig)).toEqual(["user: one", "assistant: answer"]);
  });

  test("another text under the same request id is a conflict and does not run", async () => {
    const engine = await rig.engine();
    await submit(engine, "one", { requestId: "same" });
    expect(code(await engine.submit(rig.input("two", { requestId: "same" })))).toBe("request_conflict");
    await engine.stop();
    expect(await texts(rig)).toEqual(["user: one", "assistant: answer"]);
  });

  test("empty and oversized texts and ids are refused before anything is durable", async () => {
    const engine = await rig.engine();
    expect(code(await engine.submit(rig.input(" \n")))).toBe("invalid_text");
    expect(code(await engine.submit(rig.input("x".repeat(TURN_TEXT_MAX_BYTES + 1))))).toBe("invalid_text");
    const conversationId = `terminal:${"x".repeat(2048)}`;
    expect(code(await engine.submit(rig.input("one", { conversationId })))).toBe("invalid_conversationId");
    expect(code(await engine.submit(rig.input("one", { requestId: "\ud800" })))).toBe("invalid_requestId");
    expect(await rig.store.unfinishedTurns()).toEqual([]);
  });

  test("a full thread refuses the next turn and takes one again later", async () => {
    const gated = createGatedModel();
    const limits = { maxSteps: 5, queue: 2, maxConcurrentRuns: 4 };
    const engine = await rig.engine({ model: gated.model, limits });
    await submit(engine, "running");
    await gated.begun("running");
    await submit(engine, "first");
    await submit(engine, "second");
    expect(code(await engine.submit(rig.input("third")))).toBe("queue_full");
    await submit(engine, "other thread", { thread: "side" });
    gated.go("running");
    await gated.begun("first");
    await submit(engine, "third");
    for (const text of ["first", "second", "third", "other thread"]) gated.go(text);
    await gated.begun("third");
    await engine.stop();
    expect(gated.started.filter((text) => text !== "other thread")).toEqual([
      "running",
      "first",
      "second",
      "third",
    ]);
  });
});

describe("order", () => {
  test("turns of one thread run one at a time in admission order, over its daily buckets too", async () => {
    const gated = createGatedModel();
    const engine = await rig.engine({ model: gated.model });
    const names = ["1", "2", "3", "4", "5"];
    for (const name of names)
      await submit(engine, name, { conversationId: `${HERE}#2026-11-3${Number(name) % 2}` });
    for (const name of names) {
      await gated.begun(name);
      expect(gated.started.at(-1)).toBe(name);
      gated.go(name);
    }
    await engine.stop();
    expect(gated.started).toEqual(names);
    expect(gated.most.value).toBe(1);
  });

  test("different conversations run beside each other, up to the limit", async () => {
    const gated = createGatedModel();
    const engine = await rig.engine({
      model: gated.model,
      limits: { maxSteps: 5, queue: 100, maxConcurrentRuns: 2 },
    });
    for (const name of ["a", "b", "c"]) await submit(engine, name, { conversationId: `terminal:${name}` });
    await Promise.all([gated.begun("a"), gated.begun("b")]);
    expect(gated.started.toSorted()).toEqual(["a", "b"]);
    gated.go("b");
    await gated.begun("c");
    gated.go("a");
    gated.go("c");
    await engine.stop();
    expect(gated.most.value).toBe(2);
  });

  test("a failed turn does not stop the ones behind it, and leaves nothing in their context", async () => {
    const model = createScriptedModel([says(""), says("fine")]);
    const engine = await rig.engine({ model });
    const seen = watch(engine);
    await submit(engine, "delete everything");
    const second = await submit(engine, "what time is it");
    await seen.ended(second);
    await engine.stop();
    expect(await statusOf(second)).toBe("succeeded");
    expect(model.requests[1]?.messages).toEqual([{ role: "user", content: "what time is it" }]);
  });
});

describe("cancel", () => {
  test("a waiting turn never runs, and shows its question and a notice", async () => {
    const gated = createGatedModel();
    const engine = await rig.engine({ model: gated.model });
    const seen = watch(engine);
    await submit(engine, "one");
    const waiting = await submit(engine, "two");
    expect(await engine.cancel(waiting)).toEqual({ ok: true, value: undefined });
    await seen.ended(waiting);
    expect(code(await engine.cancel(waiting))).toBe("turn_finished");
    gated.go("one");
    await engine.stop();
    expect(gated.started).toEqual(["one"]);
    expect(await statusOf(waiting)).toBe("cancelled");
    expect((await texts(rig)).filter((text) => !text.startsWith("assistant"))).toEqual([
      "user: one",
      "user: two",
      "notice: This turn was cancelled.",
    ]);
  });

  test("an unknown turn is not found, a finished one is finished", async () => {
    const engine = await rig.engine();
    const seen = watch(engine);
    const turnId = await submit(engine, "one");
    await seen.ended(turnId);
    expect(code(await engine.cancel("nobody"))).toBe("not_found");
    expect(code(await engine.cancel(turnId))).toBe("turn_finished");
    await engine.stop();
  });

  /** Each phase hangs for good until it is aborted: the fakes ignore their signal. */
  const never = () => new Promise<never>(() => {});
  const phases: [string, (reached: Gate) => Partial<TurnEngineDeps>, string[]][] = [
    [
      "while the tools open",
      (reached) => ({
        tools: createFakeTools({}, rig.trace, {
          open: () => {
            reached.open();
            return never();
          },
        }),
      }),
      ["issue", "tools.open", "release", "endTurn", "abandon"],
    ],
    [
      "during the model call",
      (reached) => ({
        model: createScriptedModel([
          () => {
            reached.open();
            return never();
          },
        ]),
      }),
      ["issue", "tools.open", "release", "tools.close", "endTurn", "abandon"],
    ],
    [
      "during a tool call",
      (reached) => ({
        model: createScriptedModel([calls("slow")]),
        tools: createFakeTools(
          {
            slow: () => {
              reached.open();
              return never();
            },
          },
          rig.trace,
        ),
      }),
      ["issue", "tools.open", "tool slow", "release", "tools.close", "endTurn", "abandon"],
    ],
  ];
  test.each(phases)(
    "%s releases at once, ends the turn and abandons its claims",
    async (_, hang, expected) => {
      const reached = createGate();
      const claims = createFakeClaims(rig.trace);
      claims.active = true;
      const turns = traceStore(rig.store, rig.trace, ["endTurn"]);
      const engine = await rig.engine({ claims, turns, ...hang(reached) });
      const turnId = await submit(engine, "one");
      await reached.opened;
      expect(await engine.cancel(turnId)).toEqual({ ok: true, value: undefined });
      expect(await engine.cancel(turnId)).toEqual({ ok: true, value: undefined });
      await engine.stop();
      expect(rig.trace).toEqual(expected);
      expect(await rig.store.getTurn(turnId)).toMatchObject({
        status: "cancelled",
        failure: { code: "cancelled" },
      });
      expect(await texts(rig)).toEqual(["user: one", "notice: This turn was cancelled."]);
    },
  );

  test("tools that open after the abort are closed all the same", async () => {
    const reached = createGate();
    const late = createGate();
    const closed = createGate();
    const tools = createFakeTools({}, rig.trace, {
      open: () => {
        reached.open();
        return late.opened;
      },
      close: async () => closed.open(),
    });
    const engine = await rig.engine({ tools });
    const turnId = await submit(engine, "one");
    await reached.opened;
    await engine.cancel(turnId);
    await engine.stop();
    late.open();
    await closed.opened;
    expect(rig.trace.at(-1)).toBe("tools.close");
  });

  test("while the snapshot is stored the turn is still undone", async () => {
    const reached = createGate();
    const go = createGate();
    const claims = createFakeClaims(rig.trace, {
      finalize: () => {
        reached.open();
        return go.opened;
      },
    });
    claims.active = true;
    const engine = await rig.engine({ claims });
    const turnId = await submit(engine, "one");
    await reached.opened;
    expect((await engine.cancel(turnId)).ok).toBe(true);
    go.open();
    await engine.stop();
    expect(await statusOf(turnId)).toBe("cancelled");
    expect(rig.trace.at(-1)).toBe("abandon");
  });

  test("from the commit on it is too late", async () => {
    const engine: { now?: RunningTurnEngine } = {};
    const answers: (string | undefined)[] = [];
    let turnId = "";
    const turns = {
      ...rig.store,
      commitTurn: async (commit: Parameters<typeof rig.store.commitTurn>[0]) => {
        answers.push(code((await engine.now?.cancel(turnId)) ?? { ok: true }));
        return rig.store.commitTurn(commit);
      },
    };
    engine.now = await rig.engine({ turns });
    turnId = await submit(engine.now, "one");
    await engine.now.stop();
    expect(answers).toEqual(["turn_finished"]);
    expect(await statusOf(turnId)).toBe("succeeded");
  });
});

describe("stop and start", () => {
  test("what was running at a crash fails visibly, what waited runs in order", async () => {
    for (const id of ["t1", "t2", "t3"]) await rig.store.admit(admission(id));
    await rig.store.startRun("t1", "r1", AT);
    const model = createScriptedModel([says("answer")]);
    await rig.failInterrupted();
    const engine = rig.newEngine({ model });
    const seen = watch(engine);
    await engine.recover();
    await seen.ended("t3");
    await engine.stop();
    expect(await rig.store.getTurn("t1")).toMatchObject({
      status: "failed",
      failure: { code: "interrupted" },
    });
    expect(await rig.store.verdict("r1")).toBe("failed");
    expect(await texts(rig)).toEqual([
      "user: question t1",
      expect.stringContaining("notice: The host stopped before this turn was complete"),
      "user: question t2",
      "assistant: answer",
      "user: question t3",
      "assistant: answer",
    ]);
    await rig.engine({ model });
    expect(await texts(rig)).toHaveLength(6);
  });

  test("what was running at a crash is never taken up again, even when nobody ended it before", async () => {
    await rig.store.admit(admission("t1"));
    await rig.store.startRun("t1", "r1", AT);
    const engine = rig.newEngine({ model: createScriptedModel([says("answer")], rig.trace) });
    await expect(engine.recover()).rejects.toThrow("what a crash interrupted is ended before");
    await engine.stop();
    expect([rig.trace, await statusOf("t1")]).toEqual([[], "running"]);
  });

  test("a turn submitted before the recovery waits for it, behind the older ones, and can be cancelled", async () => {
    await rig.store.admit(admission("t1", { text: "older" }));
    const gated = createGatedModel();
    const engine = rig.newEngine({ model: gated.model });
    const seen = watch(engine);
    const cancelled = await submit(engine, "cancelled");
    const newer = await submit(engine, "newer");
    expect(await engine.cancel(cancelled)).toEqual({ ok: true, value: undefined });
    const recovered = engine.recover();
    const meanwhile = await submit(engine, "meanwhile");
    await recovered;
    for (const text of ["older", "newer", "meanwhile"]) {
      await gated.begun(text);
      gated.go(text);
    }
    await seen.ended(meanwhile);
    await engine.stop();
    expect(gated.started).toEqual(["older", "newer", "meanwhile"]);
    expect([await statusOf(cancelled), await statusOf(newer)]).toEqual(["cancelled", "succeeded"]);
    await expect(engine.recover()).rejects.toThrow("recovers once");
  });

  test("a crash right before the commit fails the turn, right after it keeps answer and outbox row", async () => {
    for (const crash of ["before", "after"]) {
      const claims = createFakeClaims();
      claims.active = true;
      const reached = createGate();
      const commitTurn: typeof rig.store.commitTurn = async (commit) => {
        if (crash === "after") await rig.store.commitTurn(commit);
        reached.open();
        return new Promise(() => {});
      };
      const dying = await rig.engine({ turns: { ...rig.store, commitTurn }, claims });
      const turnId = await submit(dying, `crash ${crash}`);
      await reached.opened;
      await rig.engine();
      expect(await statusOf(turnId)).toBe(crash === "after" ? "succeeded" : "failed");
    }
    expect(await rig.store.openActivations()).toHaveLength(1);
  });

  test("stopping refuses new turns, lets the running one finish and leaves the waiting one queued", async () => {
    const gated = createGatedModel();
    const engine = await rig.engine({ model: gated.model });
    const first = await submit(engine, "one");
    const second = await submit(engine, "two");
    await gated.begun("one");
    const stopped = engine.stop();
    expect(code(await engine.submit(rig.input("three")))).toBe("service_stopping");
    gated.go("one");
    await stopped;
    expect([await statusOf(first), await statusOf(second)]).toEqual(["succeeded", "queued"]);
    expect(rig.clock.pending()).toBe(0);
    const next = rig.newEngine();
    const seen = watch(next);
    await next.recover();
    await seen.ended(second);
    expect(await statusOf(second)).toBe("succeeded");
    await next.stop();
  });

  test("a turn that does not finish in time ends as interrupted", async () => {
    const gated = createGatedModel();
    const engine = await rig.engine({ model: gated.model, claims: createFakeClaims(rig.trace) });
    const turnId = await submit(engine, "one");
    await gated.begun("one");
    const stopped = engine.stop();
    rig.clock.advance(STOP_TIMEOUT_MS);
    await stopped;
    expect(await rig.store.getTurn(turnId)).toMatchObject({
      status: "failed",
      failure: { code: "interrupted" },
    });
    expect(rig.trace.at(-1)).toBe("abandon");
  });
});
