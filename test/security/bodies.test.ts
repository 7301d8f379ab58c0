import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { payloadHash } from "../../src/core/derive.ts";
import type { ClaimAnswer, ErrorBody } from "../../src/core/wire.ts";
import { until } from "../support/binary.ts";
import { head, rawConnection } from "../support/raw-http.ts";
import { inAnHour, SERVICE_TOKEN, type SecurityWorld, securityWorld } from "../support/security-world.ts";

/** Odd and hostile bodies against a running host. */

// Real processes start here, on machines that may be busy.
setDefaultTimeout(60_000);

let world: SecurityWorld;
beforeAll(async () => {
  world = await securityWorld({ withTools: false });
});
afterAll(() => world.remove());

let serial = 0;
const claim = async () => {
  serial += 1;
  return (await (await world.detached(SERVICE_TOKEN, `body ${serial}`, "quiet")).json()) as ClaimAnswer;
};
const statusOf = (claimed: ClaimAnswer) =>
  world.app.listContinuations().find(({ continuationId }) => continuationId === claimed.continuationId);

async function answered(response: Response) {
  const body = (await response.json()) as Partial<ErrorBody>;
  return { status: response.status, code: body.error?.code, message: body.error?.message ?? "" };
}
const raw = (
  method: string,
  path: string,
  token: string,
  body: string | Uint8Array,
  headers: object = {},
  port = world.ports.continuations,
) =>
  fetch(`http://127.0.0.1:${port}${path}`, {
    method,
    headers: { authorization: `Bearer ${token}`, ...headers },
    body,
  }).then(answered);

/** Every kind of place that takes a body, each with a valid credential. */
async function places() {
  const claimed = await claim();
  const operator = world.operator();
  const id = claimed.continuationId;
  return [
    (body: string | Uint8Array) =>
      raw("POST", "/v1/continuations/detached/claim", SERVICE_TOKEN, body, {
        "x-mono-agent-service-name": "ops",
      }),
    (body: string | Uint8Array) => raw("PUT", new URL(claimed.resultUrl).pathname, claimed.token, body),
    ...["retry", "cancel", "resolve", "prove"].map(
      (action) => (body: string | Uint8Array) =>
        raw("POST", `/v1/operator/continuations/${id}/${action}`, operator, body),
    ),
    (body: string | Uint8Array) =>
      raw("POST", "/v1/terminal/conversations/main/turns", world.terminal(), body, {}, world.ports.terminal),
  ];
}

test("what is no JSON object is 400 in every place", async () => {
  const deep = "[".repeat(10_000);
  const bodies: [string, string | Uint8Array][] = [
    ["white space", " \n\t "],
    ["cut off", '{"a":'],
    ["trailing garbage", '{"a":1} x'],
    ["two objects", "{}{}"],
    ["trailing comma", '{"a":1,}'],
    ["single quotes", "{'a':1}"],
    ["a comment", "{} // x"],
    ["NaN", '{"a":NaN}'],
    ["hex", '{"a":0x10}'],
    ["a byte order mark", "\ufeff{}"],
    ["invalid UTF-8", new Uint8Array([0x7b, 0x22, 0xff, 0x22, 0x3a, 0x31, 0x7d])],
    ["an overlong slash", new Uint8Array([0x22, 0xc0, 0xaf, 0x22])],
    ["an encoded surrogate", new Uint8Array([0x22, 0xed, 0xa0, 0x80, 0x22])],
    ["UTF-16", new Uint8Array([0x7b, 0, 0x7d, 0])],
    ["NUL", "{}\0"],
    ["gzip", Bun.gzipSync("{}")],
    ["a form", "a=1&b=2"],
    ["10,000 levels of arrays", deep + "]".repeat(6_000)],
    ["10,000 open arrays", deep],
    ["2,500 objects", `${'{"a":'.repeat(2_500)}1${"}".repeat(2_500)}`],
    ["an array", "[]"],
    ["an array of the object", '[{"taskKey":"k"}]'],
    ["a string", '"{}"'],
    ["a number", "1"],
    ["null", "null"],
  ];
  for (const place of await places()) {
    for (const [name, body] of bodies) {
      const { status, code } = await place(body);
      expect([name, status]).toEqual([name, 400]);
      expect(["invalid_json", "invalid_body"]).toContain(code ?? "");
    }
  }
});

test("keys of every object's prototype are ordinary keys: unknown ones are refused, and they set nothing", async () => {
  const [detached, result, retry, cancel, resolve, , turn] = await places();
  const plain = JSON.stringify({
    route: "quiet",
    taskKey: `p${serial}`,
    taskHash: "h",
    deadline: inAnHour(),
  });
  for (const key of ["__proto__", "constructor", "prototype", "toString", "hasOwnProperty"]) {
    const extra = `"${key}":{"allowUnknown":true,"taskKey":"polluted","kind":"delivered","text":"polluted"}`;
    for (const [place, body] of [
      [detached, `${plain.slice(0, -1)},${extra}}`],
      [retry, `{${extra}}`],
      [cancel, `{${extra}}`],
      [resolve, `{"kind":"delivered",${extra}}`],
      [turn, `{"requestId":"r","text":"t",${extra}}`],
    ] as const) {
      expect([key, (await place?.(body))?.code]).toEqual([key, "invalid_body"]);
    }
    expect([key, (await result?.(`{${extra},"payload":1}`))?.code]).toEqual([key, "invalid_idempotencyKey"]);
    expect([key, (await turn?.(`{${extra}}`))?.status]).toEqual([key, 400]);
  }
  expect(({} as Record<string, unknown>).allowUnknown).toBeUndefined();
});

test("of duplicate keys the last one counts, in the check as in the record", async () => {
  const claimed = await claim();
  const path = new URL(claimed.resultUrl).pathname;
  const body = '{"idempotencyKey":"k","payloadHash":"HASH","payload":{"a":1},"payload":{"a":2,"a":3}}';
  const hash = (payload: { a: number }) => body.replace("HASH", payloadHash(payload));
  expect((await raw("PUT", path, claimed.token, hash({ a: 1 }))).code).toBe("payload_hash_mismatch");
  expect((await raw("PUT", path, claimed.token, hash({ a: 3 }))).status).toBe(202);
});

describe("payloads at the edge of JSON", () => {
  test("are accepted, the same again, and worked on", async () => {
    const payloads = [
      '{"__proto__":{"isAdmin":true},"constructor":{"prototype":{"x":1}}}',
      '"\\ud800 a lone surrogate \\udfff"',
      '{"\\ud800":1,"\\u0000":2,"":3}',
      "-0",
      "1e308",
      "0.1e-400",
      "123456789012345678901234567890",
      `${"[".repeat(255)}${"]".repeat(255)}`,
      '"\\u2028\\u2029\\u202e\\ufeff"',
      `{"10":1,"9":2,"a":3,"-1":4}`,
    ];
    for (const payload of payloads) {
      const claimed = await claim();
      const body = `{"idempotencyKey":"k","payload":${payload}}`;
      const path = new URL(claimed.resultUrl).pathname;
      expect([payload, (await raw("PUT", path, claimed.token, body)).status]).toEqual([payload, 202]);
      expect((await raw("PUT", path, claimed.token, body)).status).toBe(202);
      await until("the end", async () => statusOf(claimed)?.state === "delivered");
    }
    expect(world.app.continuationHealth()?.storage.fault).toBeUndefined();
  });

  test("a number that JSON can write and no double can hold is null, in the hash as in the record", async () => {
    for (const [payload, meant] of [
      ["1e400", null],
      ['{"a":[-1e999]}', { a: [null] }],
    ] as const) {
      const claimed = await claim();
      const path = new URL(claimed.resultUrl).pathname;
      const hash = payloadHash(meant === null ? null : { a: [null] });
      const body = `{"idempotencyKey":"k","payloadHash":"${hash}","payload":${payload}}`;
      expect([payload, (await raw("PUT", path, claimed.token, body)).status]).toEqual([payload, 202]);
      const again = JSON.stringify({ idempotencyKey: "k", payload: meant });
      expect((await raw("PUT", path, claimed.token, again)).status).toBe(202);
    }
  });
});

test("fields with lone surrogates, NUL and separators keep records apart", async () => {
  const keys = ["\ud800", "\ud801", "\ufffd", "a\0b", "a", "a\0", "\0a", "a:b", "a/../b", "a\r\nb"];
  const ids = new Set<string>();
  for (const taskKey of keys) {
    // fetch would write a lone surrogate as U+FFFD; the escape arrives as it is.
    const body = JSON.stringify({ route: "quiet", taskKey, taskHash: "h", deadline: inAnHour() });
    const response = await fetch(
      `http://127.0.0.1:${world.ports.continuations}/v1/continuations/detached/claim`,
      {
        method: "POST",
        headers: { authorization: `Bearer ${SERVICE_TOKEN}`, "x-mono-agent-service-name": "ops" },
        body,
      },
    );
    expect([JSON.stringify(taskKey), response.status]).toEqual([JSON.stringify(taskKey), 200]);
    const claimed = (await response.json()) as ClaimAnswer;
    expect(claimed.replayed).toBeUndefined();
    ids.add(claimed.continuationId);
  }
  expect(ids.size).toBe(keys.length);
});

test("a body that trickles in never reaches the record half, and a whole one does", async () => {
  const claimed = await claim();
  const body = '{"idempotencyKey":"k","payload":{"text":"trickled"}}';
  const connection = rawConnection(world.ports.continuations);
  connection.write(
    head("PUT", new URL(claimed.resultUrl).pathname, [
      ["Host", `127.0.0.1:${world.ports.continuations}`],
      ["Authorization", `Bearer ${claimed.token}`],
      ["Content-Length", String(body.length)],
    ]),
  );
  for (const char of body) {
    expect(statusOf(claimed)?.state).toBe("claimed");
    connection.write(char);
    await new Promise((resolve) => setImmediate(resolve));
  }
  expect((await connection.answers(1))[0]?.status).toBe(202);
  connection.destroy();
});

test("no error message repeats what the body held, beyond the name of a field", async () => {
  const canary = "canary-body-8c1f";
  const messages: string[] = [];
  for (const place of await places()) {
    for (const body of [
      `{"taskKey":{"${canary}":1}}`,
      `"${canary}"`,
      `{"payload":"${canary}"`,
      JSON.stringify({
        taskKey: canary,
        taskHash: "h",
        deadline: canary,
        route: canary,
        kind: canary,
        text: canary,
      }),
    ]) {
      messages.push((await place(body)).message);
    }
  }
  expect(messages.join("\n")).not.toContain(canary);
  expect(world.logger.lines.join("\n")).not.toContain(canary);
});

test("two request ids are never one turn, and a repeated request is the same one, whatever its characters", async () => {
  const turn = async (requestId: string, text: string) => {
    const response = await fetch(
      `http://127.0.0.1:${world.ports.terminal}/v1/terminal/conversations/odd/turns`,
      {
        method: "POST",
        headers: { authorization: `Bearer ${world.terminal()}` },
        body: JSON.stringify({ requestId, text }),
      },
    );
    return {
      status: response.status,
      body: (await response.json()) as { turnId?: string; replayed?: boolean } & Partial<ErrorBody>,
    };
  };
  const seen = new Set<string>();
  for (const requestId of ["a\ufffd", "a\0b", "a\0c", "a", "A", "\u00e4", "a\u0308"]) {
    const { status, body } = await turn(requestId, "hello");
    expect([requestId, status, body.replayed]).toEqual([requestId, 202, false]);
    seen.add(body.turnId ?? "");
  }
  expect(seen.size).toBe(7);
  for (const requestId of ["a\ud800", "\udc00"]) {
    expect((await turn(requestId, "hello")).body.error?.code).toBe("invalid_requestId");
  }
  const text = "half of a character: \ud83d";
  const first = await turn("surrogate text", text);
  const second = await turn("surrogate text", text);
  expect([second.status, second.body]).toEqual([202, { turnId: first.body.turnId, replayed: true }]);
});
