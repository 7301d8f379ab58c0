import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { join } from "node:path";
import { ORIGIN_CONTEXT_UNAVAILABLE_TEXT } from "../../src/continuation/synthesis-job.ts";
import { type AgentFolder, agentFolder, until } from "../support/binary.ts";
import { afterTool, type ModelServer, modelBlocks, startModelServer } from "../support/model-server.ts";

/** SIGKILL of the built binary at the moments that matter, each followed by a restart. */

const TASK = "count the boxes";
const ANSWER = "There are 41 boxes.";
let model: ModelServer;
let folder: AgentFolder;

beforeEach(() => {
  model = startModelServer();
  folder = agentFolder(modelBlocks(model));
  model.reply = (request) => {
    if (request.tools.length === 0) return { text: ANSWER };
    return afterTool(request) ? { text: "accepted" } : { tool: "delegate_work", input: { task: TASK } };
  };
});
afterEach(async () => {
  await folder.remove();
  await model.stop();
});

const submit = async (task = TASK) => {
  const done = await folder.run(["example", "work-control", "submit", "--task", task, "--summary", "41"]);
  expect([done.code, done.err]).toEqual([0, ""]);
};
const delivered = () => folder.continuation((record) => record.state === "delivered");
const answersIn = async (text: string) =>
  (await folder.messages()).filter((message) => message.content === text).length;
const synthesisCalls = () => model.requests.filter((request) => request.tools.length === 0).length;

describe("kill -9 of the host", () => {
  test("after the claim and before the commit: the turn fails visibly, the answer is the fixed one, no model is asked", async () => {
    model.reply = (request) =>
      afterTool(request) ? "hang" : { tool: "delegate_work", input: { task: TASK } };
    const host = await folder.serve();
    await folder.ask("start it");
    await until("the second model call", async () => model.requests.length === 2);
    expect((await folder.list()).map((row) => [row.state, row.originContext.state])).toEqual([
      ["claimed", "pending"],
    ]);
    await host.kill();

    await folder.serve();
    const notices = (await folder.messages()).filter((message) => message.role === "notice");
    expect(notices.map((notice) => notice.code)).toEqual(["interrupted"]);
    expect((await folder.list())[0]?.originContext.state).toBe("abandoned");
    await submit();
    expect(await delivered()).toMatchObject({
      completionKind: "origin_context_unavailable",
      attempts: { synthesis: 0, delivery: 1 },
    });
    expect(await answersIn(ORIGIN_CONTEXT_UNAVAILABLE_TEXT)).toBe(1);
    expect(model.requests.length).toBe(2);
  }, 30_000);

  test("after the commit: the answer comes from the pinned context, whatever was said since", async () => {
    const host = await folder.serve();
    await folder.ask("start it");
    await folder.continuation((record) => record.originContext.state === "pinned");
    await host.kill();

    await folder.serve();
    model.reply = (request) => ({ text: request.tools.length === 0 ? ANSWER : "later talk" });
    await folder.ask("something else entirely");
    await until("the later turn", async () => (await answersIn("later talk")) === 1);
    await submit();
    expect(await delivered()).toMatchObject({ receipt: { kind: "delivered", historyRecorded: true } });
    expect(await answersIn(ANSWER)).toBe(1);
    const synthesis = model.requests.at(-1);
    expect(synthesis?.tools).toEqual([]);
    expect(synthesis?.text).toContain("start it");
    expect(synthesis?.text).not.toContain("something else entirely");
  }, 30_000);

  test("during a synthesis: it is never repeated; a result that waited behind it is answered after the restart", async () => {
    folder.write("mono-agent.config.json", {
      ...modelBlocks(model),
      context: { identityPath: "identity.md" },
      tools: { mcpConfigPath: "mcp.json", continuationServers: ["work-control"] },
      continuations: { port: folder.ports.continuations, limits: { maxConcurrent: 1 } },
      terminal: { port: folder.ports.terminal },
    });
    let task = "first";
    model.reply = (request) => {
      if (request.tools.length === 0) return "hang";
      return afterTool(request) ? { text: "accepted" } : { tool: "delegate_work", input: { task } };
    };
    const host = await folder.serve();
    await folder.ask("start the first");
    const first = await folder.continuation((record) => record.originContext.state === "pinned");
    task = "second";
    await folder.ask("start the second");
    const second = await folder.continuation(
      (record) => record.continuationId !== first.continuationId && record.originContext.state === "pinned",
    );
    await submit("first");
    await until("the hanging synthesis", async () => synthesisCalls() === 1);
    await submit("second");
    expect((await folder.show(second.continuationId)).state).toBe("result_received");
    await host.kill();

    model.reply = () => ({ text: ANSWER });
    await folder.serve();
    await until(
      "the second answer",
      async () => (await folder.show(second.continuationId)).state === "delivered",
    );
    expect(await folder.show(first.continuationId)).toMatchObject({
      state: "dead_lettered",
      lastError: { code: "synthesis_outcome_unknown" },
      attempts: { synthesis: 1, delivery: 0 },
    });
    expect(synthesisCalls()).toBe(2);
    expect(await answersIn(ANSWER)).toBe(1);
    expect((await folder.health()).status).toBe("unhealthy");
  }, 30_000);

  test("between post and receipt: the channel's proof settles it, and the answer is there once", async () => {
    // The same host from its sources, with a filesystem that stops at the commit of the receipt.
    const entry = join(import.meta.dir, "../support/stuck-host-entry.ts");
    const host = await folder.serve({ command: [process.execPath, entry, '"state": "delivered"'] });
    await folder.ask("start it");
    await folder.continuation((record) => record.originContext.state === "pinned");
    await submit();
    await until("the post", async () => (await answersIn(ANSWER)) === 1);
    expect((await folder.list())[0]).toMatchObject({ state: "ready_to_deliver", attempts: { delivery: 1 } });
    await host.kill();

    await folder.serve();
    const record = await delivered();
    expect(record.receipt).toMatchObject({
      kind: "delivered",
      historyRecorded: true,
      proof: { by: "channel" },
    });
    expect(record.attempts).toEqual({ synthesis: 1, delivery: 1 });
    expect(await answersIn(ANSWER)).toBe(1);
    expect(synthesisCalls()).toBe(1);
    expect((await folder.health()).status).toBe("healthy");
  }, 30_000);

  test("between commit and activation: the next start activates, and nothing of the context is lost", async () => {
    const entry = join(import.meta.dir, "../support/stuck-host-entry.ts");
    const host = await folder.serve({ command: [process.execPath, entry, '"memberSetDigest"'] });
    await folder.ask("start it");
    await until("the commit", committed);
    expect((await folder.list())[0]).toMatchObject({ state: "claimed", originContext: { state: "pending" } });
    await host.kill();

    await folder.serve();
    expect((await folder.list())[0]).toMatchObject({ state: "claimed", originContext: { state: "pinned" } });
    await submit();
    expect(await delivered()).toMatchObject({ completionKind: "synthesized" });
    expect(await answersIn(ANSWER)).toBe(1);
  }, 30_000);
});

/** The answer of the turn is in the ledger, whatever the host has told its observers. */
async function committed(): Promise<boolean> {
  return (await folder.messages()).some((message) => message.role === "assistant");
}
