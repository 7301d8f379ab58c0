import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import type { TurnStore } from "../../src/core/ports/turns.ts";
import {
  AT,
  admission,
  completeTurn,
  createLedgerFolder,
  type LedgerFolder,
} from "../support/turns-fixture.ts";

let folder: LedgerFolder;
let store: TurnStore;

beforeEach(async () => {
  folder = createLedgerFolder();
  store = await folder.open();
});
afterEach(async () => {
  await store.close();
  folder.remove();
});

const code = (result: { ok: boolean; refusal?: { code: string } }) => result.refusal?.code;
const contents = (rows: readonly { content: string }[]) => rows.map((row) => row.content);

describe("admission", () => {
  test("a request id sent again gives the first turn, also from another daily bucket and over a restart", async () => {
    const first = await store.admit(admission("t1", { conversationId: "terminal:a#2026-11-30" }));
    await store.close();
    store = await folder.open();
    const again = await store.admit(
      admission("t2", {
        requestId: "request-t1",
        conversationId: "terminal:a#2026-12-01",
        text: "question t1",
      }),
    );
    expect(first).toMatchObject({
      ok: true,
      value: { replayed: false, turn: { turnId: "t1", status: "queued" } },
    });
    expect(again).toMatchObject({
      ok: true,
      value: { replayed: true, turn: { turnId: "t1", conversationId: "terminal:a#2026-11-30" } },
    });
    expect(await store.getTurn("t2")).toBeUndefined();
  });

  test("a request id with another text or thread is a conflict, in another conversation it is free", async () => {
    await store.admit(admission("t1"));
    const text = await store.admit(admission("t2", { requestId: "request-t1", text: "other" }));
    const thread = await store.admit(
      admission("t2", { requestId: "request-t1", text: "question t1", thread: "x" }),
    );
    const elsewhere = await store.admit(
      admission("t2", { requestId: "request-t1", baseId: "b", conversationId: "b" }),
    );
    expect([code(text), code(thread)]).toEqual(["request_conflict", "request_conflict"]);
    expect(elsewhere.ok).toBe(true);
  });

  test("a full thread refuses a new turn but not a replay, and other threads go on", async () => {
    await store.admit(admission("t1", { maxQueued: 2 }));
    await store.admit(admission("t2", { maxQueued: 2 }));
    expect(code(await store.admit(admission("t3", { maxQueued: 2 })))).toBe("queue_full");
    expect(await store.getTurn("t3")).toBeUndefined();
    expect(await store.admit(admission("t1", { maxQueued: 2 }))).toMatchObject({ value: { replayed: true } });
    expect((await store.admit(admission("t3", { maxQueued: 2, thread: "side" }))).ok).toBe(true);
    await store.startRun("t1", "r1", AT);
    expect((await store.admit(admission("t4", { maxQueued: 2 }))).ok).toBe(true);
  });
});

describe("runs", () => {
  test("the user message appears with the first run, and a later run keeps the origin run id", async () => {
    await store.admit(admission("t1"));
    expect(await store.tail("terminal:a", 10)).toEqual([]);
    const first = await store.startRun("t1", "r1", AT);
    const second = await store.startRun("t1", "r2", AT);
    expect(first.userMessage).toMatchObject({
      role: "user",
      content: "question t1",
      runId: "r1",
      turnId: "t1",
    });
    expect(second.userMessage).toBeUndefined();
    expect(second.run).toMatchObject({ runId: "r2", originRunId: "r1", status: "running" });
    expect(contents(await store.tail("terminal:a", 10))).toEqual(["question t1"]);
    await expect(
      store.commitTurn({ turnId: "t1", runId: "r1", assistantText: "late", now: AT }),
    ).rejects.toMatchObject({ code: "turn_finished" });
    await store.commitTurn({ turnId: "t1", runId: "r2", assistantText: "answer", now: AT });
    expect(await store.verdict("r1")).toBe("succeeded");
    expect((await store.history("terminal:a", 10)).map((message) => message.runId)).toEqual(["r1", "r1"]);
  });

  test("a commit writes answer, status and outbox row together, and survives a restart", async () => {
    await store.admit(admission("t1"));
    await store.startRun("t1", "r1", AT);
    const activation = { historyBoundary: "r1", snapshotDigest: "d".repeat(64) };
    const message = await store.commitTurn({
      turnId: "t1",
      runId: "r1",
      assistantText: "answer",
      now: AT,
      activation,
    });
    await store.close();
    store = await folder.open();
    expect(message).toMatchObject({ role: "assistant", content: "answer", runId: "r1", turnId: "t1" });
    expect(await store.getTurn("t1")).toMatchObject({ status: "succeeded", finishedAt: AT });
    expect(await store.openActivations()).toEqual([
      { originRunId: "r1", conversationId: "terminal:a", createdAt: AT, ...activation },
    ]);
    await store.closeActivation("r1", AT);
    await store.closeActivation("r1", AT);
    expect(await store.openActivations()).toEqual([]);
    expect(await store.activationOf("r1")).toMatchObject({ originRunId: "r1", ...activation });
    expect(await store.activationOf("r2")).toBeUndefined();
  });

  test("the commit of an ended turn is refused and leaves nothing behind", async () => {
    await store.admit(admission("t1"));
    await store.startRun("t1", "r1", AT);
    await store.endTurn("t1", { status: "cancelled", code: "cancelled", message: "stopped", now: AT });
    const activation = { historyBoundary: "r1", snapshotDigest: "d".repeat(64) };
    await expect(
      store.commitTurn({ turnId: "t1", runId: "r1", assistantText: "answer", now: AT, activation }),
    ).rejects.toMatchObject({ code: "turn_finished" });
    expect(await store.openActivations()).toEqual([]);
    expect(contents(await store.tail("terminal:a", 10))).toEqual(["question t1", "stopped"]);
    expect(await store.verdict("r1")).toBe("cancelled");
  });

  test("ending a turn that never ran shows the question and the notice, and ends it once", async () => {
    await store.admit(admission("t1"));
    const end = { status: "failed", code: "interrupted", message: "sorry", now: AT } as const;
    expect(await store.endTurn("t1", end)).toMatchObject([
      { role: "user", content: "question t1" },
      { role: "notice", content: "sorry", code: "interrupted" },
    ]);
    expect(await store.endTurn("t1", end)).toEqual([]);
    expect(await store.getTurn("t1")).toMatchObject({
      status: "failed",
      failure: { code: "interrupted", message: "sorry" },
    });
    await expect(store.startRun("t1", "r1", AT)).rejects.toMatchObject({ code: "turn_finished" });
  });

  test("the verdict of an origin run follows its turn", async () => {
    await store.admit(admission("t1"));
    expect(await store.verdict("r1")).toBe("unknown");
    await store.startRun("t1", "r1", AT);
    expect(await store.verdict("r1")).toBe("unfinished");
    await store.endTurn("t1", { status: "failed", code: "x", message: "x", now: AT });
    expect(await store.verdict("r1")).toBe("failed");
  });

  test("unfinished turns come in admission order", async () => {
    for (const id of ["t3", "t1", "t2"]) await store.admit(admission(id));
    await store.startRun("t1", "r1", AT);
    await store.endTurn("t3", { status: "failed", code: "x", message: "x", now: AT });
    expect((await store.unfinishedTurns()).map((turn) => [turn.turnId, turn.status])).toEqual([
      ["t1", "running"],
      ["t2", "queued"],
    ]);
  });

  test("steps and tool calls are opened, then closed exactly once", async () => {
    await store.admit(admission("t1"));
    await store.startRun("t1", "r1", AT);
    await store.openStep({ stepId: "s1", runId: "r1", index: 0, model: "demo:demo", startedAt: AT });
    const step = { finishedAt: AT, text: "", toolCalls: [], stopReason: "stop" };
    await store.closeStep("s1", step);
    await expect(store.closeStep("s1", step)).rejects.toThrow("opened before it is closed");
    const call = {
      runId: "r1",
      stepId: "s1",
      callId: "c1",
      server: "w",
      tool: "t",
      bindingDigest: "d",
      input: { a: 1 },
      startedAt: AT,
    };
    await store.openToolCall(call);
    await expect(store.openToolCall(call)).rejects.toMatchObject({ code: "turns_failed" });
    await store.closeToolCall("r1", "c1", { finishedAt: AT, isError: false, text: "ok" });
    await expect(
      store.openStep({ stepId: "s2", runId: "nobody", index: 0, model: "m", startedAt: AT }),
    ).rejects.toMatchObject({ code: "turns_failed" });
  });
});

describe("history and feed", () => {
  test("history holds whole succeeded turns and delivered answers of the exact bucket only", async () => {
    await completeTurn(store, "t1", "answer t1");
    await completeTurn(store, "other", "elsewhere", { conversationId: "terminal:a#2026-12-01" });
    await store.admit(admission("t2"));
    await store.startRun("t2", "r2", AT);
    await store.endTurn("t2", { status: "cancelled", code: "cancelled", message: "stopped", now: AT });
    await store.admit(admission("t3"));
    await store.startRun("t3", "r3", AT);
    const delivered = {
      conversationId: "terminal:a",
      baseId: "terminal:a",
      deliveryKey: "continuation:c1",
      now: AT,
    };
    await store.appendDelivered({ ...delivered, text: "later", mirror: false });
    expect(await store.history("terminal:a", 64)).toEqual([
      { role: "user", content: "question t1", timestamp: AT, runId: "run-t1" },
      { role: "assistant", content: "answer t1", timestamp: AT, runId: "run-t1" },
      { role: "assistant", content: "later", timestamp: AT, idempotencyKey: "continuation:c1" },
    ]);
    expect(contents(await store.history("terminal:a", 64, "run-t1"))).toEqual(["later"]);
  });

  test("turns of two threads that overlap stay whole, in the order of their commits", async () => {
    await store.admit(admission("a"));
    await store.admit(admission("b", { thread: "side" }));
    await store.startRun("a", "ra", AT);
    await store.startRun("b", "rb", AT);
    await store.commitTurn({ turnId: "b", runId: "rb", assistantText: "answer b", now: AT });
    await store.commitTurn({ turnId: "a", runId: "ra", assistantText: "answer a", now: AT });
    expect(contents(await store.history("terminal:a", 64))).toEqual([
      "question b",
      "answer b",
      "question a",
      "answer a",
    ]);
    expect(contents(await store.history("terminal:a", 3))).toEqual(["question b", "answer b"]);
  });

  test("the window never starts with half a turn", async () => {
    for (const id of ["t1", "t2", "t3"]) await completeTurn(store, id, `answer ${id}`);
    expect(contents(await store.history("terminal:a", 5))).toEqual([
      "question t2",
      "answer t2",
      "question t3",
      "answer t3",
    ]);
  });

  test("the feed joins all buckets, leaves out mirrors and pages by seq", async () => {
    await completeTurn(store, "t1", "answer t1", { conversationId: "terminal:a#2026-11-30" });
    const delivered = { baseId: "terminal:a", deliveryKey: "continuation:c1", text: "later", now: AT };
    await store.appendDelivered({ ...delivered, conversationId: "terminal:a#2026-11-30", mirror: false });
    await store.appendDelivered({ ...delivered, conversationId: "terminal:a#2026-12-01", mirror: true });
    await completeTurn(store, "t2", "answer t2", { conversationId: "terminal:a#2026-12-01" });
    const all = await store.feed("terminal:a", 0, 100);
    expect(contents(all)).toEqual(["question t1", "answer t1", "later", "question t2", "answer t2"]);
    expect(all.map((row) => row.seq)).toEqual(all.map((row) => row.seq).sort((a, b) => a - b));
    expect(contents(await store.feed("terminal:a", all[1]!.seq, 2))).toEqual(["later", "question t2"]);
    expect(contents(await store.tail("terminal:a", 2))).toEqual(["question t2", "answer t2"]);
    expect(contents(await store.history("terminal:a#2026-12-01", 64))).toContain("later");
  });

  test("a delivery key is recorded once in a conversation, and another text is a conflict", async () => {
    const append = {
      conversationId: "terminal:a#2026-11-30",
      baseId: "terminal:a",
      deliveryKey: "continuation:c1",
      text: "later",
      now: AT,
      mirror: false,
    };
    expect(await store.findDelivered("terminal:a", "continuation:c1")).toBeUndefined();
    await store.appendDelivered({ ...append, conversationId: "terminal:a#2026-12-01", mirror: true });
    const first = await store.appendDelivered(append);
    const again = await store.appendDelivered(append);
    expect(first).toMatchObject({
      value: { appended: true, message: { role: "assistant", content: "later" } },
    });
    expect(again).toMatchObject({ value: { appended: false } });
    expect(again.ok && first.ok && again.value.message.seq === first.value.message.seq).toBe(true);
    expect(code(await store.appendDelivered({ ...append, text: "other" }))).toBe("request_conflict");
    expect(await store.findDelivered("terminal:a", "continuation:c1")).toMatchObject({
      conversationId: "terminal:a#2026-11-30",
    });
    expect(await store.findDelivered("terminal:b", "continuation:c1")).toBeUndefined();
  });
});
