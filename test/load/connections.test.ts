import { afterAll, beforeAll, expect, test } from "bun:test";
import { connect } from "node:net";
import type { ClaimAnswer, ContinuationHealth } from "../../src/core/wire.ts";
import { until } from "../support/binary.ts";
import { LOAD_SERVICE_TOKEN, type LoadHost, loadHost } from "../support/load-host.ts";
import { head, type RawConnection, rawConnection } from "../support/raw-http.ts";

/** One host process under many connections, floods and slow clients: nothing fails, leaks or grows. */

const CONNECTIONS = 1_000;
const MIB = 1024 * 1024;
/** How much the host's memory may grow in a flood that is larger than this by far; its heap breathes by itself. */
const GROWTH_MAX_MIB = 64;

let host: LoadHost;
/** Clients that never finish their headers, from the start on: how long each was endured, in milliseconds. */
let slow: Promise<number>[];
beforeAll(async () => {
  host = await loadHost({ maxActivePerOrigin: CONNECTIONS });
  slow = ["", "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "].map(async (bytes) => {
    const begun = performance.now();
    const connection = rawConnection(host.port);
    connection.write(bytes);
    await connection.closed;
    return performance.now() - begun;
  });
});
afterAll(() => host.folder.remove());

const hostHeader = () => ["Host", `127.0.0.1:${host.port}`] as const;
const bearer = (token: string) => ["Authorization", `Bearer ${token}`] as const;
const message = (
  method: string,
  path: string,
  token: string,
  body = "",
  more: (readonly [string, string])[] = [],
) =>
  head(method, path, [hostHeader(), bearer(token), ...more, ["Content-Length", String(body.length)]]) + body;
const health = async () =>
  (await (
    await fetch(`http://127.0.0.1:${host.port}/v1/operator/health`, {
      headers: { authorization: `Bearer ${host.operator}` },
    })
  ).json()) as ContinuationHealth;
const descriptorsBackTo = (before: number) =>
  until("the descriptors to be closed", async () => host.descriptors() <= before + 4);

test("1,000 connections at once claim, submit and ask, and every promise is kept", async () => {
  expect((await health()).status).toBe("healthy");
  const before = { descriptors: host.descriptors(), memory: host.memory() };
  const connections = Array.from({ length: CONNECTIONS }, () => rawConnection(host.port));
  await until("the connections", async () => host.descriptors() >= before.descriptors + CONNECTIONS);

  const lifecycle = async (connection: RawConnection, index: number) => {
    const claim = JSON.stringify({
      route: index % 2 === 0 ? "keep" : "quiet",
      taskKey: `task ${index}`,
      taskHash: "h",
      deadline: "2099-01-01T00:00:00Z",
    });
    const near = claim.replace("2099-01-01T00:00:00Z", new Date(Date.now() + 3_600_000).toISOString());
    connection.write(
      message("POST", "/v1/continuations/detached/claim", LOAD_SERVICE_TOKEN, near, [
        ["x-mono-agent-service-name", "load"],
      ]),
    );
    const [claimed] = await connection.answers(1);
    const answer = JSON.parse(claimed?.body ?? "{}") as ClaimAnswer;
    const result = new URL(answer.resultUrl).pathname;
    const body = JSON.stringify({ idempotencyKey: "k", payload: { summary: `result ${index}` } });
    connection.write(message("PUT", result, answer.token, body));
    await connection.answers(2);
    connection.write(message("GET", new URL(answer.statusUrl).pathname, answer.token));
    const answers = await connection.answers(3);
    const seen = JSON.parse(answers[2]?.body ?? "{}") as { continuationId?: string; taskKey?: string };
    expect([seen.continuationId, seen.taskKey]).toEqual([answer.continuationId, `task ${index}`]);
    return answers.map(({ status }) => status).join(" ");
  };
  const outcomes = await Promise.all(connections.map(lifecycle));
  expect(new Set(outcomes)).toEqual(new Set(["200 202 200"]));
  await until("the work to be done", async () => (await health()).pending === 0);
  expect((await health()).counts.delivered).toBe(CONNECTIONS);

  for (const connection of connections) connection.destroy();
  await descriptorsBackTo(before.descriptors);
  expect(host.memory() - before.memory).toBeLessThan(192);
}, 60_000);

test("a body without end costs no memory, whatever is wrong with the request and however it is sent", async () => {
  const claimed = (await (await host.claim("flooded", "quiet")).json()) as ClaimAnswer;
  const result = new URL(claimed.resultUrl).pathname;
  const requests = [
    ["PUT", result, "wrong"],
    ["PUT", result, claimed.token],
    ["GET", "/v1/operator/health", host.operator],
    ["GET", `/v1/operator/continuations/${claimed.continuationId}`, host.operator],
    ["GET", "/v1/operator/events", host.operator],
    ["POST", "/nowhere", "wrong"],
  ] as const;
  const before = { descriptors: host.descriptors(), memory: host.memory() };
  let most = before.memory;
  for (const [method, path, token] of requests) {
    for (const length of [
      ["Content-Length", String(1024 * MIB)],
      ["Transfer-Encoding", "chunked"],
    ] as const) {
      const bytes = head(method, path, [hostHeader(), bearer(token), length]);
      await flood(bytes, length[1] === "chunked", 64 * MIB, () => {
        most = Math.max(most, host.memory());
      });
    }
  }
  expect(most - before.memory).toBeLessThan(GROWTH_MAX_MIB);
  await descriptorsBackTo(before.descriptors);
  expect((await health()).counts.claimed).toBe(1);
}, 60_000);

/** Sends the head and then as much of a body, or until the host closes the connection. */
async function flood(bytes: string, chunked: boolean, total: number, watch: () => void): Promise<void> {
  const piece = Buffer.alloc(MIB / 4, " ");
  const frame = chunked
    ? Buffer.concat([Buffer.from(`${piece.length.toString(16)}\r\n`), piece, Buffer.from("\r\n")])
    : piece;
  const socket = connect(host.port, "127.0.0.1");
  let open = true;
  let wake = () => {};
  socket.on("error", () => {});
  socket.on("close", () => {
    open = false;
    wake();
  });
  socket.on("drain", () => wake());
  // The answer is read away, so that the host can go on.
  socket.resume();
  socket.write(bytes);
  for (let sent = 0; open && sent < total; sent += piece.length) {
    if (!socket.write(frame)) {
      await new Promise<void>((resolve) => {
        wake = resolve;
        if (!open) resolve();
      });
      watch();
    }
  }
  socket.destroy();
}

test("requests that break off in the middle leave nothing open and nothing in the log", async () => {
  const claimed = (await (await host.claim("broken off", "quiet")).json()) as ClaimAnswer;
  const before = host.descriptors();
  const whole = message(
    "PUT",
    new URL(claimed.resultUrl).pathname,
    claimed.token,
    JSON.stringify({ idempotencyKey: "k", payload: "x".repeat(1_000) }),
  );
  for (let round = 0; round < 4; round += 1) {
    const connections = Array.from({ length: 100 }, (_, index) => {
      const connection = rawConnection(host.port);
      connection.write(whole.slice(0, (whole.length * (index + 1)) / 101));
      return connection;
    });
    await until("the connections", async () => host.descriptors() >= before + 90);
    await health();
    for (const connection of connections) connection.destroy();
    await descriptorsBackTo(before);
  }
  const log = host.log();
  expect(log.split("\n").filter((line) => /\b(?:warn|error)\b/.test(line))).toEqual([]);
  expect((await health()).counts.claimed).toBe(2);
}, 60_000);

test("watchers are bounded, and one that leaves makes room", async () => {
  const before = host.descriptors();
  const watch = () => {
    const connection = rawConnection(host.port);
    connection.write(head("GET", "/v1/operator/events", [hostHeader(), bearer(host.operator)]));
    return connection;
  };
  const watchers = Array.from({ length: 16 }, watch);
  for (const watcher of watchers) expect((await watcher.answers(1))[0]?.status).toBe(200);
  const refused = watch();
  const [answer] = await refused.answers(1);
  expect([answer?.status, Number(answer?.headers["retry-after"]) > 0]).toEqual([429, true]);
  refused.destroy();
  for (const watcher of watchers) watcher.destroy();
  await descriptorsBackTo(before);
  await until("room for a watcher", async () => {
    const next = watch();
    const status = (await next.answers(1))[0]?.status;
    next.destroy();
    return status === 200;
  });
}, 60_000);

test("a client that never finishes its headers is cut off", async () => {
  for (const endured of await Promise.all(slow)) expect(endured).toBeLessThan(30_000);
}, 60_000);
