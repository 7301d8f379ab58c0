import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import type { ClaimAnswer, ErrorBody } from "../../src/core/wire.ts";
import { head, rawConnection, rawExchange } from "../support/raw-http.ts";
import { capabilityOf, type SecurityWorld, securityWorld } from "../support/security-world.ts";

/** Rules that hold on every route of both ports of a running host, over raw sockets and with real tokens. */

// Real processes start here, on machines that may be busy.
setDefaultTimeout(60_000);

interface Door {
  readonly port: number;
  readonly method: "GET" | "POST" | "PUT";
  readonly path: string;
  readonly token: string;
  readonly headers: readonly (readonly [string, string])[];
  /** As the source registers it. */
  readonly pattern: string;
}

let world: SecurityWorld;
let doors: Door[] = [];
let endRun = () => {};

beforeAll(async () => {
  world = await securityWorld();
  const held = Promise.withResolvers<string>();
  const reported = Promise.withResolvers<string>();
  endRun = () => held.resolve("done");
  world.onReport = (report) => {
    reported.resolve(capabilityOf(report)?.token ?? "");
    return held.promise;
  };
  // The turn stays open, so that its claim token is a valid one in every test.
  void world.ask("use alpha").catch(() => {});
  const claim = await reported.promise;
  const claimed = (await (
    await world.detached("canary-detached-5f0c2d7e9b1a", "door")
  ).json()) as ClaimAnswer;
  doors = everyDoor(claim, claimed);
});
afterAll(async () => {
  endRun();
  await world.remove();
});

function everyDoor(claim: string, { continuationId, token }: ClaimAnswer): Door[] {
  const operator = world.operator();
  const terminal = world.terminal();
  const { ports } = world;
  const door =
    (port: number, bearer: string, headers: Door["headers"] = []) =>
    (method: Door["method"], pattern: string): Door => ({
      port,
      method,
      path: pattern.replace(":id", continuationId).replace(":name", "main").replace(":turnId", "t"),
      token: bearer,
      headers,
      pattern,
    });
  const result = door(ports.continuations, token);
  const operators = door(ports.continuations, operator);
  const terminals = door(ports.terminal, terminal);
  const detached = door(ports.continuations, "canary-detached-5f0c2d7e9b1a", [
    ["x-mono-agent-service-name", "ops"],
  ]);
  return [
    door(ports.continuations, claim)("POST", "/v1/continuations/claim"),
    detached("POST", "/v1/continuations/detached/claim"),
    result("PUT", "/v1/continuations/:id/result"),
    result("POST", "/v1/continuations/:id/result"),
    result("GET", "/v1/continuations/:id/status"),
    operators("GET", "/v1/operator/health"),
    operators("GET", "/v1/operator/continuations"),
    operators("GET", "/v1/operator/owed"),
    operators("GET", "/v1/operator/events"),
    operators("GET", "/v1/operator/continuations/:id"),
    operators("POST", "/v1/operator/continuations/:id/retry"),
    operators("POST", "/v1/operator/continuations/:id/prove"),
    operators("POST", "/v1/operator/continuations/:id/release"),
    operators("POST", "/v1/operator/release"),
    operators("POST", "/v1/operator/backup"),
    operators("POST", "/v1/operator/continuations/:id/resolve"),
    operators("POST", "/v1/operator/continuations/:id/cancel"),
    terminals("GET", "/v1/terminal/health"),
    terminals("POST", "/v1/terminal/conversations/:name/turns"),
    terminals("POST", "/v1/terminal/conversations/:name/turns/:turnId/cancel"),
    terminals("GET", "/v1/terminal/conversations/:name/messages"),
    terminals("GET", "/v1/terminal/conversations/:name/events"),
  ];
}

interface Knock {
  readonly host?: string;
  readonly token?: string;
  readonly more?: Door["headers"];
}

const bytesOf = (door: Door, { host, token, more = [] }: Knock = {}) =>
  head(door.method, door.path, [
    ["Host", host ?? `127.0.0.1:${door.port}`],
    ["Authorization", `Bearer ${token ?? door.token}`],
    ...door.headers,
    ...more,
  ]);

async function knock(door: Door, how: Knock = {}) {
  const more = [...(how.more ?? []), ...(door.method === "GET" ? [] : [["Content-Length", "0"] as const])];
  const answer = await rawExchange(door.port, bytesOf(door, { ...how, more }));
  if (answer === undefined) throw new Error(`${door.method} ${door.path}: no answer`);
  const stream = answer.headers["content-type"]?.startsWith("text/event-stream");
  const body = stream || answer.body === "" ? undefined : (JSON.parse(answer.body) as ErrorBody);
  return { ...answer, code: body?.error?.code };
}

test("the table of this test has every route that the sources register", async () => {
  const registered = new Set<string>();
  for (const path of ["src/http/continuation-app.ts", "src/channels/terminal/app.ts"]) {
    const source = await Bun.file(join(import.meta.dir, "../..", path)).text();
    for (const [, pattern = ""] of source.matchAll(/addRoute\(app, "([^"]+)"/g)) registered.add(pattern);
  }
  expect([...new Set(doors.map(({ pattern }) => pattern))].sort()).toEqual([...registered].sort());
});

describe("every route", () => {
  test("opens for its token and says no-store and nosniff in every answer", async () => {
    // Not the last ones: an empty cancel would end the record that the other doors need.
    for (const door of doors.filter(({ path }) => !path.endsWith("/cancel"))) {
      const answer = await knock(door);
      expect([door.path, answer.status === 401 || answer.status === 403]).toEqual([door.path, false]);
      expect(answer.status).toBeLessThan(500);
      for (const seen of [answer, await knock(door, { token: "wrong" })]) {
        expect(seen.headers["cache-control"]).toBe("no-store");
        expect(seen.headers["x-content-type-options"]).toBe("nosniff");
      }
    }
  });

  test("refuses a web page's request although its token is valid", async () => {
    for (const door of doors) {
      for (const origin of ["https://evil.example", "null", "", `http://127.0.0.1:${door.port}`]) {
        const answer = await knock(door, { more: [["Origin", origin]] });
        expect([door.path, origin, answer.status, answer.code]).toEqual([
          door.path,
          origin,
          403,
          "forbidden_origin",
        ]);
      }
    }
  });

  test("refuses a Host that is not the bound loopback address although the token is valid", async () => {
    for (const door of doors) {
      const other = door.port === world.ports.terminal ? world.ports.continuations : world.ports.terminal;
      const hosts = [
        "evil.example",
        `evil.example:${door.port}`,
        `127.0.0.1:${other}`,
        `127.0.0.1.evil.example:${door.port}`,
        `127.0.0.2:${door.port}`,
        `0.0.0.0:${door.port}`,
        `2130706433:${door.port}`,
        `x@127.0.0.1:${door.port}`,
        `127.0.0.1:${door.port}, evil.example`,
        `127.0.0.1:0${door.port}`,
      ];
      for (const host of hosts) {
        const answer = await knock(door, { host });
        expect([door.path, host, answer.status, answer.code]).toEqual([
          door.path,
          host,
          403,
          "forbidden_origin",
        ]);
      }
    }
    expect(world.app.listContinuations().map(({ state }) => state)).toEqual(["claimed"]);
  });

  test("answers a wrong or missing token before a byte of the body has arrived", async () => {
    for (const door of doors) {
      for (const length of [
        ["Content-Length", String(10 * 1024 * 1024)],
        ["Transfer-Encoding", "chunked"],
      ] as const) {
        const connection = rawConnection(door.port);
        connection.write(bytesOf(door, { token: "wrong", more: [length] }));
        const [answer] = await connection.answers(1);
        expect([door.path, answer?.status]).toEqual([door.path, 401]);
        connection.destroy();
      }
      const none = await rawExchange(
        door.port,
        head(door.method, door.path, [
          ["Host", `127.0.0.1:${door.port}`],
          ["Content-Length", "1000000"],
        ]),
      );
      expect([none?.status, none?.headers["www-authenticate"]]).toEqual([401, "Bearer"]);
      expect(none?.body).toContain("missing_capability");
    }
  });

  test("refuses two credentials in one request, whichever comes first", async () => {
    for (const door of doors) {
      for (const tokens of [
        [door.token, "wrong"],
        ["wrong", door.token],
        [door.token, door.token],
      ]) {
        const answer = await rawExchange(
          door.port,
          head(door.method, door.path, [
            ["Host", `127.0.0.1:${door.port}`],
            ...tokens.map((token) => ["Authorization", `Bearer ${token}`] as const),
            ...door.headers,
            ["Content-Length", "0"],
          ]),
        );
        expect([door.path, answer?.status]).toEqual([door.path, 401]);
      }
    }
  });

  test("answers 405 with what it allows to any other method, and 404 beside it, without looking at the token", async () => {
    for (const { port, path } of doors) {
      const host = ["Host", `127.0.0.1:${port}`] as const;
      const answer = await rawExchange(port, head("PATCH", path, [host]));
      expect([path, answer?.status, answer?.headers.allow === undefined]).toEqual([path, 405, false]);
      for (const beside of [`${path}/`, `/${path}`, path.replace("/v1", "/V1")]) {
        const missed = await rawExchange(port, head("GET", beside, [host]));
        expect([beside, missed?.status]).toEqual([beside, 404]);
      }
    }
  });
});
