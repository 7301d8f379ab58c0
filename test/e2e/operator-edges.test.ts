import { afterEach, expect, setDefaultTimeout, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { operatorToken } from "../../src/core/derive.ts";
import type { OwedAnswer } from "../../src/core/wire.ts";
import { type AgentFolder, agentFolder, BINARY, until } from "../support/binary.ts";

/** The operator's commands of the built binary where it is narrow: many pages, a host that dies, a terminal, secrets. */

// Many real processes start here, on machines that may be busy.
setDefaultTimeout(60_000);

/** So long the answer to a question may take to show in the stream before another is asked. */
const ASK_EVERY_MS = 1_000;

let folder: AgentFolder;
afterEach(() => folder.remove());

const environment = { PATH: process.env.PATH ?? "", TERM: "xterm" };

/** Delegates tasks one after the other and waits until all are claimed. */
async function delegate(tasks: readonly string[]): Promise<void> {
  for (const task of tasks) await folder.ask(`delegate_work {"task": "${task}"}`);
  await until("the claims", async () => {
    const pinned = (await folder.list()).filter(({ originContext }) => originContext.state === "pinned");
    return pinned.length === tasks.length;
  });
}

test("owed leads through all of its pages by the commands that it prints, and counts all on each", async () => {
  folder = agentFolder();
  await folder.serve();
  await delegate(["one", "two", "three", "four", "five"]);
  const seen: string[] = [];
  let command: string | undefined = `${BINARY} continuations owed --limit 2`;
  while (command !== undefined) {
    const page: Bun.SyncSubprocess<"pipe", "pipe"> = Bun.spawnSync(["sh", "-c", command], {
      cwd: folder.path,
      env: environment,
    });
    const text: string = page.stdout.toString();
    expect([page.exitCode, page.stderr.toString()]).toEqual([0, ""]);
    expect(text).toContain("5 are owed in all");
    seen.push(...[...text.matchAll(/^ {2}(\S{36}) {2}claimed,/gm)].map(([, id = ""]) => id));
    command = /^more: (.*)$/m.exec(text)?.[1];
  }
  const all = (await folder.run(["continuations", "owed", "--json"])).out;
  const ids = (JSON.parse(all) as OwedAnswer).owed.map(({ continuationId }) => continuationId);
  expect(seen).toEqual(ids);
  expect(new Set(seen).size).toBe(5);
});

test("a host that is killed ends watch with 1 and a sentence", async () => {
  folder = agentFolder();
  const host = await folder.serve();
  const watch = Bun.spawn([BINARY, "continuations", "watch"], {
    cwd: folder.path,
    env: environment,
    stdout: "pipe",
    stderr: "pipe",
  });
  // The stream shows only what happens from now on: an event proves that it is open.
  const reader = watch.stdout.getReader();
  let event: Uint8Array | undefined;
  const reading = reader.read().then(({ value }) => {
    event = value;
  });
  let asks = 0;
  let nextAskMs = 0;
  await until("the first event", async () => {
    if (event !== undefined) return true;
    if (performance.now() < nextAskMs) return false;
    nextAskMs = performance.now() + ASK_EVERY_MS;
    asks += 1;
    await folder.ask(`delegate_work {"task": "task ${asks}"}`);
    return false;
  });
  await reading;
  await host.kill("SIGKILL");
  expect(await watch.exited).toBe(1);
  expect(await new Response(watch.stderr).text()).toBe("error: the host has stopped\n");
});

test("at a terminal a retry that is answered with Ctrl-C or no does nothing, and one without a terminal does not ask", async () => {
  folder = agentFolder();
  await folder.serve();
  await delegate(["one"]);
  const [record] = await folder.list();
  const retry = ["continuations", "retry", record?.continuationId ?? ""];
  for (const [keys, code, last] of [
    ["\x03", 1, "nothing was done"],
    ["no\n", 1, "nothing was done"],
    ["y\n", 1, "A continuation in state claimed can't be retried. (not_retryable)"],
  ] as const) {
    let screen = "";
    const child = Bun.spawn([BINARY, ...retry], {
      cwd: folder.path,
      env: environment,
      terminal: {
        data(terminal, bytes) {
          const asked = screen.includes("[y/N] ");
          screen += new TextDecoder().decode(bytes);
          if (!asked && screen.includes("[y/N] ")) terminal.write(keys);
        },
      },
    });
    expect([keys, await child.exited]).toEqual([keys, code]);
    child.terminal?.close();
    expect(screen).toEndWith(`${last}\r\n`);
  }
  const { err } = await folder.run(retry);
  expect(err).toBe("error: A continuation in state claimed can't be retried. (not_retryable)\n");
});

test("neither the log at its most verbose nor any command repeats a secret, a token, a payload or a destination", async () => {
  folder = agentFolder();
  const host = await folder.serve({ command: [BINARY, "serve", "--log-level", "debug"] });
  await delegate(["canary", "other"]);
  const submit = ["example", "work-control", "submit", "--task", "canary", "--summary", "PAYLOAD-CANARY"];
  expect((await folder.run(submit)).code).toBe(0);
  const done = await folder.continuation(({ state }) => state === "delivered");
  const open = (await folder.list()).find(({ state }) => state === "claimed")?.continuationId ?? "";
  const outputs: string[] = [];
  for (const id of [done.continuationId, open, "nobody"]) {
    for (const action of ["show", "verify", "retry", "prove", "release", "cancel"]) {
      for (const more of [[], ["--json"]]) {
        const { out, err } = await folder.run(["continuations", action, id, ...more]);
        outputs.push(out, err);
      }
    }
    const { out, err } = await folder.run(["continuations", "resolve", id, "delivered"]);
    outputs.push(out, err);
  }
  for (const line of ["continuations list", "continuations owed", "continuations health", "doctor"]) {
    for (const more of [[], ["--json"]]) {
      const { out, err } = await folder.run([...line.split(" "), ...more]);
      outputs.push(out, err);
    }
  }
  outputs.push((await folder.run(["config", "show"])).out);
  await host.kill("SIGTERM");
  const state = (name: string) => readFileSync(join(folder.path, ".mono-agent", name), "utf8").trim();
  const secret = state("continuations/continuation-secret");
  outputs.push(readFileSync(join(folder.path, "serve.log"), "utf8"));
  const text = outputs.join("\n");
  expect(text).toContain(done.continuationId);
  const service = join(folder.path, "work-control");
  const tokens = readdirSync(service).flatMap((name) =>
    [...readFileSync(join(service, name), "utf8").matchAll(/"token": ?"([^"]+)"/g)].map(
      ([, token]) => token ?? "",
    ),
  );
  expect(tokens.length).toBe(2);
  const canaries = [
    secret,
    operatorToken(Buffer.from(secret, "base64url")),
    state("terminal-token"),
    ...tokens,
    "PAYLOAD-CANARY",
    "terminal:main",
  ];
  expect(canaries.filter((canary) => text.includes(canary))).toEqual([]);
});
