import { describe, expect, test } from "bun:test";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  ConfigError,
  claimAnswerSchema,
  createContinuations,
  type SynthesisReadiness,
} from "mono-agent/continuation";
import { openStore, verifyContinuation } from "mono-agent/store";

import { operatorToken } from "../../src/core/derive.ts";
import { freePort, until } from "../support/binary.ts";
import { claimBody } from "../support/continuation-world.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { createRecordingLogger } from "../support/silent-logger.ts";

/** The subpath exports, as an embedder has them. */

const TOKEN = "a-token-of-some-length";
const DETACHED = {
  namedRoutes: { keep: { mode: "capture", conversationId: "room:7" } },
  detachedServices: { ops: TOKEN },
} as const;
const call = (method: string, target: string, token: string, body?: unknown) =>
  fetch(target, {
    method,
    headers: { authorization: `Bearer ${token}`, "x-mono-agent-service-name": "ops" },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
/** Claims `DETACHED`'s route and submits the result; gives the id. */
async function submitted(url: string, clock = { now: Date.now }, taskKey = "task"): Promise<string> {
  const claim = { ...claimBody({ clock } as never), taskKey, route: "keep" };
  const claimed = await call("POST", `${url}/v1/continuations/detached/claim`, TOKEN, claim);
  const { continuationId, resultUrl, token } = claimAnswerSchema.parse(await claimed.json());
  const accepted = await call("PUT", resultUrl, token, { idempotencyKey: "k", payload: {} });
  expect(accepted.status).toBe(202);
  return continuationId;
}

const folder = () => mkdtempSync(join(tmpdir(), "mono-agent-embedded-"));

test("the README shows the sample that is tested here", () => {
  const sample = readFileSync(join(import.meta.dir, "../support/embedded-sample.ts"), "utf8");
  const readme = readFileSync(join(import.meta.dir, "../../README.md"), "utf8");
  expect(readme).toContain(sample.slice(sample.indexOf("import ")).trim());
});

test("the README's sample delivers one answer and ends, each time that it is run", async () => {
  const path = folder();
  const sample = join(import.meta.dir, "../support/embedded-sample.ts");
  const port = String(freePort());
  for (const stateDir of ["state", "state", join(path, "state")]) {
    const child = Bun.spawn([process.execPath, sample, stateDir, port], {
      cwd: path,
      stdout: "pipe",
      stderr: "pipe",
    });
    const [out, err, code] = await Promise.all([
      new Response(child.stdout).text(),
      new Response(child.stderr).text(),
      child.exited,
    ]);
    expect({ out, err, code }).toEqual({ out: 'The worker says: {"done":true}\n', err: "", code: 0 });
  }
  rmSync(path, { recursive: true });
});

test("a relative state directory is the one that it named when the store was opened", async () => {
  const path = folder();
  const before = process.cwd();
  process.chdir(path);
  try {
    const store = await openStore({ stateDir: "state" });
    expect(verifyContinuation({ stateDir: "state", continuationId: "nobody" })).toBeUndefined();
    process.chdir(before);
    await store.close();
  } finally {
    process.chdir(before);
  }
  expect(existsSync(join(path, "state/continuation-store-v3.json"))).toBe(true);
  rmSync(path, { recursive: true });
});

test("importing the subpaths starts nothing: no file, no listener", async () => {
  const path = folder();
  const child = Bun.spawn(
    [
      process.execPath,
      "-e",
      'await import("mono-agent/continuation"); await import("mono-agent/store"); await import("mono-agent")',
    ],
    {
      cwd: join(import.meta.dir, "../.."),
      env: { PATH: process.env.PATH ?? "", TMPDIR: path },
      stdout: "pipe",
      stderr: "pipe",
    },
  );
  expect([await child.exited, await new Response(child.stderr).text()]).toEqual([0, ""]);
  rmSync(path, { recursive: true });
});

test("a given store stays open after stop, and a crash between commit and activation is settled by the embedder's ledger", async () => {
  const path = folder();
  const store = await openStore({ stateDir: join(path, "state") });
  const outside = {
    state: { store },
    continuationServers: ["worker"],
    synthesize: async () => "answer",
    supports: () => "supported" as const,
    deliver: async () => ({ kind: "delivered" as const, parts: [{ id: "p" }] }),
    recordHistory: async () => ({ recorded: true as const }),
  };
  const first = await createContinuations({ ...outside, listen: { port: freePort() } });
  await first.start();
  const run = first.issue({ originRunId: "run-1", conversationId: "room:7", replyTo: "room:7" });
  const capability = run.capabilities.get("worker");
  const claimed = await fetch(capability?.url ?? "", {
    method: "POST",
    headers: { authorization: `Bearer ${capability?.token}` },
    body: JSON.stringify(claimBody({ clock: { now: Date.now } as never })),
  });
  const { continuationId } = (await claimed.json()) as { continuationId: string };
  await run.release();
  const { buildSnapshot } = await import("mono-agent/continuation");
  const snapshot = buildSnapshot({
    conversationId: "room:7",
    originRunId: "run-1",
    capturedAt: new Date().toISOString(),
    history: [],
    userText: "do it",
    assistantText: "accepted",
  });
  if (snapshot === undefined) throw new Error("no snapshot");
  const bound = await run.finalize(snapshot);
  if (!bound.ok) throw new Error(bound.refusal.code);
  await first.stop();

  const second = await createContinuations({
    ...outside,
    listen: { port: freePort() },
    committedSnapshot: async (originRunId) =>
      originRunId === "run-1" ? bound.value.snapshotDigest : undefined,
  });
  await second.start();
  expect(second.status(continuationId)?.originContext.state).toBe("pinned");
  expect(second.owedContinuations().owed.map((item) => item.continuationId)).toEqual([continuationId]);
  expect(verifyContinuation({ stateDir: join(path, "state"), continuationId })?.ok).toBe(true);
  await second.stop();
  await store.close();
  rmSync(path, { recursive: true });
});

test("a watcher that connects while the service stops does not hold the stop", async () => {
  const path = folder();
  const asked = Promise.withResolvers<void>();
  const answer = Promise.withResolvers<string>();
  const logger = createRecordingLogger();
  const port = freePort();
  const continuations = await createContinuations({
    state: { stateDir: join(path, "state") },
    listen: { port },
    ...DETACHED,
    logger,
    synthesize: () => {
      asked.resolve();
      return answer.promise;
    },
    supports: () => "supported",
    deliver: async () => ({ kind: "delivered", parts: [{ id: "p" }] }),
    recordHistory: async () => ({ recorded: true }),
  });
  const { url } = await continuations.start();
  await submitted(url);
  await asked.promise;

  const stopped = continuations.stop();
  const secret = Buffer.from(readFileSync(join(path, "state/continuation-secret"), "utf8"), "base64url");
  const watching = await call("GET", `${url}/v1/operator/events`, operatorToken(secret));
  expect(watching.status).toBe(200);
  answer.resolve("answer");
  await stopped;
  // The stream ended by itself, instead of being cut off.
  expect(await watching.text()).toStartWith(": connected");
  expect(logger.lines).toEqual([]);
  rmSync(path, { recursive: true });
});

test("a synthesis waits, at no attempt, until the embedder says that it is ready", async () => {
  const path = folder();
  const clock = createFakeClock();
  let ready: SynthesisReadiness = { code: "no_gpu" };
  let calls = 0;
  const continuations = await createContinuations({
    state: { stateDir: join(path, "state") },
    listen: { port: freePort() },
    ...DETACHED,
    clock,
    synthesisReady: () => ready,
    synthesize: async () => `answer ${++calls}`,
    supports: () => "supported",
    deliver: async () => ({ kind: "delivered", parts: [{ id: "p" }] }),
    recordHistory: async () => ({ recorded: true }),
  });
  const { url } = await continuations.start();
  const id = await submitted(url, clock);
  await until("the deferral", async () => continuations.status(id)?.lastError?.code === "no_gpu");
  // An answer that can't be read is not ready either.
  ready = undefined as never;
  clock.advance(1_000);
  await until("the second deferral", async () => continuations.status(id)?.synthesisDeferrals === 2);
  expect(continuations.status(id)?.lastError?.code).toBe("synthesis_preflight_failed");
  const waiting = continuations.status(id);
  expect([waiting?.state, waiting?.attempts.synthesis, waiting?.synthesisDeferrals]).toEqual([
    "result_received",
    0,
    2,
  ]);
  ready = true;
  continuations.announceReady();
  await until("the answer", async () => continuations.capturedContinuationText(id) === "answer 1");
  await continuations.stop();
  rmSync(path, { recursive: true });
});

test("a host that drives time itself finds interrupted work settled, and nothing runs by itself", async () => {
  const path = folder();
  const clock = createFakeClock();
  const store = await openStore({ stateDir: join(path, "state"), clock });
  const asked = Promise.withResolvers<void>();
  let calls = 0;
  const outside = {
    state: { store },
    ...DETACHED,
    clock,
    synthesize: async ({ signal }: { signal: AbortSignal }) => {
      calls += 1;
      // The first one is interrupted: its host dies before the model answers.
      if (calls === 1) {
        asked.resolve();
        await new Promise((resolve) => signal.addEventListener("abort", resolve));
      }
      return "answer";
    },
    supports: () => "supported" as const,
    deliver: async () => ({ kind: "delivered" as const, parts: [{ id: "p" }] }),
    recordHistory: async () => ({ recorded: true as const }),
  };
  const first = await createContinuations({ ...outside, listen: { port: freePort() } });
  const interrupted = await submitted((await first.start({ worker: false })).url, clock, "interrupted");
  expect([calls, first.status(interrupted)?.state]).toEqual([0, "result_received"]);
  const working = first.processDue(10);
  await asked.promise;

  const second = await createContinuations({ ...outside, listen: { port: freePort() } });
  const { url } = await second.start({ worker: false });
  expect(second.status(interrupted)?.state).toBe("dead_lettered");
  const next = await submitted(url, clock, "next");
  expect(second.status(next)?.state).toBe("result_received");
  expect(await second.processDue(10)).toBe(1);
  expect(second.capturedContinuationText(next)).toBe("answer");
  await second.stop();
  const stopped = first.stop();
  clock.advance(10_000);
  await Promise.all([stopped, working]);
  await store.close();
  rmSync(path, { recursive: true });
});

test("an embedded service that has stopped starts no more, and says so", async () => {
  const path = folder();
  const create = () =>
    createContinuations({
      state: { stateDir: join(path, "state") },
      listen: { port: freePort() },
      synthesize: async () => "answer",
      supports: () => "supported",
      deliver: async () => ({ kind: "delivered", parts: [{ id: "p" }] }),
      recordHistory: async () => ({ recorded: true }),
    });
  const stopped = { code: "service_stopping", message: "it has been stopped; create another" };
  const unstarted = await create();
  await unstarted.stop();
  await expect(unstarted.start()).rejects.toMatchObject(stopped);
  const started = await create();
  await started.start();
  const again = { code: "operation_failed", message: "it is started already" };
  await expect(started.start()).rejects.toMatchObject(again);
  await started.stop();
  await expect(started.start()).rejects.toMatchObject(stopped);
  await started.stop();
  rmSync(path, { recursive: true });
});

test.each([
  ["retention", { retention: { terminalMaxRecords: -1 } }, "retention.terminalMaxRecords"],
  ["a misspelled limit", { retention: { terminalMaxRecord: 1 } }, "retention.terminalMaxRecord"],
  ["an empty name of the folder", { stateDir: "" }, "stateDir"],
])("openStore with %s: refused by its path, and nothing is made", async (_, options, at) => {
  const path = folder();
  const before = process.cwd();
  process.chdir(path);
  const refused = await openStore({ stateDir: "state", ...options } as never)
    .then(
      () => undefined,
      (error: unknown) => error,
    )
    .finally(() => process.chdir(before));
  expect(refused).toBeInstanceOf(ConfigError);
  const { problems } = refused as ConfigError;
  expect(problems.map((problem) => problem.path)).toEqual([at]);
  expect(readdirSync(path)).toEqual([]);
  rmSync(path, { recursive: true });
});

describe("options that a configuration file could not have either", () => {
  const outside = {
    listen: { port: 4319 },
    synthesize: async () => "answer",
    supports: () => "supported" as const,
    deliver: async () => ({ kind: "delivered" as const, parts: [{ id: "p" }] }),
    recordHistory: async () => ({ recorded: true as const }),
  };
  const wrong: [string, object, string][] = [
    ["limits", { limits: { maxConcurrent: 0 } }, "limits.maxConcurrent"],
    ["retention", { retention: { terminalMaxRecords: -1 } }, "retention.terminalMaxRecords"],
    ["a host that others reach", { listen: { port: 4319, host: "0.0.0.0" } }, "listen.host"],
    ["a port that changes", { listen: { port: 0 } }, "listen.port"],
    ["a route of mode reply", { namedRoutes: { r: { mode: "reply" } } }, "namedRoutes.r.mode"],
    ["a route to nowhere", { namedRoutes: { r: { mode: "capture" } } }, "namedRoutes.r.conversationId"],
    ["a token that can be guessed", { detachedServices: { ops: "guessable" } }, "detachedServices"],
    ["a server without a name", { continuationServers: [""] }, "continuationServers[0]"],
  ];
  test.each(wrong)("%s: refused by its path, and the state directory stays free", async (_, options, at) => {
    const path = folder();
    const state = { stateDir: join(path, "state") };
    const refused = await createContinuations({ ...outside, state, ...options } as never).then(
      () => undefined,
      (error: unknown) => error,
    );
    expect(refused).toBeInstanceOf(ConfigError);
    const { problems, message } = refused as ConfigError;
    expect(problems.map((problem) => problem.path)).toEqual([at]);
    expect(message).not.toContain("guessable");
    await (await openStore(state)).close();
    rmSync(path, { recursive: true });
  });
});
