import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { McpError, ModelError, TurnError } from "../../src/core/errors.ts";
import { TOOL_RESULT_MAX_CHARS } from "../../src/core/limits.ts";
import { snapshotDigest, snapshotJson } from "../../src/core/snapshot.ts";
import {
  calls,
  createFakeClaims,
  createFakeTools,
  createScriptedModel,
  says,
  traceStore,
} from "../support/harness-fakes.ts";
import { completeTurn } from "../support/turns-fixture.ts";
import { createRig, HERE, type Rig, runOne, texts, watch } from "./rig.ts";

let rig: Rig;
beforeEach(async () => {
  rig = await createRig();
});
afterEach(() => rig.remove());

const LEDGER = [
  "startRun",
  "openStep",
  "closeStep",
  "openToolCall",
  "closeToolCall",
  "commitTurn",
  "closeActivation",
  "endTurn",
] as const;
const tracedStore = (faults: Parameters<typeof traceStore>[3] = {}) =>
  traceStore(rig.store, rig.trace, LEDGER, faults);

function activeClaims(faults: Parameters<typeof createFakeClaims>[1] = {}) {
  const claims = createFakeClaims(rig.trace, faults);
  claims.active = true;
  return claims;
}

describe("a turn that succeeds", () => {
  test("journals around each call, settles the tools, finalizes, commits, then activates", async () => {
    const claims = activeClaims();
    const turn = await runOne(rig, {
      turns: tracedStore(),
      model: createScriptedModel([calls("start"), says("accepted")], rig.trace),
      tools: createFakeTools({ start: undefined }, rig.trace),
      claims,
    });
    expect(rig.trace).toEqual([
      "startRun",
      "issue",
      "tools.open",
      "openStep",
      "model",
      "closeStep",
      "openToolCall",
      "tool start",
      "closeToolCall",
      "openStep",
      "model",
      "closeStep",
      "tools.close",
      "release",
      "finalize",
      "commitTurn",
      "activate",
      "closeActivation",
    ]);
    expect(turn.status).toBe("succeeded");
    expect(await texts(rig)).toEqual(["user: question", "assistant: accepted"]);
    expect(await rig.store.openActivations()).toEqual([]);
  });

  test("hands the tools the capabilities, and the model none of them, no route and no conversation id", async () => {
    const tools = createFakeTools({ start: undefined });
    const claims = createFakeClaims();
    const model = createScriptedModel([calls("start"), says("done")]);
    await runOne(rig, { tools, claims, model });
    expect(tools.opened[0]?.capabilities.get("work")?.token).toBe("secret-token");
    expect(claims.origins).toEqual([
      { originRunId: tools.opened[0]?.runId ?? "", conversationId: HERE, replyTo: HERE },
    ]);
    const seen = JSON.stringify(model.requests);
    for (const secret of ["secret-token", HERE, tools.opened[0]?.runId ?? "?", "127.0.0.1"]) {
      expect(seen).not.toContain(secret);
    }
    expect(model.requests[0]?.system).toStartWith("You are a test agent.");
  });

  test("without active claims it builds no snapshot and writes no outbox row", async () => {
    const claims = createFakeClaims(rig.trace);
    await runOne(rig, { claims });
    expect(rig.trace).not.toContain("finalize");
    expect(rig.trace).not.toContain("activate");
    expect(rig.trace).not.toContain("abandon");
    expect(claims.snapshots).toEqual([]);
  });

  test("binds a snapshot of the exact bucket whose last pair is what history holds", async () => {
    await completeTurn(rig.store, "t1", "earlier answer");
    await completeTurn(rig.store, "t2", "of another day", { conversationId: `${HERE}#2026-01-01` });
    const claims = activeClaims({
      activate: () => {
        throw new Error("disk full");
      },
    });
    await runOne(
      rig,
      { claims, model: createScriptedModel([says("  ünïcode answer \n")]) },
      "  the question\n",
    );
    const snapshot = claims.snapshots[0];
    expect(snapshot?.messages.map((message) => message.content)).toEqual([
      "question t1",
      "earlier answer",
      "  the question\n",
      "  ünïcode answer \n",
    ]);
    const history = await rig.store.history(HERE, 64);
    expect(history.map((message) => message.content)).toEqual(
      snapshot!.messages.map((message) => message.content),
    );
    const [user, assistant] = snapshot!.messages.slice(-2);
    expect([user?.timestamp, assistant?.timestamp]).toEqual([snapshot!.capturedAt, snapshot!.capturedAt]);
    expect(await rig.store.openActivations()).toMatchObject([
      { originRunId: snapshot!.originRunId, snapshotDigest: snapshotDigest(snapshotJson(snapshot!)) },
    ]);
  });

  test("a failing activation leaves the success and the outbox row for the next start", async () => {
    const claims = activeClaims({
      activate: () => {
        throw new Error("store poisoned");
      },
    });
    const turn = await runOne(rig, { claims, turns: tracedStore() });
    expect(turn.status).toBe("succeeded");
    expect(rig.trace.slice(-2)).toEqual(["commitTurn", "activate"]);
    expect(await rig.store.openActivations()).toHaveLength(1);
    expect(rig.logger.lines.some((line) => line.level === "error")).toBe(true);
  });

  test("observers see the question, previews, tools and the answer; one that throws harms nothing", async () => {
    const engine = await rig.engine({
      model: createScriptedModel([calls("start"), says("all done")]),
      tools: createFakeTools({ start: undefined }),
    });
    engine.observe(HERE, () => {
      throw new Error("broken observer");
    });
    const seen = watch(engine);
    const stopWatching = engine.observe(HERE, () =>
      seen.events.push({ type: "delta", turnId: "", text: "twice" }),
    );
    stopWatching();
    await engine.submit(rig.input("question"));
    await engine.stop();
    expect(
      seen.events.map((event) =>
        "message" in event
          ? event.message.role
          : "status" in event
            ? event.status
            : "phase" in event
              ? event.phase
              : event.text,
      ),
    ).toEqual(["queued", "user", "running", "started", "finished", "all ", "done", "assistant", "succeeded"]);
  });
});

describe("steps", () => {
  test("the model sees at most the last 64 messages as whole turns, then the question", async () => {
    for (let i = 0; i < 40; i++) await completeTurn(rig.store, `t${i}`, `answer ${i}`);
    const model = createScriptedModel([says("ok")]);
    await runOne(rig, { model });
    const messages = model.requests[0]?.messages ?? [];
    expect(messages).toHaveLength(65);
    expect(messages[0]).toEqual({ role: "user", content: "question t8" });
    expect(messages.at(-1)).toEqual({ role: "user", content: "question" });
  });

  test("tool results go back to the model in order, and equal call ids of two steps are told apart", async () => {
    const model = createScriptedModel([
      calls({ callId: "call_0", name: "one" }, { callId: "", name: "two" }),
      calls({ callId: "call_0", name: "one" }),
      says("done"),
    ]);
    const failing = () => ({ text: "no such file", isError: true });
    const turn = await runOne(rig, { model, tools: createFakeTools({ one: undefined, two: failing }) });
    expect(turn.status).toBe("succeeded");
    const last = model.requests[2]?.messages ?? [];
    expect(last.filter((message) => message.role === "tool")).toMatchObject([
      { name: "one", content: "one done", isError: false },
      { name: "two", content: "no such file", isError: true },
      { name: "one", content: "one done" },
    ]);
    const asked = last.flatMap((message) => (message.role === "assistant" ? (message.toolCalls ?? []) : []));
    const answered = last.flatMap((message) => (message.role === "tool" ? [message.callId] : []));
    expect(answered).toEqual(asked.map((call) => call.callId));
    expect(new Set(answered).size).toBe(3);
  });

  test("an unknown tool is an answer to the model, not a call", async () => {
    const tools = createFakeTools({ one: undefined });
    const model = createScriptedModel([calls("nope"), says("sorry")]);
    const turn = await runOne(rig, { model, tools });
    expect(turn.status).toBe("succeeded");
    expect(tools.called).toEqual([]);
    expect(model.requests[1]?.messages.at(-1)).toMatchObject({ role: "tool", isError: true });
  });

  test("a call whose outcome is unknown is told to the model as that", async () => {
    const lost = () => {
      throw new McpError("mcp_failed", "the connection closed");
    };
    const model = createScriptedModel([calls("pay"), says("I can't tell")]);
    const tools = createFakeTools({ pay: lost });
    const turn = await runOne(rig, { model, tools });
    expect(turn.status).toBe("succeeded");
    expect(tools.called).toHaveLength(1);
    expect(model.requests[1]?.messages.at(-1)).toMatchObject({
      isError: true,
      content: expect.stringContaining("unknown"),
    });
  });

  test("a long tool result is cut with a note, within the limit and never inside a character", async () => {
    const long = () => ({ text: "😀".repeat(TOOL_RESULT_MAX_CHARS), isError: false });
    const model = createScriptedModel([calls("read"), says("done")]);
    await runOne(rig, { model, tools: createFakeTools({ read: long }) });
    const content = model.requests[1]?.messages.at(-1)?.content ?? "";
    expect(content.length).toBeLessThanOrEqual(TOOL_RESULT_MAX_CHARS);
    expect(content).toContain(`the tool answered ${TOOL_RESULT_MAX_CHARS * 2} characters`);
    expect(content.isWellFormed()).toBe(true);
  });

  test("at the step limit the turn fails visibly and the last tool calls are not made", async () => {
    const tools = createFakeTools({ again: undefined }, rig.trace);
    const model = createScriptedModel([calls("again")]);
    const turn = await runOne(rig, { model, tools, claims: createFakeClaims(rig.trace) });
    expect(turn).toMatchObject({ status: "failed", failure: { code: "step_limit" } });
    expect(model.requests).toHaveLength(5);
    expect(tools.called).toHaveLength(4);
    expect((await texts(rig)).at(-1)).toStartWith("notice: ");
    expect(rig.trace.slice(-3)).toEqual(["tools.close", "release", "abandon"]);
  });
});

describe("a turn that fails", () => {
  const boom = (error: Error) => () => {
    throw error;
  };
  const failures: [string, string, () => Parameters<typeof runOne>[1]][] = [
    [
      "the claims can't be issued",
      "internal_error",
      () => ({ claims: activeClaims({ issue: boom(new Error("x")) }) }),
    ],
    [
      "the tools can't be opened",
      "unsupported_continuation_server",
      () => ({
        tools: createFakeTools({}, rig.trace, {
          open: async () => boom(new McpError("unsupported_continuation_server", "no"))(),
        }),
      }),
    ],
    [
      "the model is refused",
      "model_rejected",
      () => ({
        model: createScriptedModel([boom(new ModelError("model_rejected", "bad key")) as () => never]),
      }),
    ],
    ["the answer is empty", "empty_response", () => ({ model: createScriptedModel([says(" \n ")]) })],
    [
      "a tool breaks",
      "internal_error",
      () => ({
        model: createScriptedModel([calls("one")]),
        tools: createFakeTools({ one: boom(new Error("bug")) }, rig.trace),
      }),
    ],
    [
      "a step can't be journaled",
      "turns_failed",
      () => ({
        turns: tracedStore({ openStep: boom(new TurnError("turns_failed", "disk full")) }),
      }),
    ],
    [
      "the drain fails",
      "internal_error",
      () => ({ claims: activeClaims({ release: async () => boom(new Error("x"))() }) }),
    ],
    [
      "the snapshot can't hold the pair",
      "snapshot_too_large",
      () => ({
        model: createScriptedModel([says("long ".repeat(20_000))]),
      }),
    ],
    [
      "the snapshot is refused",
      "snapshot_quota",
      () => ({ claims: activeClaims({ refusal: "snapshot_quota" }) }),
    ],
    [
      "finalizing breaks",
      "internal_error",
      () => ({ claims: activeClaims({ finalize: async () => boom(new Error("x"))() }) }),
    ],
    [
      "the commit fails",
      "turns_failed",
      () => ({
        turns: tracedStore({ commitTurn: boom(new TurnError("turns_failed", "disk full")) }),
      }),
    ],
  ];

  test.each(failures)(
    "when %s it ends as %s, with a notice, and then its claims are abandoned",
    async (_, code, deps) => {
      const overrides = { claims: activeClaims(), turns: tracedStore(), ...deps() };
      const turn = await runOne(rig, overrides);
      expect(turn).toMatchObject({ status: "failed", failure: { code } });
      expect(await rig.store.openActivations()).toEqual([]);
      expect(await texts(rig)).toEqual(["user: question", expect.stringMatching(/^notice: \S/)]);
      expect(rig.trace).not.toContain("activate");
      if (rig.trace.includes("tools.open") && code !== "unsupported_continuation_server") {
        expect(rig.trace.indexOf("tools.close")).toBeLessThan(rig.trace.indexOf("release"));
      }
      const issued = code !== "internal_error" || rig.trace.includes("release");
      if (issued) expect(rig.trace.slice(-2)).toEqual(["endTurn", "abandon"]);
      expect(await rig.store.history(HERE, 64)).toEqual([]);
    },
  );

  test("a run that can't be started ends the turn without claims", async () => {
    const turns = tracedStore({ startRun: boom(new TurnError("turns_failed", "disk full")) });
    expect(await runOne(rig, { turns })).toMatchObject({ status: "failed" });
    expect(rig.trace).toEqual(["startRun", "endTurn"]);
  });

  test("a commit in doubt abandons nothing and says nothing, because the next start decides", async () => {
    const turns = tracedStore({ commitTurn: boom(new TurnError("commit_in_doubt", "unreadable")) });
    const turn = await runOne(rig, { turns, claims: activeClaims() });
    expect(rig.trace.at(-1)).toBe("commitTurn");
    expect(turn.status).toBe("running");
    expect(rig.logger.lines.at(-1)).toMatchObject({ level: "error" });
  });

  test("when the ledger can't end the turn its claims stay pending for the next start", async () => {
    const turns = tracedStore({ endTurn: boom(new TurnError("turns_failed", "disk full")) });
    await runOne(rig, { turns, claims: activeClaims(), model: createScriptedModel([says("")]) });
    expect(rig.trace.at(-1)).toBe("endTurn");
  });

  test("a fault after a commit that did land neither fails the turn nor abandons its claims", async () => {
    const commitTurn: typeof rig.store.commitTurn = async (commit) => {
      await rig.store.commitTurn(commit);
      throw new Error("after the commit");
    };
    const turn = await runOne(rig, { turns: { ...rig.store, commitTurn }, claims: activeClaims() });
    expect(turn.status).toBe("succeeded");
    expect(rig.trace).not.toContain("abandon");
    expect(await texts(rig)).toEqual(["user: question", "assistant: answer"]);
  });

  test("claims that can't be abandoned don't change the turn", async () => {
    const claims = activeClaims({ abandon: boom(new Error("poisoned")) });
    const turn = await runOne(rig, { claims, model: createScriptedModel([says("")]) });
    expect(turn.failure?.code).toBe("empty_response");
    expect(rig.logger.lines.at(-1)).toMatchObject({ level: "error" });
  });

  test("tools that can't be closed don't fail the turn", async () => {
    const tools = createFakeTools({}, rig.trace, { close: async () => boom(new Error("stuck"))() });
    expect((await runOne(rig, { tools })).status).toBe("succeeded");
  });
});
