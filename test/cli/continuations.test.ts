import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, spyOn, test } from "bun:test";
import { chmodSync, mkdirSync, rmdirSync, symlinkSync, unlinkSync, writeFileSync } from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { join } from "node:path";
import type { ExitCode } from "../../src/cli/io.ts";
import { operatorToken } from "../../src/core/derive.ts";
import { cliRun } from "../support/cli-run.ts";
import { type ConfigFolder, configFolder, MINIMAL } from "../support/config-folder.ts";
import { HEALTH } from "../support/http-service.ts";

/** The commands against a stand-in for the loopback operator API. */

interface Asked {
  readonly method: string;
  readonly path: string;
  readonly token: string | null;
  readonly body: unknown;
}

const SECRET = Buffer.alloc(32, 7);
const STATUS = {
  continuationId: "6a0b6f0e-0000-4000-8000-000000000001",
  state: "delivery_unknown",
  mode: "notify_if_actionable",
  taskKey: "task\u001b[31m",
  createdAt: "2030-01-02T03:04:05.000Z",
  updatedAt: "2030-01-02T03:04:06.000Z",
  deadline: "2030-01-03T03:04:05.000Z",
  attempts: { synthesis: 1, delivery: 2 },
  synthesisDeferrals: 0,
  originContext: { state: "pinned", messageCount: 2 },
  lastError: { code: "delivery_outcome_unknown", reason: "the host stopped", at: "2030-01-02T03:04:06.000Z" },
};

let folder: ConfigFolder;
let asked: Asked[] = [];
let answer: { status: number; body: unknown } = { status: 200, body: {} };
/** What is answered first, in this order. */
let answers: (typeof answer)[] = [];
let server: ReturnType<typeof Bun.serve>;
let secretPath: string;

const writeConfig = (port: number | undefined) =>
  folder.write("mono-agent.config.json", {
    ...MINIMAL,
    continuations: { port, detachedServices: [{ name: "s", tokenEnv: "UNSET" }] },
  });

beforeAll(() => {
  server = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    async fetch(request) {
      const url = new URL(request.url);
      const text = await request.text();
      asked.push({
        method: request.method,
        path: url.pathname + url.search,
        token: request.headers.get("authorization"),
        body: text === "" ? undefined : JSON.parse(text),
      });
      const { body, status } = answers.shift() ?? answer;
      return typeof body === "string" ? new Response(body, { status }) : Response.json(body, { status });
    },
  });
});
afterAll(() => server.stop(true));

beforeEach(() => {
  folder = configFolder();
  asked = [];
  answers = [];
  writeConfig(server.port);
  const stateDir = join(folder.path, ".mono-agent/continuations");
  mkdirSync(stateDir, { recursive: true, mode: 0o700 });
  secretPath = join(stateDir, "continuation-secret");
  writeFileSync(secretPath, `${SECRET.toString("base64url")}\n`, { mode: 0o600 });
});
afterEach(() => folder.remove());

const SELF = ["./dist/my agent"];
const run = (line: string, columns?: number) =>
  cliRun(folder.path, ["continuations", ...line.split(" ").filter(Boolean)], { columns });

describe("what is asked of the host", () => {
  test.each([
    ["", "GET", "/v1/operator/continuations", undefined],
    ["--limit 5", "GET", "/v1/operator/continuations?limit=5", undefined],
    [
      "list --limit 5 --cursor abc --state claimed",
      "GET",
      "/v1/operator/continuations?limit=5&cursor=abc&state=claimed",
      undefined,
    ],
    ["show id/../x", "GET", "/v1/operator/continuations/id%2F..%2Fx", undefined],
    ["retry id", "POST", "/v1/operator/continuations/id/retry", {}],
    ["retry id --allow-unknown", "POST", "/v1/operator/continuations/id/retry", { allowUnknown: true }],
    ["cancel id", "POST", "/v1/operator/continuations/id/cancel", {}],
    [
      "resolve id delivered proof",
      "POST",
      "/v1/operator/continuations/id/resolve",
      { kind: "delivered", deliveryId: "proof" },
    ],
    ["resolve id delivered", "POST", "/v1/operator/continuations/id/resolve", { kind: "delivered" }],
    ["resolve id not-delivered", "POST", "/v1/operator/continuations/id/resolve", { kind: "not_delivered" }],
    ["resolve id dead-lettered", "POST", "/v1/operator/continuations/id/resolve", { kind: "dead_lettered" }],
  ])("%p", async (line, method, path, body) => {
    answer = { status: 200, body: { any: "thing" } };
    const { code, out } = await run(`${line} --json`);
    expect(code).toBe(0);
    expect(out).toBe('{\n  "any": "thing"\n}\n');
    expect(asked).toEqual([{ method, path, body, token: `Bearer ${operatorToken(SECRET)}` }]);
  });
});

test.each(["", ".", ".."])("the id %p would name another path, so nothing is asked", async (id) => {
  for (const action of ["show", "prove", "cancel", "retry", "release", "resolve"]) {
    const more = action === "resolve" ? ["delivered"] : [];
    const { code, err } = await cliRun(folder.path, ["continuations", action, id, ...more]);
    expect([action, code]).toEqual([action, 2]);
    expect(err).toContain(`"${id}" is no continuation id`);
  }
  expect(asked).toEqual([]);
});

test("what waits for a channel or for history is waited for longer than anything else", async () => {
  answer = { status: 200, body: STATUS };
  const limit = spyOn(AbortSignal, "timeout");
  const patience = async (line: string) => {
    limit.mockClear();
    await run(line);
    return limit.mock.calls.at(-1)?.[0] ?? 0;
  };
  // Two looks of continuations.limits.deliveryTimeoutMs each, and 30 s for history.
  for (const line of ["prove x", "resolve x delivered"])
    expect(await patience(line)).toBeGreaterThan(270_000);
  for (const line of ["cancel x", "show x"]) expect(await patience(line)).toBe(30_000);
  limit.mockRestore();
});

describe("what people see", () => {
  test("a page, and the exact next command when more follow", async () => {
    answer = { status: 200, body: { continuations: [STATUS], pageSize: 1, nextCursor: "WyJh" } };
    const { out } = await run("list --limit 1 --state delivery_unknown --config mono-agent.config.json");
    expect(out).toBe(
      [
        "ID                                    STATE             UPDATED            MODE",
        "6a0b6f0e-0000-4000-8000-000000000001  delivery_unknown  2030-01-02 03:04Z  notify_if_actionable",
        "",
        "more: mono-agent continuations list --limit 1 --state delivery_unknown --config mono-agent.config.json --cursor WyJh",
        "",
      ].join("\n"),
    );
  });

  test("the table fits a narrow terminal by leaving columns out, never by cutting an id", async () => {
    answer = { status: 200, body: { continuations: [STATUS], pageSize: 100 } };
    for (const columns of [80, 60, 54]) {
      const [, row] = (await run("list", columns)).out.split("\n");
      expect(row).toContain(STATUS.continuationId);
      if (columns >= 60) expect(row?.length).toBeLessThanOrEqual(columns);
    }
    expect((await run("list", 80)).out).not.toContain("notify_if_actionable");
  });

  test("where an id and a state don't fit side by side, they stand below each other", async () => {
    answer = { status: 200, body: { continuations: [STATUS, STATUS], pageSize: 2 } };
    const { out } = await run("list", 40);
    const row = "6a0b6f0e-0000-4000-8000-000000000001\n  delivery_unknown, 2030-01-02 03:04Z\n";
    expect(out).toBe(row.repeat(2));
    for (const line of out.split("\n")) expect(line.length).toBeLessThanOrEqual(40);
  });

  test("an empty list says so", async () => {
    answer = { status: 200, body: { continuations: [], pageSize: 100 } };
    expect((await run("list")).out).toBe("no continuations\n");
  });

  test("details, timeline and what it waits for; control characters do not reach the terminal", async () => {
    const timeline = [{ at: "2030-01-02T03:04:05.000Z", what: "claimed", code: "x" }];
    answer = { status: 200, body: { ...STATUS, timeline, waitsFor: "an operator's decision" } };
    const { out } = await run("show id");
    expect(out).toContain("waits for       an operator's decision\n");
    expect(out).toContain("timeline\n  2030-01-02T03:04:05.000Z  claimed (x)\n");
    expect(out).toContain("task            task\u{fffd}[31m\n");
    expect(out).not.toContain("\u001b");
  });

  test("nor do characters that reorder a line or break it", async () => {
    const lastError = {
      code: "c",
      reason: "a\u202eb\u2066c\u2028d\u200fe\u061cf",
      at: "2030-01-02T03:04:06.000Z",
    };
    answer = { status: 200, body: { ...STATUS, lastError, timeline: [] } };
    const { out } = await run("show x");
    expect(out).toContain("last error      c: a\ufffdb\ufffdc\ufffdd\ufffde\ufffdf (2030");
  });

  test("text that a host should never send is not printed either", async () => {
    answer = {
      status: 200,
      body: { ...STATUS, synthesizedText: "captured answer", resultPayload: "payload" },
    };
    const { out } = await run("cancel id");
    expect(out).toContain("state           delivery_unknown\n");
    expect(out).not.toMatch(/captured answer|payload/);
  });
});

function pipeInPlace(): void {
  unlinkSync(secretPath);
  Bun.spawnSync(["mkfifo", "-m", "600", secretPath]);
}

describe("when it does not work, the message names the way out", () => {
  test("no host", async () => {
    const free = Bun.serve({ port: 0, hostname: "127.0.0.1", fetch: () => new Response() });
    const { port } = free;
    await free.stop(true);
    writeConfig(port);
    const { code, err, out } = await run("list");
    expect({ code, out }).toEqual({ code: 1, out: "" });
    expect(err).toBe(`error: no host runs at 127.0.0.1:${port}; start it with \`mono-agent serve\`\n`);
  });

  test("no secret yet, or continuations that are not configured", async () => {
    unlinkSync(secretPath);
    expect((await run("list")).err).toContain("start the host with `mono-agent serve`");
    folder.write("mono-agent.config.json", MINIMAL);
    const { code, err } = await run("list");
    expect(code).toBe(1);
    expect(err).toContain('add a "continuations" block');
    expect(asked).toEqual([]);
  });

  test("a state directory whose secret is gone is not called new", async () => {
    mkdirSync(join(folder.path, ".mono-agent/continuations/records-v3"));
    unlinkSync(secretPath);
    const { code, err } = await run("list");
    expect(code).toBe(1);
    expect(err).toContain(`${secretPath} is missing beside existing continuations: restore it from a backup`);
    expect(asked).toEqual([]);
  });

  test("verify without any state", async () => {
    unlinkSync(secretPath);
    rmdirSync(join(folder.path, ".mono-agent/continuations"));
    const { code, err } = await run("verify x");
    expect(code).toBe(1);
    expect(err).toContain("there is no continuation state at");
    expect(err).toContain("start the host with `mono-agent serve`");
  });

  test("an id that nobody knows, and a post that may have happened", async () => {
    answer = { status: 404, body: { error: { code: "not_found", message: "No such continuation." } } };
    expect((await run("show x")).err).toBe(
      "error: No such continuation. (not_found); `mono-agent continuations list` shows what there is\n",
    );
    answer = { status: 409, body: { error: { code: "delivery_unknown", message: "It may have happened." } } };
    const { err } = await run("retry x");
    for (const way of ["prove ID", "resolve ID", "retry ID --allow-unknown"]) {
      expect(err).toContain(`\`mono-agent continuations ${way}\``);
    }
  });

  test("a proof that settled nothing", async () => {
    answer = { status: 200, body: STATUS };
    const unknown = await run("prove x --json");
    expect([unknown.code, JSON.parse(unknown.out)]).toEqual([1, STATUS]);
    expect(unknown.err).toBe(
      "not settled: the channel can't tell yet; decide with `mono-agent continuations resolve x`\n",
    );
    answer = { status: 200, body: { ...STATUS, state: "result_received" } };
    expect((await run("prove x")).err).toContain("`mono-agent continuations release x`");
    answer = { status: 200, body: { ...STATUS, state: "delivered" } };
    expect((await run("prove x")).err).toBe("");
  });

  test.each([
    [
      "watch",
      "content-type: text/event-stream\r\ncontent-length: 9999\r\n\r\n: connected\n\n",
      "the host has stopped",
    ],
    [
      "health",
      'content-type: application/json\r\ncontent-length: 9999\r\n\r\n{"status"',
      "stopped before its answer was complete",
    ],
  ])("a host that dies in the middle of its answer to %s", async (action, rest, reason) => {
    const dying = createServer((socket) => {
      socket.on("error", () => {});
      socket.once("data", () => {
        socket.write(`HTTP/1.1 200 OK\r\n${rest}`, () => socket.resetAndDestroy());
      });
    });
    const listening = Promise.withResolvers<void>();
    dying.listen(0, "127.0.0.1", listening.resolve);
    await listening.promise;
    writeConfig((dying.address() as AddressInfo).port);
    const { code, err } = await run(action);
    dying.close();
    expect(code).toBe(1);
    expect(err).toContain(reason);
    expect(err).not.toContain("should not happen");
  });

  test.each([
    [
      "a loose mode",
      () => chmodSync(secretPath, 0o640),
      "has mode 640, not 600; it must be yours alone (chmod 600)",
    ],
    ["a pipe in its place", pipeInPlace, "is a device, socket or pipe, not a regular file"],
    [
      "a symlink",
      () => {
        unlinkSync(secretPath);
        symlinkSync(join(folder.path, "identity.md"), secretPath);
      },
      "is a symlink, not a regular file",
    ],
    ["other content", () => writeFileSync(secretPath, "short\n"), "is not a service secret"],
    ["too much content", () => writeFileSync(secretPath, "x".repeat(2000)), "is too big for a secret"],
  ])("a secret with %s is refused and nothing is sent", async (_, spoil, reason) => {
    spoil();
    const { code, err } = await run("list");
    expect(code).toBe(1);
    expect(err).toContain(reason);
    expect(asked).toEqual([]);
  });

  test.each([
    [
      409,
      { error: { code: "already_terminal", message: "It is delivered." } },
      "It is delivered. (already_terminal)",
    ],
    [401, { error: { code: "invalid_operator_capability", message: "x" } }, "does not know the secret of"],
    [200, "<html>", "is not a mono-agent host"],
    [500, { other: true }, "is not a mono-agent host"],
  ])("an answer %p", async (status, body, reason) => {
    answer = { status, body };
    const { code, out, err } = await run("cancel id --json");
    expect({ code, out }).toEqual({ code: 1, out: "" });
    expect(err).toContain(reason);
    expect(err).not.toContain(operatorToken(SECRET));
  });
});

describe("a command that is printed to be copied begins as this program was called", () => {
  const asSelf = (line: string) => cliRun(folder.path, line.split(" "), { self: SELF });

  test("the next page", async () => {
    answer = { status: 200, body: { continuations: [STATUS], pageSize: 1, nextCursor: "WyJh" } };
    const { out } = await asSelf("continuations list --limit 1");
    expect(out).toEndWith("\nmore: './dist/my agent' continuations list --limit 1 --cursor WyJh\n");
  });

  test("where no host runs", async () => {
    const closed = Bun.serve({ port: 0, hostname: "127.0.0.1", fetch: () => new Response() });
    const { port } = closed;
    await closed.stop(true);
    writeConfig(port);
    expect((await asSelf("continuations health")).err).toContain("start it with `'./dist/my agent' serve`");
  });

  test("where no host has run yet", async () => {
    unlinkSync(secretPath);
    expect((await asSelf("continuations list")).err).toContain("with `'./dist/my agent' serve`");
    expect((await asSelf("chat")).err).toContain("start one with `'./dist/my agent' serve`");
  });

  test("wrong usage and a missing configuration", async () => {
    expect((await asSelf("continuations list --limit 0")).err).toEndWith(
      "\nsee: './dist/my agent' continuations list --help\n",
    );
    unlinkSync(join(folder.path, "mono-agent.config.json"));
    expect((await asSelf("serve")).err).toContain("`'./dist/my agent' init`");
    expect((await asSelf("serve --config /nope/x.json")).err).not.toContain("init");
    expect((await asSelf("doctor")).out).toContain("`'./dist/my agent' init`");
  });
});

test("continuations that are turned off are not called unconfigured", async () => {
  folder.write("mono-agent.config.json", { ...MINIMAL, continuations: { enabled: false } });
  const off = await run("list");
  expect([off.code, off.out]).toEqual([1, ""]);
  expect(off.err).toContain("continuations.enabled is false");
  expect(off.err).not.toContain("not configured");
  folder.write("mono-agent.config.json", MINIMAL);
  expect((await run("list")).err).toContain("not configured");
});

test("a retry asks at a terminal, and does nothing unless the answer is yes", async () => {
  answer = { status: 200, body: STATUS };
  const questions: string[] = [];
  const at = (reply: string | undefined, line: string) =>
    cliRun(folder.path, line.split(" "), {
      ask: async (question) => {
        questions.push(question);
        return reply;
      },
    });
  expect(await at("", "continuations retry x")).toMatchObject({ code: 1, err: "nothing was done\n" });
  expect(await at("n", "continuations retry x --allow-unknown")).toMatchObject({ code: 1 });
  expect(asked).toEqual([]);
  expect(questions[1]).toContain("posted twice");
  expect((await at("Yes", "continuations retry x")).code).toBe(0);
  expect((await at(undefined, "continuations retry x")).code).toBe(0);
  expect((await at("n", "continuations retry x --yes")).code).toBe(0);
  expect(asked.length).toBe(3);
});

test("watch says how many changes it could not show", async () => {
  const change = { continuationId: "x", state: "claimed", at: "2030-01-02T03:04:05.000Z", what: "claimed" };
  const line = `data: ${JSON.stringify(change)}\n\n`;
  answer = { status: 200, body: `: connected\n\n${line}event: lost\ndata: 7\n\n${line}` };
  const people = await run("watch");
  expect(people.out).toBe("2030-01-02T03:04:05.000Z  x  claimed\n".repeat(2));
  expect(people.err).toStartWith("7 changes are not shown");
  const { out } = await run("watch --json");
  expect(
    out
      .trim()
      .split("\n")
      .map((text) => JSON.parse(text)),
  ).toEqual([change, { lost: 7 }, change]);
});

test.each([
  ["delivery_unknown", "delivery_unknown", 1],
  ["delivery_unknown", "delivered", 0],
  ["delivery_unknown", "delivery_retry", 0],
  ["delivery_unknown", "dead_lettered", 1],
  ["delivery_unknown", "expired", 1],
  ["delivery_retry", "delivery_retry", 1],
  ["ready_to_deliver", "ready_to_deliver", 1],
  ["result_received", "delivered", 0],
])("prove of %p that leads to %p exits with %p", async (before, after, code) => {
  answers.push({ status: 200, body: { ...STATUS, state: before } });
  answer = { status: 200, body: { ...STATUS, state: after } };
  expect((await run("prove x")).code).toBe(code as ExitCode);
  expect(asked.map(({ method, path }) => [method, path])).toEqual([
    ["GET", "/v1/operator/continuations/x"],
    ["POST", "/v1/operator/continuations/x/prove"],
  ]);
});

test("health exits with 1 when it is unhealthy only", async () => {
  for (const [status, code] of [
    ["healthy", 0],
    ["degraded", 0],
    ["unhealthy", 1],
  ] as const) {
    answer = { status: 200, body: { ...HEALTH, status } };
    expect((await run("health")).code).toBe(code);
    expect((await run("health --json")).code).toBe(code);
  }
});

test("arguments that no host takes, and those that this one refuses, are wrong usage", async () => {
  for (const limit of ["abc", "0", "501", "1.5", "-1"]) {
    for (const action of ["list", "owed"]) expect((await run(`${action} --limit ${limit}`)).code).toBe(2);
  }
  expect(asked).toEqual([]);
  answer = { status: 400, body: { error: { code: "invalid_page_limit", message: "at most 100" } } };
  expect(await run("owed --limit 200")).toMatchObject({
    code: 2,
    err: expect.stringContaining("at most 100 (invalid_page_limit)"),
  });
});

test("owed exits with 1 when somebody is needed", async () => {
  const item = { ...STATUS, ageMs: 200_000_000, overdue: false, waitsFor: "a proof", needsPerson: true };
  answer = { status: 200, body: { owed: [item], total: 1, needPerson: 1 } };
  const owed = await run("owed");
  expect(owed.code).toBe(1);
  expect(owed.out).toContain("! 6a0b6f0e-0000-4000-8000-000000000001  delivery_unknown, 2 d old");
  expect(owed.out).toEndWith("\n1 needs a person (!)\n");
  answer = { status: 200, body: { owed: [], total: 0, needPerson: 0 } };
  expect(await run("owed")).toMatchObject({ code: 0, out: "nothing is owed\n" });
});

test("owed has pages: the exact next command, and all counted whichever page is shown", async () => {
  const item = { ...STATUS, ageMs: 5_000, overdue: false, waitsFor: "its service", needsPerson: false };
  answer = { status: 200, body: { owed: [item], total: 3, needPerson: 2, nextCursor: "WyJuZXh0Il0" } };
  const first = await run("owed --limit 1");
  expect(first).toMatchObject({ code: 1, err: "" });
  const [, command = ""] = /^more: .*continuations (owed .*)$/m.exec(first.out) ?? [];
  expect(command).toBe("owed --limit 1 --cursor WyJuZXh0Il0");
  expect(first.out).toEndWith("\n3 are owed in all, 2 need a person (!)\n");
  answer = { status: 200, body: { owed: [item], total: 3, needPerson: 2 } };
  const last = await run(command);
  expect(asked.at(-1)?.path).toBe("/v1/operator/owed?limit=1&cursor=WyJuZXh0Il0");
  expect(last.code).toBe(1);
  expect(last.out).not.toContain("more:");
  expect(last.out).toEndWith("\n3 are owed in all, 2 need a person (!)\n");
  expect((await run(`owed --cursor ${"x".repeat(513)}`)).code).toBe(2);
});
