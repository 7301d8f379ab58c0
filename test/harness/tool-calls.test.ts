import { Database } from "bun:sqlite";
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { McpError } from "../../src/core/errors.ts";
import { TOOL_CALLS_AT_ONCE, TURN_TOOL_IMAGES_MAX } from "../../src/core/limits.ts";
import {
  calls,
  createFakeTools,
  createGate,
  createScriptedModel,
  type Gate,
  says,
  traceStore,
} from "../support/harness-fakes.ts";
import { createRig, type Rig, runOne, watch } from "./rig.ts";

let rig: Rig;
beforeEach(async () => {
  rig = await createRig();
});
afterEach(() => rig.remove());

/** The rows of all tool calls, in the order in which they were opened. */
function rows() {
  const db = new Database(rig.folder.path, { readonly: true });
  try {
    return db
      .query<
        { call_id: string; finished_at: string | null; is_error: number | null; text: string | null },
        []
      >("SELECT call_id, finished_at, is_error, text FROM tool_calls ORDER BY rowid")
      .all();
  } finally {
    db.close();
  }
}

const never = () => new Promise<never>(() => {});
const done = (text: string) => ({ text, isError: false });

/** A tool that waits until the test lets it go. */
function held() {
  const started = createGate();
  const go = createGate();
  const run = async (text: string) => {
    started.open();
    await go.opened;
    return done(text);
  };
  return { started, go, run };
}

describe("read-only calls side by side", () => {
  test("run at the same time, and the model gets their results in its own order", async () => {
    const [a, b] = [held(), held()];
    const model = createScriptedModel([calls("a", "b"), says("both read")]);
    const tools = createFakeTools({ a: () => a.run("of a"), b: () => b.run("of b") }, rig.trace, {
      readOnly: ["a", "b"],
    });
    const running = runOne(rig, {
      model,
      tools,
      turns: traceStore(rig.store, rig.trace, ["openToolCall", "closeToolCall"]),
    });
    await Promise.all([a.started.opened, b.started.opened]);
    // The second ends first.
    b.go.open();
    const closed = async () => rows().some((row) => row.text === "of b");
    while (!(await closed())) await new Promise<void>((resolve) => setImmediate(resolve));
    a.go.open();
    expect((await running).status).toBe("succeeded");
    expect(model.requests[1]?.messages.slice(-2)).toMatchObject([
      { callId: "c0", name: "a", content: "of a" },
      { callId: "c1", name: "b", content: "of b" },
    ]);
    expect(rows()).toMatchObject([
      { call_id: "c0", is_error: 0, text: "of a" },
      { call_id: "c1", is_error: 0, text: "of b" },
    ]);
    expect(rig.trace.filter((entry) => /ToolCall|^tool /.test(entry))).toEqual([
      "openToolCall",
      "openToolCall",
      "tool a",
      "tool b",
      "closeToolCall",
      "closeToolCall",
    ]);
  });

  test("wait for a call before them that may change something, and it waits for them", async () => {
    let open = 0;
    let most = 0;
    const order: string[] = [];
    const tool = (name: string) => async () => {
      order.push(`${name}+`);
      most = Math.max(most, ++open);
      await new Promise<void>((resolve) => setImmediate(resolve));
      open -= 1;
      order.push(`${name}-`);
      return done(name);
    };
    const names = ["read1", "read2", "write1", "write2", "read3"];
    const tools = createFakeTools(Object.fromEntries(names.map((name) => [name, tool(name)])), [], {
      readOnly: ["read1", "read2", "read3"],
    });
    await runOne(rig, { model: createScriptedModel([calls(...names), says("ok")]), tools });
    expect(order.slice(4)).toEqual(["write1+", "write1-", "write2+", "write2-", "read3+", "read3-"]);
    expect(order.slice(0, 2)).toEqual(["read1+", "read2+"]);
    expect(most).toBe(2);
  });

  test("are never more at a time than the limit", async () => {
    let open = 0;
    let most = 0;
    const read = async () => {
      most = Math.max(most, ++open);
      await new Promise<void>((resolve) => setImmediate(resolve));
      open -= 1;
      return done("read");
    };
    const many = Array.from({ length: TOOL_CALLS_AT_ONCE * 2 + 1 }, (_, at) => ({
      callId: `m${at}`,
      name: "read",
    }));
    const tools = createFakeTools({ read }, [], { readOnly: ["read"] });
    const model = createScriptedModel([calls(...many), says("ok")]);
    await runOne(rig, { model, tools });
    expect(tools.called).toHaveLength(many.length);
    expect(most).toBe(TOOL_CALLS_AT_ONCE);
    const answered = model.requests[1]?.messages.flatMap((message) =>
      message.role === "tool" ? [message.callId] : [],
    );
    expect(answered).toEqual(many.map(({ callId }) => callId));
  });

  test("one that fails loses none of the others' results", async () => {
    const lost = () => {
      throw new McpError("mcp_failed", "the connection closed");
    };
    const refused = () => ({ text: "no such file", isError: true });
    const tools = createFakeTools({ lost, refused, fine: undefined }, [], {
      readOnly: ["lost", "refused", "fine"],
    });
    const model = createScriptedModel([calls("lost", "refused", "fine"), says("told")]);
    const turn = await runOne(rig, { model, tools });
    expect(turn.status).toBe("succeeded");
    expect(model.requests[1]?.messages.slice(-3)).toMatchObject([
      { name: "lost", isError: true, content: expect.stringContaining("unknown") },
      { name: "refused", isError: true, content: "no such file" },
      { name: "fine", isError: false, content: "fine done" },
    ]);
    expect(rows().map(({ is_error }) => is_error)).toEqual([1, 1, 0]);
    const warned = rig.logger.lines.filter(({ level }) => level === "warn");
    expect(warned.map(({ fields }) => fields)).toMatchObject([
      { code: "mcp_failed", server: "work", tool: "lost", reason: "the connection closed" },
    ]);
  });

  test("are told apart by their ids in the events, also when they are equal", async () => {
    let turn = 0;
    const same = () => ({ text: "", isError: turn++ === 1 });
    const tools = createFakeTools({ same }, [], { readOnly: ["same"] });
    const engine = await rig.engine({
      model: createScriptedModel([calls("same", "same"), says("told")]),
      tools,
    });
    const seen = watch(engine);
    await engine.submit(rig.input("question"));
    await engine.stop();
    const told = seen.events.flatMap((event) => (event.type === "tool" ? [event] : []));
    expect(told.filter(({ callId }) => callId === "c0").map(({ phase }) => phase)).toEqual([
      "started",
      "finished",
    ]);
    expect(told.filter(({ callId }) => callId === "c1").map(({ phase }) => phase)).toEqual([
      "started",
      "failed",
    ]);
  });

  /** Tools that hang, keep the signal that they were given, and ignore it. */
  function hanging(
    names: readonly string[],
    reached: Gate,
    others: Parameters<typeof createFakeTools>[0] = {},
  ) {
    const signals: AbortSignal[] = [];
    const hang = (signal: AbortSignal) => {
      if (signals.push(signal) === names.length) reached.open();
      return never();
    };
    const all = { ...Object.fromEntries(names.map((name) => [name, hang])), ...others };
    const tools = createFakeTools(all, [], { readOnly: Object.keys(all) });
    return { signals, tools };
  }

  test("are all aborted when the turn is cancelled, and none of their rows has a result", async () => {
    const reached = createGate();
    const { signals, tools } = hanging(["a", "b", "c"], reached);
    const engine = await rig.engine({ tools, model: createScriptedModel([calls("a", "b", "c")]) });
    const seen = watch(engine);
    const admitted = await engine.submit(rig.input("question"));
    if (!admitted.ok) throw new Error("not admitted");
    await reached.opened;
    await engine.cancel(admitted.value.turnId);
    await seen.ended(admitted.value.turnId);
    await engine.stop();
    expect(signals.map(({ aborted }) => aborted)).toEqual([true, true, true]);
    expect(await rig.store.getTurn(admitted.value.turnId)).toMatchObject({ status: "cancelled" });
    expect(rows().map(({ finished_at }) => finished_at)).toEqual([null, null, null]);
  });

  test("end together when the host itself fails in one, and the turn fails", async () => {
    const reached = createGate();
    const broken = async () => {
      await reached.opened;
      throw new TypeError("a mistake of ours");
    };
    const { signals, tools } = hanging(["a", "b"], reached, { broken });
    const turn = await runOne(rig, { tools, model: createScriptedModel([calls("a", "broken", "b")]) });
    expect(turn).toMatchObject({ status: "failed", failure: { code: "internal_error" } });
    expect(signals.map(({ aborted }) => aborted)).toEqual([true, true]);
  });
});

test("calls that may change something run one after another, although they stand side by side", async () => {
  let open = 0;
  const write = async () => {
    expect(++open).toBe(1);
    await new Promise<void>((resolve) => setImmediate(resolve));
    open -= 1;
    return done("written");
  };
  const model = createScriptedModel([calls("w1", "w2"), says("ok")]);
  const turn = await runOne(rig, { model, tools: createFakeTools({ w1: write, w2: write }) });
  expect(turn.status).toBe("succeeded");
});

describe("images in results", () => {
  const image = (n: number) => ({ mediaType: "image/png", data: new Uint8Array([n]) });

  test("reach the model with their result, and the journal as the line that names them", async () => {
    const shot = () => ({ text: "[image: image/png, 1 bytes]", isError: false, images: [image(1)] });
    const model = createScriptedModel([calls("shot"), says("seen")]);
    await runOne(rig, { model, tools: createFakeTools({ shot }) });
    expect(model.requests[1]?.messages.at(-1)).toMatchObject({ role: "tool", images: [image(1)] });
    expect(rows()).toMatchObject([{ text: "[image: image/png, 1 bytes]" }]);
  });

  test("are the newest of a turn, however many there were", async () => {
    let at = 0;
    const shot = () => ({ text: "two images", isError: false, images: [image(++at), image(++at)] });
    const steps = TURN_TOOL_IMAGES_MAX / 2 + 2;
    const model = createScriptedModel([...Array.from({ length: steps }, () => calls("shot")), says("seen")]);
    const limits = { maxSteps: 50, queue: 1, maxConcurrentRuns: 1 };
    await runOne(rig, { model, limits, tools: createFakeTools({ shot }) });
    const results = model.requests.at(-1)?.messages.filter((message) => message.role === "tool") ?? [];
    expect(results.map(({ content }) => content)).toEqual(Array.from({ length: steps }, () => "two images"));
    const shown = results.flatMap(({ images = [] }) => images.map(({ data }) => data[0]));
    expect(shown).toEqual(Array.from({ length: TURN_TOOL_IMAGES_MAX }, (_, n) => n + 5));
  });
});
