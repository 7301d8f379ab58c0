import { afterEach, expect, test } from "bun:test";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { OwedAnswer, WatchEvent } from "../../src/core/wire.ts";
import type { Verification } from "../../src/host/verify.ts";
import { type AgentFolder, agentFolder, BINARY, until } from "../support/binary.ts";

/** The operator's commands of the built binary that look: owed, watch, verify, prove. */

/** So long the answer to a question may take to show in the stream before another is asked. */
const ASK_EVERY_MS = 1_000;

let folder: AgentFolder;
afterEach(() => folder.remove());

async function delegated(task: string): Promise<string> {
  await folder.ask(`delegate_work {"task": "${task}"}`);
  const record = await folder.continuation(
    (one) => one.originContext.state === "pinned" && one.state === "claimed",
  );
  return record.continuationId;
}

test("owed names what is open with its deadline, and exits with 1 only when a person is needed", async () => {
  folder = agentFolder();
  await folder.serve();
  const nothing = await folder.run(["continuations", "owed"]);
  expect([nothing.code, nothing.out]).toEqual([0, "nothing is owed\n"]);
  const id = await delegated("count");
  const open = await folder.run(["continuations", "owed"]);
  expect(open.code).toBe(0);
  expect(open.out).toContain(id);
  expect(open.out).toContain("waits for the service to submit its result");
  const json = JSON.parse((await folder.run(["continuations", "owed", "--json"])).out) as OwedAnswer;
  expect([json.total, json.needPerson]).toEqual([1, 0]);
});

test("watch shows a lifecycle line by line as it happens, and ends with 0 on SIGINT", async () => {
  folder = agentFolder();
  await folder.serve();
  const watch = Bun.spawn([BINARY, "continuations", "watch", "--json"], {
    cwd: folder.path,
    env: { PATH: process.env.PATH ?? "" },
    stdout: "pipe",
    stderr: "pipe",
  });
  let seen = "";
  const reading = (async () => {
    for await (const piece of watch.stdout) seen += new TextDecoder().decode(piece);
  })();
  let asks = 0;
  let nextAskMs = 0;
  // The stream shows only what happens from now on: an event proves that it is open.
  await until("the first event", async () => {
    if (seen !== "") return true;
    if (performance.now() < nextAskMs) return false;
    nextAskMs = performance.now() + ASK_EVERY_MS;
    asks += 1;
    await folder.ask(`delegate_work {"task": "warm up ${asks}"}`);
    return false;
  });
  const { code } = await folder.run([
    "example",
    "work-control",
    "submit",
    "--task",
    "warm up 1",
    "--summary",
    "the payload",
  ]);
  expect(code).toBe(0);
  await until("the end of the lifecycle", async () => seen.includes('"state":"delivered"'));
  const events = seen
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line) as WatchEvent);
  // A second task may have been asked for before the stream was open.
  const id = events.find(({ state }) => state === "delivered")?.continuationId;
  const whats = events.filter(({ continuationId }) => continuationId === id).map(({ what }) => what);
  expect(whats).toContain("result_received");
  expect(whats.slice(-3)).toEqual(["synthesized", "delivery_started", "delivered"]);
  expect(seen).not.toContain("the payload");
  expect(seen).not.toContain("terminal:main");
  watch.kill("SIGINT");
  expect(await watch.exited).toBe(0);
  await reading;
});

test("verify reads the disk with a host and without one, and names what was altered", async () => {
  folder = agentFolder();
  const host = await folder.serve();
  const id = await delegated("verify me");
  const running = await folder.run(["continuations", "verify", id, "--json"]);
  const found = JSON.parse(running.out) as Verification;
  expect([running.code, found.ok]).toEqual([0, true]);
  expect(found.checks.find(({ what }) => what === "snapshot binding")?.matches).toBe("yes");
  await host.kill("SIGTERM");
  expect((await folder.run(["continuations", "verify", id])).code).toBe(0);
  const records = join(folder.path, ".mono-agent/continuations/records-v3");
  const path = join(records, readdirSync(records)[0] ?? "");
  const altered = readFileSync(path, "utf8").replace('"terminal:main"', '"terminal:elsewhere"');
  writeFileSync(path, altered);
  const after = await folder.run(["continuations", "verify", id]);
  expect(after.code).toBe(1);
  expect(after.out).toContain("✗ claim fingerprint");
  expect((await folder.run(["continuations", "verify", "nobody"])).code).toBe(1);
});

test("prove is refused with its reason for what is not unknown", async () => {
  folder = agentFolder();
  await folder.serve();
  const id = await delegated("prove me");
  const proved = await folder.run(["continuations", "prove", id]);
  expect([proved.code, proved.err]).toEqual([1, expect.stringContaining("not_delivery_unknown")]);
});
