import { afterAll, afterEach, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { operatorToken } from "../../src/core/derive.ts";
import { CLAIM_ENV } from "../../src/core/mcp-servers.ts";
import type { ClaimAnswer, ErrorBody } from "../../src/core/wire.ts";
import { until } from "../support/binary.ts";
import { head, rawConnection } from "../support/raw-http.ts";
import {
  type Capability,
  capabilityOf,
  inAnHour,
  SERVICE_TOKEN,
  type SecurityWorld,
  securityWorld,
} from "../support/security-world.ts";

/** Who may do what: every class of token of a running host, taken from real runs, at every door. */

// Real processes start here, on machines that may be busy.
setDefaultTimeout(60_000);

let world: SecurityWorld;
const ends: (() => void)[] = [];
beforeAll(async () => {
  world = await securityWorld();
});
afterEach(() => {
  for (const end of ends.splice(0)) end();
});
afterAll(() => world.remove());

/** A turn that stays open inside its tool call; `end` lets it finish. */
async function openRun(server: string, conversation: string) {
  const held = Promise.withResolvers<string>();
  const seen = Promise.withResolvers<Capability>();
  const before = world.onReport;
  world.onReport = (report) => {
    world.onReport = before;
    const capability = capabilityOf(report);
    if (capability === undefined) seen.reject(new Error("no capability"));
    else seen.resolve(capability);
    return held.promise;
  };
  const answer = world.ask(`use ${server}`, conversation);
  const end = async () => {
    held.resolve("done");
    await answer;
  };
  ends.push(() => held.resolve("done"));
  return { capability: await seen.promise, end };
}

const claimed = async (response: Response) => {
  if (response.status !== 200) throw new Error(await response.text());
  return (await response.json()) as ClaimAnswer;
};
const code = async (response: Response) => ((await response.json()) as ErrorBody).error.code;
const records = () => world.app.listContinuations();

test("only the diagonal of the five classes of token opens a door", async () => {
  const run = await openRun("alpha", "matrix");
  const mine = await claimed(await world.claim(run.capability.token, "matrix"));
  const tokens = {
    claim: run.capability.token,
    result: mine.token,
    detached: SERVICE_TOKEN,
    operator: world.operator(),
    terminal: world.terminal(),
  };
  const { continuations, terminal } = world.ports;
  const service = { "x-mono-agent-service-name": "ops" };
  const id = mine.continuationId;
  const doors: Record<keyof typeof tokens, ((token: string) => Promise<Response>)[]> = {
    claim: [(token) => world.claim(token, "matrix")],
    result: [
      (token) => world.call("GET", `/v1/continuations/${id}/status`, token),
      (token) => world.call("PUT", `/v1/continuations/${id}/result`, token, {}),
      (token) => world.call("POST", `/v1/continuations/${id}/result`, token, {}),
    ],
    detached: [
      (token) => world.detached(token, "matrix"),
      (token) => world.call("POST", "/v1/continuations/detached/claim", token, {}, service),
    ],
    operator: [
      ...["health", "continuations", "owed", `continuations/${id}`].map(
        (path) => (token: string) => world.call("GET", `/v1/operator/${path}`, token),
      ),
      ...["retry", "resolve", "prove", "cancel"].map(
        (action) => (token: string) =>
          world.call("POST", `/v1/operator/continuations/${id}/${action}`, token, { unknown: 1 }),
      ),
    ],
    terminal: [
      (token) => world.send(terminal, "GET", "/v1/terminal/health", token),
      (token) => world.send(terminal, "POST", "/v1/terminal/conversations/main/turns", token, {}),
      (token) => world.send(terminal, "GET", "/v1/terminal/conversations/main/messages", token),
    ],
  };
  for (const [door, knocks] of Object.entries(doors)) {
    for (const knock of knocks) {
      for (const [kind, token] of Object.entries(tokens)) {
        const { status } = await knock(token);
        expect([door, kind, status === 401, status < 500]).toEqual([door, kind, kind !== door, true]);
      }
      for (const wrong of [
        mine.fingerprint,
        run.capability.mode,
        world.secret(),
        id,
        operatorToken(Buffer.alloc(32)),
        tokens[door as keyof typeof tokens].slice(1),
      ]) {
        expect([door, (await knock(wrong)).status]).toEqual([door, 401]);
      }
    }
  }
  const inQuery = await fetch(
    `http://127.0.0.1:${continuations}/v1/operator/health?token=${tokens.operator}&access_token=${tokens.operator}`,
  );
  expect(inQuery.status).toBe(401);
  await run.end();
});

describe("a claim capability", () => {
  test("goes to selected servers only, by exactly four variables, and differs by server and by run", async () => {
    const { reports } = world;
    reports.length = 0;
    for (const server of ["alpha", "beta", "gamma", "alpha"]) await world.ask(`use ${server}`, "who");
    const names = reports.map(({ env }) =>
      Object.keys(env)
        .filter((name) => name.startsWith("MONO_AGENT_CONTINUATION"))
        .sort(),
    );
    const four = Object.values(CLAIM_ENV).sort();
    expect(names).toEqual([four, four, [], four]);
    const tokens = reports.map(({ env }) => env[CLAIM_ENV.token]);
    expect(new Set(tokens.filter((token) => token !== undefined)).size).toBe(3);
    for (const { env } of reports.filter(({ server }) => server === "gamma")) {
      expect(Object.values(env)).not.toContain(SERVICE_TOKEN);
    }
  });

  test("ends with its run, while another run's goes on", async () => {
    const first = await openRun("alpha", "first");
    const second = await openRun("alpha", "second");
    const a = await claimed(await world.claim(first.capability.token, "same key"));
    const b = await claimed(await world.claim(second.capability.token, "same key"));
    expect(a.continuationId).not.toBe(b.continuationId);
    expect(a.fingerprint).not.toBe(b.fingerprint);
    await first.end();
    for (const key of ["same key", "new key"]) {
      const late = await world.claim(first.capability.token, key);
      expect([late.status, await code(late)]).toEqual([401, "invalid_claim_capability"]);
    }
    expect((await claimed(await world.claim(second.capability.token, "same key"))).replayed).toBe(true);
    await second.end();
    expect((await world.claim(second.capability.token, "same key")).status).toBe(401);

    world.synthesis = "answer for the first conversation";
    expect((await world.submit(a, { done: 1 })).status).toBe(202);
    await until(
      "the delivery",
      async () => (await world.messages("first")).at(-1)?.deliveryKey !== undefined,
    );
    expect((await world.messages("second")).some(({ deliveryKey }) => deliveryKey !== undefined)).toBe(false);
  });

  test("of one server is not another's in the same run: the same key makes two records", async () => {
    const capabilities: Capability[] = [];
    const answers: ClaimAnswer[] = [];
    world.onReport = async (report) => {
      const capability = capabilityOf(report);
      if (capability === undefined) return "none";
      capabilities.push(capability);
      answers.push(await claimed(await world.claim(capability.token, "shared key")));
      return "claimed";
    };
    const { reply } = world.model;
    world.model.reply = (request) => {
      if (request.tools.length === 0) return { text: "done" };
      const done = request.messages.filter(({ role }) => role === "tool").length;
      const next = ["report_alpha", "report_beta"][done];
      return next === undefined ? { text: "both" } : { tool: next, input: {} };
    };
    await world.ask("both", "both");
    world.model.reply = reply;
    world.onReport = () => "seen";
    expect(new Set(capabilities.map(({ token }) => token)).size).toBe(2);
    expect(new Set(answers.map(({ continuationId }) => continuationId)).size).toBe(2);
    expect(new Set(answers.map(({ fingerprint }) => fingerprint)).size).toBe(2);
    const [alpha, beta] = answers;
    if (alpha === undefined || beta === undefined) throw new Error("two claims are needed");
    const crossed = { ...alpha, token: beta.token };
    expect((await world.submit(crossed, 1)).status).toBe(401);
    const status = await world.call("GET", new URL(beta.statusUrl).pathname, alpha.token);
    expect([status.status, await code(status)]).toEqual([401, "invalid_result_capability"]);
  });

  test("that ends while the body of a claim is on its way admits nothing", async () => {
    const run = await openRun("alpha", "slow");
    const before = records().length;
    const body = JSON.stringify({ taskKey: "slow", taskHash: "h", deadline: inAnHour() });
    const connection = rawConnection(world.ports.continuations);
    connection.write(
      head("POST", "/v1/continuations/claim", [
        ["Host", `127.0.0.1:${world.ports.continuations}`],
        ["Authorization", `Bearer ${run.capability.token}`],
        ["Content-Length", String(body.length)],
        ["Expect", "100-continue"],
      ]) + body.slice(0, 10),
    );
    // A whole exchange on the same port: what was written before it has been read.
    await world.call("GET", "/v1/operator/health", world.operator());
    await run.end();
    connection.write(body.slice(10));
    const [answer] = await connection.answers(1);
    connection.destroy();
    expect([answer?.status, answer?.body.includes("invalid_claim_capability")]).toEqual([401, true]);
    expect(records().length).toBe(before);
  });

  test("routes by its binding alone, whatever the claim and the model's arguments say", async () => {
    let mine: ClaimAnswer | undefined;
    world.toolInput = {
      replyTo: "terminal:victim",
      channel: "terminal:victim",
      callbackUrl: "http://127.0.0.1:1/",
      [CLAIM_ENV.token]: "model-made",
    };
    world.onReport = async (report) => {
      expect(report.params.arguments).toEqual(world.toolInput);
      const { token } = capabilityOf(report) ?? { token: "" };
      expect(token).not.toBe("model-made");
      const extra = {
        taskKey: "routed",
        taskHash: "h",
        deadline: inAnHour(),
        replyToConversationId: "terminal:victim",
        destination: "terminal:victim",
        originConversationId: "terminal:victim",
        mode: "capture",
        route: "keep",
        serverName: "beta",
      };
      mine = await claimed(
        await world.call("POST", "/v1/continuations/claim", token, extra, {
          "x-mono-agent-service-name": "ops",
          "x-mono-agent-continuation-claim-mode": "capture",
          "x-mono-agent-reply-to": "terminal:victim",
        }),
      );
      return "claimed";
    };
    await world.ask("use alpha", "bound");
    world.onReport = () => "seen";
    world.toolInput = {};
    if (mine === undefined) throw new Error("no claim");
    world.synthesis = "goes home";
    await world.submit(mine, { replyTo: "terminal:victim" });
    await until("the delivery", async () => (await world.messages("bound")).at(-1)?.content === "goes home");
    expect(await world.messages("victim")).toEqual([]);
    expect(records().find(({ taskKey }) => taskKey === "routed")?.mode).toBe("reply");
  });
});

test("a detached service is held to its own name, its token and the configured routes", async () => {
  const before = records().length;
  const claim = (body: object, token = SERVICE_TOKEN, service: string | undefined = "ops") =>
    world.call(
      "POST",
      "/v1/continuations/detached/claim",
      token,
      { route: "keep", taskKey: "d", taskHash: "h", deadline: inAnHour(), ...body },
      service === undefined ? {} : { "x-mono-agent-service-name": service },
    );
  for (const service of ["other", "unknown", "OPS", "__proto__", "constructor", "toString"]) {
    expect([service, await code(await claim({}, SERVICE_TOKEN, service))]).toEqual([
      service,
      "invalid_service_capability",
    ]);
  }
  expect(await code(await world.call("POST", "/v1/continuations/detached/claim", SERVICE_TOKEN, {}))).toBe(
    "missing_service_name",
  );
  for (const route of ["nowhere", "__proto__", "constructor", "KEEP", "keep "]) {
    expect([route, await code(await claim({ route }))]).toEqual([route, "unknown_named_route"]);
  }
  for (const field of ["replyToConversationId", "conversationId", "destination", "mode", "callbackUrl"]) {
    expect([field, await code(await claim({ [field]: "terminal:victim" }))]).toEqual([field, "invalid_body"]);
  }
  expect(records().length).toBe(before);
});
