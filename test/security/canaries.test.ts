import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join, relative } from "node:path";
import type { ClaimAnswer } from "../../src/core/wire.ts";
import { until } from "../support/binary.ts";
import { cliRun } from "../support/cli-run.ts";
import {
  API_KEY,
  capabilityOf,
  MCP_SECRET,
  SECURITY_ENV,
  SERVICE_TOKEN,
  type SecurityWorld,
  securityWorld,
} from "../support/security-world.ts";

/** Secrets and private texts with marks in them, through whole lifecycles; then every sink is searched for them. */

// Real processes start here, on machines that may be busy.
setDefaultTimeout(60_000);

const PAYLOAD = "canary-payload-93af";
const DETACHED_PAYLOAD = "canary-detached-payload-11c4";
const SYNTHESIZED = "canary-synthesized-5ee0";
const CONVERSATION = "canary-conversation";
const VENDOR_TEXT = "canary-vendor-text-6b2d";

let world: SecurityWorld;
/** Bodies of everything that HTTP answered, the claims themselves apart. */
const answers: string[] = [];
let secrets: Record<string, string>;
let claimed: ClaimAnswer;
let captured: ClaimAnswer;
let failed: ClaimAnswer;

const heard = async (response: Response) => {
  answers.push(`${JSON.stringify([...response.headers])}${await response.clone().text()}`);
  return response;
};
const recordOf = ({ continuationId }: ClaimAnswer) =>
  world.app.listContinuations().find((row) => row.continuationId === continuationId);

beforeAll(async () => {
  world = await securityWorld();
  let claimToken = "";
  world.onReport = async (report) => {
    claimToken = capabilityOf(report)?.token ?? "";
    claimed = (await (await world.claim(claimToken, "canary task")).json()) as ClaimAnswer;
    // A careless tool shows its capability to the model.
    return `claimed with ${claimToken}`;
  };
  world.synthesis = SYNTHESIZED;
  await world.ask("use alpha", CONVERSATION);
  const detached = async (key: string, route: string) =>
    (await (await world.detached(SERVICE_TOKEN, key, route)).json()) as ClaimAnswer;
  captured = await detached("captured", "keep");
  failed = await detached("failed", "tell");
  secrets = {
    claim: claimToken,
    result: claimed.token,
    "detached result": captured.token,
    detached: SERVICE_TOKEN,
    operator: world.operator(),
    terminal: world.terminal(),
    "service secret": world.secret(),
    "api key": API_KEY,
    "mcp env": MCP_SECRET,
  };
  await heard(await world.submit(claimed, { note: PAYLOAD, [PAYLOAD]: 1 }));
  await heard(await world.submit(captured, DETACHED_PAYLOAD));
  await until("both answers", async () =>
    [claimed, captured].every((one) => recordOf(one)?.state === "delivered"),
  );
  const { reply } = world.model;
  world.model.reply = () => ({
    status: 401,
    body: JSON.stringify({ error: { message: `Incorrect API key: ${API_KEY}. ${VENDOR_TEXT}` } }),
  });
  await heard(await world.submit(failed, PAYLOAD));
  await until("the failure", async () => recordOf(failed)?.state === "dead_lettered");
  await world.ask("a question that the provider refuses", CONVERSATION);
  world.model.reply = reply;
  await refusals();
});
afterAll(() => world.remove());

/** Every secret as a wrong credential, a path, a query and a field: the refusal must not repeat it. */
async function refusals() {
  const { ports } = world;
  for (const secret of Object.values(secrets)) {
    for (const [port, method, path, token, body] of [
      [ports.continuations, "POST", "/v1/continuations/claim", `x${secret}`, { taskKey: secret }],
      [ports.continuations, "GET", `/v1/operator/continuations/${secret}`, world.operator(), undefined],
      [
        ports.continuations,
        "GET",
        `/v1/operator/continuations?cursor=${secret}&limit=${secret}`,
        world.operator(),
        undefined,
      ],
      [ports.continuations, "GET", `/v1/operator/continuations?state=${secret}`, world.operator(), undefined],
      [
        ports.continuations,
        "PUT",
        new URL(claimed.resultUrl).pathname,
        claimed.token,
        { idempotencyKey: secret, payload: secret },
      ],
      [
        ports.continuations,
        "POST",
        `/v1/operator/continuations/${claimed.continuationId}/resolve`,
        world.operator(),
        { kind: secret },
      ],
      [ports.terminal, "POST", `/v1/terminal/conversations/${secret}/turns`, world.terminal(), { text: 1 }],
      [
        ports.terminal,
        "GET",
        `/v1/terminal/conversations/main/events?after=${secret}`,
        world.terminal(),
        undefined,
      ],
      [ports.terminal, "GET", `/${secret}`, secret, undefined],
    ] as const) {
      const response = await heard(await world.send(port, method, path, token, body));
      expect([path, response.status >= 400 && response.status < 500]).toEqual([path, true]);
    }
    await heard(await world.detached(`x${secret}`, "k", "keep", secret));
    await heard(await world.detached(SERVICE_TOKEN, "k", secret));
  }
  for (const one of [claimed, captured, failed]) {
    await heard(await world.call("GET", new URL(one.statusUrl).pathname, one.token));
    await heard(
      await world.call("GET", `/v1/operator/continuations/${one.continuationId}`, world.operator()),
    );
    for (const action of ["retry", "cancel", "prove", "resolve"]) {
      const path = `/v1/operator/continuations/${one.continuationId}/${action}`;
      await heard(
        await world.call("POST", path, world.operator(), action === "resolve" ? { kind: "delivered" } : {}),
      );
    }
  }
  for (const path of ["health", "continuations", "owed"]) {
    await heard(await world.call("GET", `/v1/operator/${path}`, world.operator()));
  }
}

function expectNone(sink: string, text: string, canaries: Record<string, string>) {
  expect(text.length).toBeGreaterThan(0);
  const found = Object.entries(canaries).filter(([, canary]) => text.includes(canary));
  expect([sink, found.map(([name]) => name)]).toEqual([sink, []]);
}
const TEXTS = {
  payload: PAYLOAD,
  "detached payload": DETACHED_PAYLOAD,
  text: SYNTHESIZED,
  destination: CONVERSATION,
  "named route": "kept-place",
  "other named route": "told-place",
  "vendor text": VENDOR_TEXT,
};

test("the lifecycle really had every canary in it", () => {
  for (const [name, secret] of Object.entries(secrets)) {
    expect([name, secret.length >= 16]).toEqual([name, true]);
  }
  expect(recordOf(failed)?.lastError?.code).toBe("synthesis_failed");
  expect(world.app.capturedContinuationText(captured.continuationId)).toBe(SYNTHESIZED);
  expect(world.model.requests.some(({ text }) => text.includes(PAYLOAD))).toBe(true);
});

test("logs at debug level hold no secret, no payload, no text and no destination", () => {
  const lines = world.logger.lines.join("\n");
  expect(lines).toContain("[redacted]");
  expectNone("log", lines, { ...secrets, ...TEXTS });
});

test("answers of the protocol hold no secret, no payload, no text and no destination", () => {
  expectNone("answers", answers.join("\n"), { ...secrets, ...TEXTS });
});

test("what the commands print holds no secret, no payload, no text and no destination", async () => {
  const id = claimed.continuationId;
  const commands = [
    ["continuations", "list"],
    ["continuations", "list", "--json"],
    ["continuations", "health"],
    ["continuations", "health", "--json"],
    ["continuations", "owed"],
    ["continuations", "owed", "--json"],
    ...[id, captured.continuationId, failed.continuationId].flatMap((one) => [
      ["continuations", "show", one],
      ["continuations", "show", one, "--json"],
      ["continuations", "verify", one],
      ["continuations", "verify", one, "--json"],
      ["continuations", "prove", one],
      ["continuations", "retry", one],
      ["continuations", "cancel", one],
      ["continuations", "resolve", one, "delivered"],
    ]),
  ];
  for (const command of commands) {
    const ran = await cliRun(world.path, command, { env: SECURITY_ENV });
    expect([command, ran.err.includes("should not happen")]).toEqual([command, false]);
    expectNone(command.join(" "), ran.out + ran.err, { ...secrets, ...TEXTS });
  }
  // The routes are a part of the configuration, so these two may name them.
  const { "named route": _keep, "other named route": _tell, ...texts } = TEXTS;
  for (const command of [["config", "show"], ["doctor"], ["doctor", "--json"]]) {
    const ran = await cliRun(world.path, command, { env: SECURITY_ENV });
    expectNone(command.join(" "), ran.out + ran.err, { ...secrets, ...texts });
  }
});

test("watch shows no secret, no payload, no text and no destination", async () => {
  const stop = Promise.withResolvers<() => void>();
  let out = "";
  const watching = cliRun(world.path, ["continuations", "watch", "--json"], {
    env: SECURITY_ENV,
    onStop: (end) => {
      stop.resolve(end);
      return () => {};
    },
  });
  const end = await stop.promise;
  let tries = 0;
  await until("an event", async () => {
    tries += 1;
    const one = (await (await world.detached(SERVICE_TOKEN, `watched ${tries}`)).json()) as ClaimAnswer;
    await world.submit(one, PAYLOAD);
    await until("its end", async () => recordOf(one)?.state === "delivered");
    return tries > 5;
  });
  end();
  out = (await watching).out;
  expect(out).toContain("delivered");
  expectNone("watch", out, { ...secrets, ...TEXTS });
});

test("the model sees no credential, no route and no id of a conversation", () => {
  const { payload: _p, "detached payload": _d, text: _t, "vendor text": _v, ...places } = TEXTS;
  const seen = world.model.requests.map(({ text }) => text).join("\n");
  expect(seen).toContain("claimed with [redacted]");
  expectNone("model", seen, { ...secrets, ...places, route: "terminal:", id: claimed.continuationId });
});

test("tools get no credential in their arguments, and no other process's secrets in their environment", () => {
  expect(world.reports.length).toBeGreaterThan(0);
  const arguments_ = JSON.stringify(world.reports.map(({ params }) => params));
  expectNone("arguments", arguments_, { ...secrets, ...TEXTS });
  const { claim: _, "api key": __, detached: ___, ...others } = secrets;
  expectNone("environment", JSON.stringify(world.reports), { ...others, ...TEXTS });
});

test("files hold a secret or a private text only where it belongs", () => {
  const files = walk(world.path).map((path) => ({
    name: relative(world.path, path),
    text: readFileSync(path, "latin1"),
    mode: statSync(path).mode & 0o777,
  }));
  const within = (canary: string) =>
    files.filter(({ text }) => text.includes(canary)).map(({ name }) => name);
  for (const name of ["claim", "result", "detached result", "detached", "operator", "api key"]) {
    expect([name, within(secrets[name] ?? "")]).toEqual([name, []]);
  }
  expect(within(world.secret())).toEqual([".mono-agent/continuations/continuation-secret"]);
  expect(within(world.terminal())).toEqual([".mono-agent/terminal-token"]);
  expect(within(MCP_SECRET)).toEqual(["mcp.json"]);
  expect(within(VENDOR_TEXT)).toEqual([]);
  for (const payload of [PAYLOAD, DETACHED_PAYLOAD]) {
    expect(within(payload).filter((name) => !name.startsWith(".mono-agent/continuations/"))).toEqual([]);
  }
  for (const { name, mode } of files.filter((file) => file.name.startsWith(".mono-agent/"))) {
    expect([name, mode & 0o077]).toEqual([name, 0]);
  }
});

function walk(folder: string): string[] {
  return readdirSync(folder, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name));
}
