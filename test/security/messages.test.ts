import { afterAll, beforeAll, beforeEach, expect, setDefaultTimeout, test } from "bun:test";
import type { ClaimAnswer, ErrorBody } from "../../src/core/wire.ts";
import { until } from "../support/binary.ts";
import { head, type RawAnswer, rawConnection, rawExchange } from "../support/raw-http.ts";
import { SERVICE_TOKEN, type SecurityWorld, securityWorld } from "../support/security-world.ts";

/**
 * Odd and hostile HTTP messages against a running host, byte by byte. Where Bun answers by itself, before our code
 * sees a request, the answer has no body and `connection: close`; those cases say `bun`.
 */

// Real processes start here, on machines that may be busy.
setDefaultTimeout(60_000);

let world: SecurityWorld;
let claimed: ClaimAnswer;
let port: number;
beforeAll(async () => {
  world = await securityWorld({ withTools: false });
  port = world.ports.continuations;
});
afterAll(() => world.remove());
let count = 0;
beforeEach(async () => {
  count += 1;
  claimed = (await (await world.detached(SERVICE_TOKEN, `odd ${count}`, "quiet")).json()) as ClaimAnswer;
});

type Header = readonly [string, string];
const host = (): Header => ["Host", `127.0.0.1:${port}`];
const operator = (): Header => ["Authorization", `Bearer ${world.operator()}`];
const HEALTH = "/v1/operator/health";
const BODY = '{"idempotencyKey":"k","payload":1}';
const CHUNKED = `${BODY.length.toString(16)}\r\n${BODY}\r\n0\r\n\r\n`;

const get = (target: string, more: readonly Header[] = [], version?: string, method = "GET") =>
  rawExchange(port, head(method, target, [host(), operator(), ...more], version));
const put = (headers: readonly Header[], body: string, version?: string) =>
  rawExchange(
    port,
    head(
      "PUT",
      new URL(claimed.resultUrl).pathname,
      [host(), ["Authorization", `Bearer ${claimed.token}`], ...headers],
      version,
    ) + body,
  );
const state = () =>
  world.app.listContinuations().find(({ continuationId }) => continuationId === claimed.continuationId)
    ?.state;

type Expected = number | "closed" | { readonly bun: number };
function check(name: string, answer: RawAnswer | undefined, expected: Expected) {
  if (expected === "closed") return expect([name, answer]).toEqual([name, undefined]);
  if (typeof expected === "object") {
    expect([name, answer?.status, answer?.body]).toEqual([name, expected.bun, ""]);
    expect([name, answer?.headers.connection?.toLowerCase()]).toEqual([name, "close"]);
    return;
  }
  expect([name, answer?.status]).toEqual([name, expected]);
  expect(answer?.headers["cache-control"]).toBe("no-store");
  const body = JSON.parse(answer?.body ?? "") as Partial<ErrorBody>;
  expect([name, body.error === undefined]).toEqual([name, expected < 400]);
}

test("odd targets are normalised as URLs are, and then are this path or none", async () => {
  const id = claimed.continuationId;
  const targets: [string, Expected][] = [
    [`http://127.0.0.1:${port}${HEALTH}`, 200],
    [`HTTP://127.0.0.1:${port}${HEALTH}`, 200],
    [`${HEALTH}#fragment`, 200],
    [`${HEALTH}?unknown=1&unknown=2`, 200],
    [`/v1/continuations/../operator/health`, 200],
    [`/v1/continuations/%2e%2E/operator/./health`, 200],
    [`/../../..${HEALTH}`, 200],
    ["/v1%2Foperator%2Fhealth", 404],
    ["/v1/operator%2fhealth", 404],
    [`/${HEALTH}`, 404],
    [`//evil.example${HEALTH}`, 404],
    [`${HEALTH}/`, 404],
    [`${HEALTH}%00`, 404],
    [`/v1/operator/continuations/${id}%2fcancel`, 404],
    [`/v1/operator/continuations/${id}%00`, 404],
    [`/v1/operator/continuations/${id}%0d%0aX:%20y`, 404],
    [`/v1/operator/continuations/%ff`, 404],
    [`/v1/operator/continuations/%zz`, 404],
    [`/v1/operator/continuations/%252e%252e`, 404],
    [`/v1/operator/continuations/${id.toUpperCase()}`, 404],
    [`/v1/operator/continuations/__proto__`, 404],
    [`/v1/operator/continuations/constructor`, 404],
    [`/v1/operator/continuations/${"a".repeat(12_000)}`, 404],
    [`/v1/operator/continuations?limit=1&limit=99999`, 200],
    [`/v1/operator/continuations?limit=-1`, 400],
    [`/v1/operator/continuations?limit=1e2`, 400],
    [`/v1/operator/continuations?limit=%00`, 400],
    [`/v1/operator/continuations?cursor=${"x".repeat(513)}`, 400],
    [`/v1/operator/continuations?cursor=%ff%fe`, 400],
    [`/v1/operator/continuations?state=__proto__`, 400],
    ["h\xe9alth", { bun: 400 }],
    ["evil.example:80", { bun: 400 }],
    ["\\v1\\operator\\health", { bun: 400 }],
    [`/v1/operator/h\0ealth`, { bun: 505 }],
    [`/v1/operator/\x01health`, { bun: 505 }],
    [`${HEALTH} x`, { bun: 505 }],
    [`/${"a".repeat(1_000_000)}`, { bun: 431 }],
  ];
  for (const [target, expected] of targets) check(target.slice(0, 80), await get(target), expected);
});

test("a target in absolute form does not get around the check of the Host header", async () => {
  const evil = ["Host", "evil.example"] as const;
  for (const target of [`http://127.0.0.1:${port}${HEALTH}`, `http://evil.example${HEALTH}`]) {
    check(target, await rawExchange(port, head("GET", target, [evil, operator()])), 403);
  }
});

test("methods and versions that HTTP/1.1 does not know are refused", async () => {
  check("1.0", await get(HEALTH, [], "HTTP/1.0"), 200);
  const bare = (bytes: string) => rawExchange(port, bytes);
  check("1.0 without Host", await bare(head("GET", HEALTH, [operator()], "HTTP/1.0")), 403);
  check("1.1 without Host", await bare(head("GET", HEALTH, [operator()])), { bun: 400 });
  for (const version of ["HTTP/2.0", "HTTP/1.2", "http/1.1", "HTTP/11"]) {
    check(version, await get(HEALTH, [], version), { bun: 505 });
  }
  check("0.9", await bare(`GET ${HEALTH}\r\n\r\n`), { bun: 505 });
  for (const method of ["TRACE", "OPTIONS", "DELETE", "PROPFIND", "CONNECT"]) {
    check(method, await get(HEALTH, [], undefined, method), 405);
  }
  check("CONNECT to an authority", await get(`127.0.0.1:${port}`, [], undefined, "CONNECT"), 404);
  check("OPTIONS *", await get("*", [], undefined, "OPTIONS"), { bun: 400 });
  check("lower case", await get(HEALTH, [], undefined, "get"), "closed");
  check("unknown", await get(HEALTH, [], undefined, "BREW"), "closed");
  check("h2", await bare("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), { bun: 400 });
  check("TLS", await rawExchange(port, Buffer.from("16030100a5010000a10303", "hex")), { bun: 400 });
  check(
    "upgrade",
    await get(HEALTH, [
      ["Connection", "Upgrade"],
      ["Upgrade", "websocket"],
    ]),
    200,
  );
});

test("odd headers are refused, and never hide or forge another", async () => {
  const cases: [string, readonly Header[], Expected][] = [
    ["two Hosts", [["Host", "evil.example"]], 403],
    ["the same Host twice", [host()], 403],
    ["a name with a space", [["Origin ", "https://evil.example"]], { bun: 400 }],
    ["a folded line", [["X-A", "b\r\n Origin: https://evil.example"]], { bun: 400 }],
    ["NUL", [["X-A", "a\0b"]], { bun: 400 }],
    ["control characters", [["X-A", "a\x01\x7fb"]], { bun: 400 }],
    ["an empty name", [["", "x"]], { bun: 400 }],
    ["a long value", [["X-A", "a".repeat(20_000)]], { bun: 431 }],
    ["199 headers", Array.from({ length: 197 }, (_, index) => [`X-${index}`, "a"] as const), { bun: 431 }],
    ["198 headers", Array.from({ length: 196 }, (_, index) => [`X-${index}`, "a"] as const), 200],
    ["__proto__ as a name", [["__proto__", "x"]], 200],
    ["a forwarded host", [["X-Forwarded-Host", "evil.example"]], 200],
  ];
  for (const [name, headers, expected] of cases) check(name, await get(HEALTH, headers), expected);
  check(
    "bare line feeds",
    await rawExchange(port, head("GET", HEALTH, [host(), operator()]).replaceAll("\r", "")),
    {
      bun: 505,
    },
  );
  const token = world.operator();
  const credentials: [string, Expected][] = [
    [`bEaReR   ${token}  `, 200],
    [`Bearer\t${token}`, 401],
    [`Bearer ${token},${token}`, 401],
    [`Bearer ${token} x`, 401],
    [`Bearer "${token}"`, 401],
    [token, 401],
    ["Bearer", 401],
    [`Basic ${btoa(`x:${token}`)}`, 401],
    [`Bearer ${"a".repeat(513)}`, 401],
    [`Bearer ${token.slice(0, -1)}`, 401],
    [`Bearer ${token}a`, 401],
    [`Bearer ${token.toLowerCase()}`, 401],
    [`Bearer ${token}\xe9`, 401],
    // A second header of the name, also one that is right.
    [`Bearer ${token}\r\nAuthorization: Bearer ${token}`, 401],
    [`Bearer ${token}\r\nAuthorization: Bearer x`, 401],
    [`Bearer x\r\nAuthorization: Bearer ${token}`, 401],
    [`\r\nAuthorization: Bearer ${token}`, 401],
  ];
  for (const [value, expected] of credentials) {
    check(
      value.slice(0, 12),
      await rawExchange(port, head("GET", HEALTH, [host(), ["Authorization", value]])),
      expected,
    );
  }
});

test("a body whose length is in doubt is refused and changes nothing", async () => {
  const length = String(BODY.length);
  const cases: [string, readonly Header[], string, Expected][] = [
    [
      "two lengths",
      [
        ["Content-Length", length],
        ["Content-Length", "5"],
      ],
      BODY,
      { bun: 400 },
    ],
    [
      "two lengths, short one first",
      [
        ["Content-Length", "5"],
        ["Content-Length", length],
      ],
      BODY,
      { bun: 400 },
    ],
    ["a list", [["Content-Length", `${length}, ${length}`]], BODY, { bun: 400 }],
    ["a sign", [["Content-Length", `+${length}`]], BODY, { bun: 400 }],
    ["negative", [["Content-Length", "-1"]], BODY, { bun: 400 }],
    ["hex", [["Content-Length", "0x22"]], BODY, { bun: 400 }],
    ["huge", [["Content-Length", "9".repeat(40)]], BODY, { bun: 400 }],
    ["over the limit", [["Content-Length", String(2 ** 40)]], "", 413],
    [
      "length and chunked",
      [
        ["Content-Length", "5"],
        ["Transfer-Encoding", "chunked"],
      ],
      CHUNKED,
      { bun: 400 },
    ],
    [
      "chunked and length",
      [
        ["Transfer-Encoding", "chunked"],
        ["Content-Length", "5"],
      ],
      CHUNKED,
      { bun: 400 },
    ],
    ["gzip, chunked", [["Transfer-Encoding", "gzip, chunked"]], CHUNKED, { bun: 400 }],
    ["an unknown coding", [["Transfer-Encoding", "xchunked"]], CHUNKED, { bun: 400 }],
    [
      "two codings",
      [
        ["Transfer-Encoding", "chunked"],
        ["Transfer-Encoding", "identity"],
      ],
      CHUNKED,
      { bun: 400 },
    ],
    ["a chunk without a size", [["Transfer-Encoding", "chunked"]], `zz\r\n${BODY}`, { bun: 400 }],
    [
      "a chunk beyond 64 bits",
      [["Transfer-Encoding", "chunked"]],
      `${"f".repeat(20)}\r\n${BODY}`,
      { bun: 400 },
    ],
    ["neither", [], "", 400],
  ];
  for (const [name, headers, body, expected] of cases) check(name, await put(headers, body), expected);
  check("chunked in 1.0", await put([["Transfer-Encoding", "chunked"]], CHUNKED, "HTTP/1.0"), { bun: 400 });
  expect(state()).toBe("claimed");
});

test("a plain and a chunked body are read, whatever the chunks", async () => {
  const single = [...BODY].map((char) => `1;ext="a\\"b"\r\n${char}\r\n`).join("");
  check("byte by byte", await put([["transfer-encoding", "ChunkED"]], `${single}0\r\n\r\n`), 202);
  check(
    "plain, with what HTTP lets a client ask",
    await put(
      [
        ["Content-Length", String(BODY.length)],
        ["Expect", "100-continue"],
      ],
      BODY,
    ),
    202,
  );
  check(
    "the same length twice",
    await put(
      [
        ["Content-Length", String(BODY.length)],
        ["Content-Length", String(BODY.length)],
      ],
      BODY,
    ),
    202,
  );
});

test("pipelined requests are answered in order, and the rest of a refused body is never taken for a request", async () => {
  const hidden = head("GET", HEALTH, [host(), operator()]);
  const connection = rawConnection(port);
  const refused = head("PUT", new URL(claimed.resultUrl).pathname, [
    host(),
    ["Authorization", "Bearer wrong"],
    ["Content-Length", String(hidden.length)],
  ]);
  connection.write(
    refused +
      hidden +
      head("GET", "/nothing", [host()]) +
      hidden +
      head("GET", "/v1/operator/owed", [host()]),
  );
  const answers = await connection.answers(4);
  connection.destroy();
  expect(answers.map(({ status }) => status)).toEqual([401, 404, 200, 401]);
});

test("a request behind one whose answer waits for the disk ends the connection; the first is done, and its repeat answered", async () => {
  const path = new URL(claimed.resultUrl).pathname;
  const submit =
    head("PUT", path, [
      host(),
      ["Authorization", `Bearer ${claimed.token}`],
      ["Content-Length", String(BODY.length)],
    ]) + BODY;
  const connection = rawConnection(port);
  connection.write(submit + head("GET", HEALTH, [host(), operator()]));
  expect(await connection.answers(2)).toEqual([]);
  await until("the first to be done", async () => state() !== "claimed");
  check("its repeat", await rawExchange(port, submit), 202);
});

test("many pipelined requests for different records are answered in order, none with another's data", async () => {
  const tokens: ClaimAnswer[] = [claimed];
  for (const key of ["b", "c", "d"]) {
    const response = await world.detached(SERVICE_TOKEN, `pipelined ${key}`, "quiet");
    tokens.push((await response.json()) as ClaimAnswer);
  }
  const asked = Array.from({ length: 40 }, (_, index) => tokens[(index * 7) % tokens.length] ?? claimed);
  const connection = rawConnection(port);
  connection.write(
    asked
      .map(({ statusUrl, token }) =>
        head("GET", new URL(statusUrl).pathname, [host(), ["Authorization", `Bearer ${token}`]]),
      )
      .join(""),
  );
  const answers = await connection.answers(asked.length);
  connection.destroy();
  const ids = answers.map(({ body }) => (JSON.parse(body) as { continuationId: string }).continuationId);
  expect(ids).toEqual(asked.map(({ continuationId }) => continuationId));
});

test("a body that ends early changes nothing", async () => {
  for (const length of [
    ["Content-Length", "1000"],
    ["Transfer-Encoding", "chunked"],
  ] as const) {
    const connection = rawConnection(port);
    connection.write(
      head("PUT", new URL(claimed.resultUrl).pathname, [
        host(),
        ["Authorization", `Bearer ${claimed.token}`],
        length,
      ]) + (length[0] === "Content-Length" ? BODY : CHUNKED.slice(0, -5)),
    );
    await get(HEALTH);
    connection.destroy();
  }
  await get(HEALTH);
  expect(state()).toBe("claimed");
  expect(world.logger.lines.filter((line) => line.startsWith("error"))).toEqual([]);
});
