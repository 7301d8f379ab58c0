import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { continuationsCommand } from "../../src/cli/continuations/command.ts";
import { operatorToken } from "../../src/core/derive.ts";
import type { ClaimAnswer } from "../../src/core/wire.ts";
import {
  type ContinuationDetail,
  ContinuationError,
  createLogger,
  loadConfig,
  type MonoAgentApp,
  type OwedAnswer,
  startMonoAgent,
  type Verification,
  type WatchEvent,
} from "../../src/index.ts";
import { freePort, until } from "../support/binary.ts";
import { createRecordingLogger, silentLogger } from "../support/silent-logger.ts";

/** The library as an embedder uses it: real stores in a temporary folder, real HTTP on loopback. */

const SERVICE_TOKEN = "a-service-token-of-some-length";
let path: string;
let port: number;
let app: MonoAgentApp | undefined;

beforeEach(() => {
  path = mkdtempSync(join(tmpdir(), "mono-agent-host-"));
  port = freePort();
  writeFileSync(join(path, "identity.md"), "You are a test.");
});
afterEach(async () => {
  await app?.stop();
  app = undefined;
  rmSync(path, { recursive: true, force: true });
});

const env = { OPS_TOKEN: SERVICE_TOKEN };
const settings = (blocks: Record<string, unknown> = {}) => {
  writeFileSync(
    join(path, "mono-agent.config.json"),
    JSON.stringify({
      runtime: { model: "demo:assistant" },
      context: { identityPath: "identity.md" },
      continuations: {
        port,
        namedRoutes: {
          keep: { mode: "capture", conversationId: "terminal:main" },
          quiet: { mode: "silent" },
        },
        detachedServices: [{ name: "ops", tokenEnv: "OPS_TOKEN" }],
      },
      terminal: { port: freePort() },
      ...blocks,
    }),
  );
  return loadConfig({ cwd: path, env });
};
const start = async (logger = silentLogger) => {
  app = await startMonoAgent({ config: settings(), logger });
  return app;
};

const call = (
  method: string,
  route: string,
  token: string | undefined,
  body?: unknown,
  more: Record<string, string> = {},
) =>
  fetch(`http://127.0.0.1:${port}${route}`, {
    method,
    headers: { ...(token === undefined ? {} : { authorization: `Bearer ${token}` }), ...more },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
const detached = (token: string, taskKey: string, route = "keep") =>
  call(
    "POST",
    "/v1/continuations/detached/claim",
    token,
    { route, taskKey, taskHash: "h", deadline: new Date(Date.now() + 3_600_000).toISOString() },
    { "x-mono-agent-service-name": "ops" },
  );
const claimed = async (taskKey: string, route?: string) => {
  const response = await detached(SERVICE_TOKEN, taskKey, route);
  expect(response.status).toBe(200);
  return (await response.json()) as ClaimAnswer;
};
const secret = () => readFileSync(join(path, ".mono-agent/continuations/continuation-secret"), "utf8").trim();

test("importing the library starts nothing, and the handle does what its names say", async () => {
  const host = await start();
  expect(host.continuationHealth()?.status).toBe("healthy");
  const answer = await claimed("one");
  await call("PUT", new URL(answer.resultUrl).pathname, answer.token, {
    idempotencyKey: "k",
    payload: { summary: "kept text" },
  });
  await until("the capture", async () => host.listContinuations()[0]?.state === "delivered");
  expect(host.capturedContinuationText(answer.continuationId)).toBe("kept text");
  const other = await claimed("two");
  expect((await host.cancelContinuation(other.continuationId)).state).toBe("cancelled");
  expect((await host.cancelContinuation(other.continuationId)).state).toBe("cancelled");
  expect(host.retryContinuation(other.continuationId)).rejects.toThrow("can't be retried");
  expect(host.resolveContinuationDelivery("nobody", { kind: "delivered" })).rejects.toMatchObject({
    code: "not_found",
  });
  expect(host.listContinuations().map((row) => row.taskKey)).toEqual(["two", "one"]);
});

test("every action of the command line is a typed function of the handle", async () => {
  const HANDLE = {
    list: "listContinuations",
    health: "continuationHealth",
    owed: "owedContinuations",
    show: "showContinuation",
    watch: "watchContinuations",
    verify: "verifyContinuation",
    retry: "retryContinuation",
    cancel: "cancelContinuation",
    release: "releaseContinuation",
    prove: "proveContinuation",
    resolve: "resolveContinuationDelivery",
  } as const satisfies Record<string, keyof MonoAgentApp>;
  const { subCommands } = continuationsCommand({} as never);
  expect(Object.keys(HANDLE).sort()).toEqual(Object.keys(subCommands ?? {}).sort());

  const host = await start();
  for (const name of Object.values(HANDLE)) expect(host[name]).toBeFunction();
  const seen: WatchEvent[] = [];
  const stopWatching = host.watchContinuations((event) => seen.push(event));
  const { continuationId: id } = await claimed("seen");
  stopWatching();
  const other = await claimed("not seen");
  await host.cancelContinuation(other.continuationId);
  expect(seen.map((event) => [event.continuationId, event.what])).toEqual([[id, "claimed"]]);

  const owed: OwedAnswer = host.owedContinuations();
  expect([owed.total, owed.needPerson, owed.owed[0]?.continuationId]).toEqual([1, 0, id]);
  expect(() => host.owedContinuations(0)).toThrow(ContinuationError);
  const detail: ContinuationDetail | undefined = host.showContinuation(id);
  expect(detail?.timeline.map(({ what }) => what)).toEqual(["claimed"]);
  expect(host.showContinuation("nobody")).toBeUndefined();
  const verification: Verification | undefined = host.verifyContinuation(id);
  expect(verification?.ok).toBe(true);
  expect(host.verifyContinuation("nobody")).toBeUndefined();
  expect(host.listContinuations({ state: "claimed" }).map((row) => row.continuationId)).toEqual([id]);
  expect(host.listContinuations({ state: "cancelled" })).toHaveLength(1);
  expect(host.proveContinuation(id)).rejects.toMatchObject({ code: "not_delivery_unknown" });
});

test("a host whose continuations are off has no listener, an empty list and typed refusals", async () => {
  app = await startMonoAgent({
    config: settings({ continuations: { enabled: false, port } }),
    logger: silentLogger,
  });
  expect(app.addresses.continuations).toBeUndefined();
  expect(app.continuationHealth()).toBeUndefined();
  expect(app.listContinuations()).toEqual([]);
  expect(app.owedContinuations()).toEqual({ owed: [], total: 0, needPerson: 0 });
  expect([app.showContinuation("x"), app.verifyContinuation("x")]).toEqual([undefined, undefined]);
  app.watchContinuations(() => {})();
  expect(app.proveContinuation("x")).rejects.toMatchObject({ code: "service_stopping" });
  expect(app.cancelContinuation("x")).rejects.toMatchObject({ code: "service_stopping" });
  expect(fetch(`http://127.0.0.1:${port}/`)).rejects.toThrow();
});

test("a port that is taken ends the start with a clear error and leaves nothing running or locked", async () => {
  const blocker = Bun.serve({
    hostname: "127.0.0.1",
    port,
    reusePort: false,
    fetch: () => new Response("other"),
  });
  expect(start()).rejects.toThrow(`127.0.0.1:${port}`);
  await until("the failed start", async () => app === undefined);
  await blocker.stop(true);
  await start();
});

describe("credentials", () => {
  test("no class of token opens another class's door", async () => {
    await start();
    const answer = await claimed("matrix");
    const tokens = {
      claim: "c".repeat(32),
      result: answer.token,
      detached: SERVICE_TOKEN,
      operator: operatorToken(Buffer.from(secret(), "base64url")),
    };
    const doors: Record<string, (token: string) => Promise<Response>> = {
      claim: (token) => call("POST", "/v1/continuations/claim", token, {}),
      result: (token) => call("GET", new URL(answer.statusUrl).pathname, token),
      detached: (token) => detached(token, "matrix"),
      operator: (token) => call("GET", "/v1/operator/health", token),
    };
    for (const [door, knock] of Object.entries(doors)) {
      for (const [kind, token] of Object.entries(tokens)) {
        const status = (await knock(token)).status;
        // No claim token exists outside a run: that row has no diagonal here (test/mcp and test/e2e use real ones).
        const opens = kind === door && kind !== "claim";
        expect([door, kind, status === 401]).toEqual([door, kind, !opens]);
      }
    }
  });

  test("the operator's token stays the same over restarts, and the result URL from before works after", async () => {
    let host = await start();
    const before = operatorToken(Buffer.from(secret(), "base64url"));
    const answer = await claimed("survivor", "quiet");
    await host.stop();
    host = await start();
    expect((await call("GET", "/v1/operator/health", before)).status).toBe(200);
    const response = await fetch(answer.resultUrl, {
      method: "PUT",
      headers: { authorization: `Bearer ${answer.token}` },
      body: JSON.stringify({ idempotencyKey: "k", payload: null }),
    });
    expect(response.status).toBe(202);
    await until("the silent end", async () => host.listContinuations()[0]?.receipt?.kind === "silent");
  });

  test("tokens, payloads, texts and destinations are in no log line and in no file they don't belong to", async () => {
    const logger = createRecordingLogger();
    await start(logger);
    const answer = await claimed("canary");
    await call("PUT", new URL(answer.resultUrl).pathname, answer.token, {
      idempotencyKey: "k",
      payload: { summary: "canary-payload" },
    });
    await until("the end", async () => app?.listContinuations()[0]?.state === "delivered");
    await detached("wrong-token-canary-xyz", "canary");
    const said = logger.lines.join("\n");
    for (const canary of [
      SERVICE_TOKEN,
      answer.token,
      secret(),
      "canary-payload",
      "wrong-token-canary-xyz",
      "terminal:main",
    ]) {
      expect(said).not.toContain(canary);
    }
    const config = readFileSync(join(path, "mono-agent.config.json"), "utf8");
    expect(config).not.toContain(SERVICE_TOKEN);
  });
});

test("the logger of the library writes one line of JSON for each message", () => {
  const lines: string[] = [];
  createLogger({ level: "info", json: true, color: false, write: (text) => lines.push(text) }).info("hello", {
    n: 1,
  });
  expect(JSON.parse(lines.join(""))).toMatchObject({ message: "hello", n: 1 });
});

test("a payload of 900 levels is kept and answered; one of 1,500 is too large for its record, and harms nobody", async () => {
  const host = await start();
  const deep = (levels: number) => JSON.parse(`${"[".repeat(levels)}1${"]".repeat(levels)}`) as unknown;
  const put = async (taskKey: string, levels: number) => {
    const { resultUrl, token } = await claimed(taskKey);
    return call("PUT", new URL(resultUrl).pathname, token, { idempotencyKey: "k", payload: deep(levels) });
  };
  expect((await put("deep", 900)).status).toBe(202);
  const refused = await put("deeper", 1_500);
  expect([refused.status, await refused.json()]).toEqual([
    413,
    { error: { code: "record_too_large", message: expect.any(String) } },
  ]);
  expect((await put("deepest", 10_000)).status).toBe(400);
  await until("the capture", async () => host.listContinuations().some((row) => row.state === "delivered"));
  expect(host.continuationHealth()?.counts.claimed).toBe(2);
});
