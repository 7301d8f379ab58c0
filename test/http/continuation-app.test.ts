import { describe, expect, test } from "bun:test";
import { sha256Hex } from "../../src/core/digest.ts";
import { AppError, ERROR_TABLE, type ErrorCode, StoreError } from "../../src/core/errors.ts";
import { canonicalJson } from "../../src/core/json.ts";
import { createContinuationApp } from "../../src/http/continuation-app.ts";
import type { LiveEvents } from "../../src/http/live-events.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { createFakeService, KNOWN_ID, TOKENS } from "../support/http-service.ts";
import { createRecordingLogger } from "../support/silent-logger.ts";

type Body = string | Uint8Array<ArrayBuffer>;

const PORT = 8791;
const DEADLINE = "2026-12-01T12:00:00+02:00";
const CLAIM = { taskKey: "k", taskHash: "h", deadline: DEADLINE };

function setup() {
  const fake = createFakeService();
  const logger = createRecordingLogger();
  const bound = { host: "127.0.0.1", port: PORT };
  const watchers = new Set<LiveEvents>();
  const patient: string[] = [];
  const app = createContinuationApp({
    service: fake.service,
    bound,
    clock: createFakeClock(),
    logger,
    watchers,
    unhurried: ({ url }) => patient.push(new URL(url).pathname.split("/").at(-1) ?? ""),
    backup: async (path) => ({ path, createdAt: "", records: 0, files: 0, bytes: 0, warnings: [] }),
  });
  const send = async (
    method: string,
    path: string,
    options: { token?: string; body?: unknown; raw?: Body; headers?: Record<string, string> } = {},
  ) => {
    const headers = new Headers({ host: `127.0.0.1:${PORT}`, ...options.headers });
    if (options.token !== undefined) headers.set("authorization", `Bearer ${options.token}`);
    const body = options.raw ?? (options.body === undefined ? undefined : JSON.stringify(options.body));
    const response = await app.fetch(
      new Request(`http://127.0.0.1:${PORT}${path}`, {
        method,
        headers,
        ...(body === undefined ? {} : { body }),
      }),
    );
    expect(response.headers.get("cache-control")).toBe("no-store");
    expect(response.headers.get("x-content-type-options")).toBe("nosniff");
    const text = await response.text();
    const json = text === "" ? undefined : JSON.parse(text);
    return { status: response.status, headers: response.headers, json, code: json?.error?.code };
  };
  return { ...fake, logger, send, watchers, patient };
}

const RESULT = `/v1/continuations/${KNOWN_ID}/result`;
const OPERATOR = "/v1/operator/continuations";

describe("the continuation protocol", () => {
  test("answers each call with its documented status", async () => {
    const { send, calls } = setup();
    const payload = { idempotencyKey: "i", payload: { a: 1 } };
    expect((await send("POST", "/v1/continuations/claim", { token: TOKENS.claim, body: CLAIM })).status).toBe(
      200,
    );
    const detached = await send("POST", "/v1/continuations/detached/claim", {
      token: TOKENS.service,
      headers: { "x-mono-agent-service-name": "svc" },
      body: { ...CLAIM, route: "r" },
    });
    expect(detached.status).toBe(200);
    for (const method of ["PUT", "POST"]) {
      const accepted = await send(method, RESULT, { token: TOKENS.result, body: payload });
      expect(accepted.status).toBe(202);
      expect(accepted.json).toEqual({ continuationId: KNOWN_ID, state: "result_received", accepted: true });
    }
    const status = `/v1/continuations/${KNOWN_ID}/status`;
    expect((await send("GET", status, { token: TOKENS.result })).json.state).toBe("claimed");
    const token = TOKENS.operator;
    expect((await send("GET", "/v1/operator/health", { token })).json.status).toBe("healthy");
    expect((await send("GET", `${OPERATOR}?limit=3&cursor=c&state=claimed`, { token })).json.pageSize).toBe(
      100,
    );
    expect((await send("GET", "/v1/operator/owed?limit=2&cursor=d", { token })).json.total).toBe(0);
    expect((await send("GET", `${OPERATOR}/${KNOWN_ID}`, { token })).json.timeline).toEqual([]);
    for (const [action, body] of [
      ["retry", { allowUnknown: true }],
      ["cancel", {}],
      ["resolve", { kind: "delivered", deliveryId: "d" }],
    ] as const) {
      expect((await send("POST", `${OPERATOR}/${KNOWN_ID}/${action}`, { token, body })).status).toBe(200);
    }
    expect(calls).toEqual([
      ["claim", CLAIM],
      ["detached", { ...CLAIM, route: "r" }],
      ["submit", payload],
      ["submit", payload],
      ["list", { limit: "3", cursor: "c", state: "claimed" }],
      ["owed", { limit: "2", cursor: "d" }],
      ["show", KNOWN_ID],
      ["retry", KNOWN_ID, { allowUnknown: true }],
      ["cancel", KNOWN_ID],
      ["resolve", KNOWN_ID, { kind: "delivered", deliveryId: "d" }],
    ]);
  });

  test("takes a retry and a cancel without a body as an empty one", async () => {
    const { send, calls } = setup();
    for (const action of ["retry", "cancel"]) {
      expect(
        (await send("POST", `${OPERATOR}/${KNOWN_ID}/${action}`, { token: TOKENS.operator })).status,
      ).toBe(200);
    }
    expect(calls).toEqual([
      ["retry", KNOWN_ID, {}],
      ["cancel", KNOWN_ID],
    ]);
  });

  test("HEAD of the events opens no stream that nobody could close", async () => {
    const { send, watchers } = setup();
    const answer = await send("HEAD", "/v1/operator/events", { token: TOKENS.operator });
    expect([answer.status, answer.headers.get("content-type")]).toEqual([
      200,
      "text/event-stream; charset=utf-8",
    ]);
    expect(watchers.size).toBe(0);
    expect((await send("HEAD", "/v1/operator/events")).status).toBe(401);
  });

  test("only what waits for a channel or a disk gets more time, and only for the operator", async () => {
    const { send, patient } = setup();
    const all = async (token: string) => {
      for (const action of ["prove", "resolve", "retry", "cancel", "release"]) {
        const body = action === "resolve" ? { kind: "delivered" } : {};
        await send("POST", `${OPERATOR}/${KNOWN_ID}/${action}`, { token, body });
      }
      await send("POST", "/v1/operator/backup", { token, body: { path: "/b" } });
      await send("GET", "/v1/operator/health", { token });
      await send("POST", "/elsewhere/v1/operator/backup", { token, body: { path: "/b" } });
    };
    await all("other");
    expect(patient).toEqual([]);
    await all(TOKENS.operator);
    expect(patient).toEqual(["prove", "resolve", "backup"]);
  });

  test("accepts the bearer scheme in any case", async () => {
    const { send } = setup();
    const headers = { authorization: `bEaReR ${TOKENS.operator}` };
    expect((await send("GET", "/v1/operator/health", { headers })).status).toBe(200);
  });
});

describe("credentials", () => {
  const calls = [
    ["POST", "/v1/continuations/claim", "invalid_claim_capability"],
    ["POST", "/v1/continuations/detached/claim", "invalid_service_capability"],
    ["PUT", RESULT, "invalid_result_capability"],
    ["GET", `/v1/continuations/${KNOWN_ID}/status`, "invalid_result_capability"],
    ["GET", OPERATOR, "invalid_operator_capability"],
    ["GET", `${OPERATOR}/${KNOWN_ID}`, "invalid_operator_capability"],
    ["GET", "/v1/operator/health", "invalid_operator_capability"],
    ["POST", `${OPERATOR}/${KNOWN_ID}/retry`, "invalid_operator_capability"],
    ["POST", `${OPERATOR}/${KNOWN_ID}/cancel`, "invalid_operator_capability"],
    ["POST", `${OPERATOR}/${KNOWN_ID}/resolve`, "invalid_operator_capability"],
  ] as const;
  test.each(calls)(
    "%s %s is refused without the right token, whatever the body",
    async (method, path, wrong) => {
      const { send, calls } = setup();
      const raw = method === "GET" ? {} : { raw: "x".repeat(300 * 1024) };
      const headers = { "x-mono-agent-service-name": "svc" };
      const missing = await send(method, path, { ...raw, headers });
      expect([missing.status, missing.code]).toEqual([401, "missing_capability"]);
      expect(missing.headers.get("www-authenticate")).toBe("Bearer");
      const other = await send(method, path, { ...raw, headers, token: "other" });
      expect([other.status, other.code]).toEqual([401, wrong]);
      for (const authorization of ["Bearer", "Basic abc", "Bearer a b", `Bearer ${"x".repeat(513)}`]) {
        const malformed = await send(method, path, { ...raw, headers: { ...headers, authorization } });
        expect([malformed.status, malformed.code]).toEqual([401, "invalid_capability"]);
      }
      expect(calls).toEqual([]);
    },
  );

  test("a detached claim needs a service name, after the token", async () => {
    const { send } = setup();
    const path = "/v1/continuations/detached/claim";
    expect((await send("POST", path)).code).toBe("missing_capability");
    expect((await send("POST", path, { token: TOKENS.service })).code).toBe("missing_service_name");
    const headers = { "x-mono-agent-service-name": "n".repeat(257) };
    expect((await send("POST", path, { token: TOKENS.service, headers })).code).toBe("missing_service_name");
  });

  test("an unknown id is 404 before the token is judged, and so is an id that cannot exist", async () => {
    const { send } = setup();
    for (const id of ["unknown", "a%2Fb", "a%5Cb", "a%00b", "%252e%252e", "%zz", "x".repeat(257)]) {
      const answer = await send("PUT", `/v1/continuations/${id}/result`, { token: "other", body: {} });
      expect([id, answer.status, answer.code]).toEqual([id, 404, "not_found"]);
      expect((await send("GET", `${OPERATOR}/${id}`, { token: TOKENS.operator })).status).toBe(404);
    }
  });
});

describe("the loopback rules", () => {
  test("a request of a web page is refused even with a valid token", async () => {
    const { send } = setup();
    for (const origin of ["http://evil.example", "null", `http://127.0.0.1:${PORT}`]) {
      const answer = await send("GET", OPERATOR, { token: TOKENS.operator, headers: { origin } });
      expect([answer.status, answer.code]).toEqual([403, "forbidden_origin"]);
    }
  });

  test("only a Host that names the bound address with its port gets through", async () => {
    const { send } = setup();
    const status = async (host: string) =>
      (await send("GET", "/v1/operator/health", { token: TOKENS.operator, headers: { host } })).status;
    for (const name of ["127.0.0.1", "localhost", "LOCALHOST"]) {
      expect(await status(`${name}:${PORT}`)).toBe(200);
    }
    for (const host of [
      "evil.example",
      `evil.example:${PORT}`,
      "127.0.0.1",
      "127.0.0.1:80",
      `[::1]:${PORT}`,
      "localhost.",
      "",
    ]) {
      expect(await status(host)).toBe(403);
    }
  });

  test("a wrong method answers 405 with allow, an unknown path 404", async () => {
    const { send } = setup();
    const expected = [
      ["GET", "/v1/continuations/claim", "POST"],
      ["DELETE", RESULT, "PUT, POST"],
      ["OPTIONS", OPERATOR, "GET, HEAD"],
      ["PATCH", `${OPERATOR}/${KNOWN_ID}/retry`, "POST"],
    ] as const;
    for (const [method, path, allow] of expected) {
      const answer = await send(method, path);
      expect([answer.status, answer.code, answer.headers.get("allow")]).toEqual([
        405,
        "method_not_allowed",
        allow,
      ]);
    }
    for (const path of ["/", "/v1", "/v1/continuations/claim/", "/v1/continuations/x/y"]) {
      const answer = await send("POST", path, { token: TOKENS.operator });
      expect([answer.status, answer.code]).toEqual([404, "not_found"]);
    }
  });
});

describe("bodies", () => {
  const claim = async (raw: Body, path = "/v1/continuations/claim") => {
    const { send, calls } = setup();
    const token = path === RESULT ? TOKENS.result : TOKENS.claim;
    const answer = await send("POST", path, { token, raw });
    return { ...answer, calls };
  };

  test("names the first wrong field", async () => {
    const without = (key: keyof typeof CLAIM) => JSON.stringify({ ...CLAIM, [key]: undefined });
    const expected: [Body, ErrorCode, string?][] = [
      ["", "invalid_json"],
      ["{", "invalid_json"],
      [new Uint8Array([0x22, 0xff, 0x22]), "invalid_json"],
      ["[]", "invalid_body"],
      ["null", "invalid_body"],
      [without("taskKey"), "invalid_taskKey"],
      [without("taskHash"), "invalid_taskHash"],
      [without("deadline"), "invalid_deadline"],
      [JSON.stringify({ ...CLAIM, taskKey: "x".repeat(257) }), "invalid_taskKey"],
      [JSON.stringify({ ...CLAIM, deadline: "tomorrow" }), "invalid_deadline"],
      [JSON.stringify({ ...CLAIM, deadline: "2026-12-01T12:00:00" }), "invalid_deadline"],
      [JSON.stringify({ idempotencyKey: "i" }), "missing_payload", RESULT],
      [JSON.stringify({ payload: 1 }), "invalid_idempotencyKey", RESULT],
      [JSON.stringify({ idempotencyKey: "i", payload: 1, payloadHash: "A" }), "invalid_payloadHash", RESULT],
    ];
    for (const [raw, code, path] of expected) {
      const answer = await claim(raw, path);
      expect([raw, answer.status, answer.code]).toEqual([raw, 400, code]);
      expect(answer.calls).toEqual([]);
    }
  });

  test("operator bodies refuse unknown keys and unknown resolutions", async () => {
    const { send, calls } = setup();
    const post = (action: string, body: unknown) =>
      send("POST", `${OPERATOR}/${KNOWN_ID}/${action}`, { token: TOKENS.operator, body });
    expect((await post("resolve", { kind: "maybe" })).code).toBe("invalid_resolution");
    expect((await post("resolve", { kind: "delivered", deliveryId: "" })).code).toBe("invalid_deliveryId");
    expect((await post("retry", { allowUnknown: "yes" })).code).toBe("invalid_allowUnknown");
    expect((await post("retry", { force: true })).code).toBe("invalid_body");
    expect((await post("cancel", { toString: 1 })).code).toBe("invalid_body");
    expect(calls).toEqual([]);
  });

  test("a payload keeps null, duplicate and __proto__ keys as JSON.parse reads them", async () => {
    expect((await claim('{"idempotencyKey":"i","payload":null}', RESULT)).status).toBe(202);
    const raw = '{"idempotencyKey":"i","payload":{"__proto__":{"x":1},"b":1,"b":2}}';
    const { calls } = await claim(raw, RESULT);
    const [, body] = calls[0] as [string, { payload: object }];
    expect(Object.keys(body.payload)).toEqual(["__proto__", "b"]);
    expect(canonicalJson(body.payload)).toBe('{"__proto__":{"x":1},"b":2}');
    expect(sha256Hex(canonicalJson(body.payload))).toBe(sha256Hex('{"__proto__":{"x":1},"b":2}'));
  });

  test("deep nesting answers 400 and does not crash", async () => {
    for (const depth of [2_001, 10_000, 100_000]) {
      const payload = `${"[".repeat(depth)}${"]".repeat(depth)}`;
      const answer = await claim(`{"idempotencyKey":"i","payload":${payload}}`, RESULT);
      expect([answer.status, answer.code]).toEqual([400, "invalid_json"]);
    }
    const nested = `${"[".repeat(255)}${"]".repeat(255)}`;
    expect((await claim(`{"idempotencyKey":"i","payload":${nested}}`, RESULT)).status).toBe(202);
    const quoted = JSON.stringify({ idempotencyKey: "i", payload: `\\"${"[".repeat(1000)}` });
    expect((await claim(quoted, RESULT)).status).toBe(202);
  });

  test("a body over the limit of its route is 413, one at the limit is read", async () => {
    const body = (bytes: number) => {
      const empty = JSON.stringify({ idempotencyKey: "i", payload: "" });
      return JSON.stringify({ idempotencyKey: "i", payload: "x".repeat(bytes - empty.length) });
    };
    expect((await claim(body(256 * 1024), RESULT)).status).toBe(202);
    const over = await claim(body(256 * 1024 + 1), RESULT);
    expect([over.status, over.code]).toEqual([413, "payload_too_large"]);
    const claimOver = await claim(JSON.stringify({ ...CLAIM, extra: "x".repeat(16 * 1024) }));
    expect(claimOver.status).toBe(413);
  });
});

describe("errors", () => {
  test("every refusal answers with the status of the error table, and 429 and 503 say when to retry", async () => {
    for (const code of Object.keys(ERROR_TABLE) as ErrorCode[]) {
      const { send, next } = setup();
      next.refusal = { code, message: "why", retryAfterMs: 1_500 };
      const answer = await send("POST", "/v1/continuations/claim", { token: TOKENS.claim, body: CLAIM });
      const { status } = ERROR_TABLE[code];
      expect([answer.status, answer.json]).toEqual([status, { error: { code, message: "why" } }]);
      expect(answer.headers.get("retry-after")).toBe(status === 429 || status === 503 ? "2" : null);
    }
  });

  test("retry-after is at least one second", async () => {
    const { send, next } = setup();
    next.refusal = { code: "service_stopping", message: "why" };
    const answer = await send("POST", "/v1/continuations/claim", { token: TOKENS.claim, body: CLAIM });
    expect(answer.headers.get("retry-after")).toBe("1");
  });

  test("what is thrown is logged and answered without detail", async () => {
    const cases = [
      [new Error("secret /path"), 500, "internal_error"],
      ["a string", 500, "internal_error"],
      [new StoreError("store_corrupt", "secret /path"), 500, "internal_error"],
      [new StoreError("store_write_failed", "secret /path"), 503, "store_poisoned"],
      [new StoreError("store_poisoned", "secret /path"), 503, "store_poisoned"],
    ] as const;
    for (const [thrown, status, code] of cases) {
      const { send, next, logger } = setup();
      next.thrown = thrown;
      const answer = await send("POST", "/v1/continuations/claim", { token: TOKENS.claim, body: CLAIM });
      expect([answer.status, answer.code]).toEqual([status, code]);
      expect(JSON.stringify(answer.json)).not.toContain("secret");
      expect(answer.headers.get("retry-after")).toBe(status === 503 ? "5" : null);
      expect(logger.lines).toHaveLength(1);
    }
    const { send, next } = setup();
    next.thrown = new AppError("record_too_large", "the record is too large");
    const answer = await send("POST", "/v1/continuations/claim", { token: TOKENS.claim, body: CLAIM });
    expect([answer.status, answer.code]).toEqual([413, "record_too_large"]);
  });
});
