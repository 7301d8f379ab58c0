import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { ClaimAnswer } from "../../src/core/wire.ts";
import { loadConfig, type MonoAgentApp, startMonoAgent } from "../../src/index.ts";
import { freePort, until } from "../support/binary.ts";
import { KEY, WIRE } from "../support/model-rig.ts";
import { type Reply, startWireServer, type WireServer } from "../support/model-wire.ts";
import { createRecordingLogger } from "../support/silent-logger.ts";

/** "Synthesis is at most once" (protocol.md), from the result of a service to the requests that a provider sees. */

const SERVICE_TOKEN = "a-service-token-of-some-length";
let path: string;
let port: number;
let app: MonoAgentApp | undefined;
let server: WireServer | undefined;

beforeEach(() => {
  path = mkdtempSync(join(tmpdir(), "mono-agent-synthesis-"));
  port = freePort();
  writeFileSync(join(path, "identity.md"), "You are a test.");
});
afterEach(async () => {
  await app?.stop();
  await server?.stop();
  app = undefined;
  server = undefined;
  rmSync(path, { recursive: true, force: true });
});

/** Submits one result to a host whose models answer so, and waits for what becomes of it. */
async function synthesise(...replies: [Reply, ...Reply[]]) {
  server = startWireServer(...replies);
  const box = { id: "box", type: "openai_compat", baseUrl: `${server.url}/v1`, apiKeyEnv: "BOX_KEY" };
  writeFileSync(
    join(path, "mono-agent.config.json"),
    JSON.stringify({
      runtime: {
        model: "box:first",
        retry: { primaryAttempts: 2, backoffMs: 1, maxBackoffMs: 1 },
        fallbacks: [{ model: "box:second" }],
      },
      providers: { local: [box] },
      context: { identityPath: "identity.md" },
      continuations: {
        port,
        namedRoutes: { keep: { mode: "capture", conversationId: "terminal:main" } },
        detachedServices: [{ name: "ops", tokenEnv: "OPS_TOKEN" }],
      },
      terminal: { enabled: false },
    }),
  );
  const config = loadConfig({ cwd: path, env: { OPS_TOKEN: SERVICE_TOKEN, BOX_KEY: KEY } });
  const logger = createRecordingLogger();
  const host = await startMonoAgent({ config, logger });
  app = host;
  const send = (method: string, url: string, token: string, body: unknown) =>
    fetch(url, {
      method,
      headers: { authorization: `Bearer ${token}`, "x-mono-agent-service-name": "ops" },
      body: JSON.stringify(body),
    });
  const claimed = await send(
    "POST",
    `http://127.0.0.1:${port}/v1/continuations/detached/claim`,
    SERVICE_TOKEN,
    {
      route: "keep",
      taskKey: "t",
      taskHash: "h",
      deadline: new Date(Date.now() + 3_600_000).toISOString(),
    },
  );
  const { resultUrl, token, continuationId } = (await claimed.json()) as ClaimAnswer;
  await send("PUT", resultUrl, token, { idempotencyKey: "k", payload: { done: true } });
  const settled = () => host.listContinuations()[0]?.state;
  await until("the synthesis", async () => ["delivered", "dead_lettered"].includes(settled() ?? ""));
  expect(logger.lines.join("\n")).not.toContain(KEY);
  return {
    state: settled(),
    text: host.capturedContinuationText(continuationId),
    asked: server.requests.map(({ body }) => body.model),
  };
}

test("a provider that refuses to run it is asked again, then the fallback, and the answer says who gave it", async () => {
  const busy: Reply = { status: 429, body: "{}" };
  const answer: Reply = { events: WIRE.compatible.text(["All done."]), after: "end" };
  expect(await synthesise(busy, busy, answer)).toEqual({
    state: "delivered",
    asked: ["first", "first", "second"],
    text: "All done.\n\n[Answered by box:second. box:first: the provider limits requests at present (HTTP 429).]",
  });
});

test.each([
  ["a fault", { status: 503, body: "{}" }],
  ["an overload", { status: 529, body: "{}" }],
  ["an answer that breaks off", { events: WIRE.compatible.unfinished(["Half"]), after: "break" }],
  ["a connection that breaks", { events: [], after: "break" }],
] as const)("after %s the model may have run, so nobody is asked again", async (_, reply) => {
  const answer: Reply = { events: WIRE.compatible.text(["twice"]), after: "end" };
  const first = "events" in reply ? { ...reply, events: [...reply.events] } : reply;
  expect(await synthesise(first, answer)).toMatchObject({ state: "dead_lettered", asked: ["first"] });
});

test("an answer that was cut off says so", async () => {
  const cut: Reply = { events: WIRE.compatible.cutOff(["All do"]), after: "end" };
  expect((await synthesise(cut)).text).toBe(
    "All do\n\n[The answer ends here because the model reached its output limit.]",
  );
});
