import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { McpError } from "../../src/core/errors.ts";
import type { McpServerSpec } from "../../src/core/mcp-servers.ts";
import { loginLock } from "../../src/host/mcp-tools.ts";
import { REFRESH_TIMEOUT_MS } from "../../src/mcp/oauth-client.ts";
import { authorizedFetch } from "../../src/mcp/oauth-fetch.ts";
import { logIn } from "../../src/mcp/oauth-login.ts";
import {
  createOAuthStore,
  LOCK_RETRY_MS,
  LOCK_WAIT_MS,
  LOGIN_FOLDER,
  type Login,
  type OAuthStore,
} from "../../src/mcp/oauth-store.ts";
import { createClock } from "../../src/platform/clock.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { createIds } from "../../src/platform/ids.ts";
import { until } from "../support/binary.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { never, sessionRequest, toolHost } from "../support/mcp-host.ts";
import { type OAuthServer, startOAuthServer } from "../support/mcp-oauth-server.ts";
import { createRecordingLogger } from "../support/silent-logger.ts";

let stateDir: string;
let remote: OAuthServer;
const cleanups: (() => unknown)[] = [];
beforeEach(() => {
  stateDir = mkdtempSync(join(tmpdir(), "mono-agent-oauth-"));
  remote = startOAuthServer();
  lockRefusals = 0;
});
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
  await remote.stop();
  rmSync(stateDir, { recursive: true, force: true });
});

const lock = loginLock(createFileSystem(), createClock());
/** How often somebody found the lock taken. */
let lockRefusals = 0;
const countingLock = (path: string) => {
  const held = lock(path);
  if (held === undefined) lockRefusals += 1;
  return held;
};
const storeFor = (server: string, serverUrl: string, clock = createClock()): OAuthStore =>
  createOAuthStore({ fs: createFileSystem(), stateDir, server, serverUrl, lock: countingLock, clock });

type Browser = (page: string) => unknown;
const consenting: Browser = (page) => fetch(remote.consent(page));

function login(browser: Browser = consenting, spec: McpServerSpec = { url: remote.url }, over = {}) {
  return logIn({
    spec,
    store: storeFor("remote", remote.url),
    ids: createIds(),
    clock: createClock(),
    signal: never,
    show: (page) => void browser(page),
    ...over,
  });
}

async function open(logger = createRecordingLogger(), spec: McpServerSpec = {}) {
  const host = toolHost({ remote: { url: remote.url, ...spec } }, { oauthStore: storeFor, logger });
  cleanups.push(() => host.close());
  return host.open(sessionRequest());
}

async function refusal(work: Promise<unknown>): Promise<string> {
  const error = await work.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  if (!(error instanceof McpError)) throw new Error(`expected an McpError, got ${String(error)}`);
  return error.message;
}

describe("a login", () => {
  test("registers a public client, proves itself by PKCE and keeps the tokens in an owner-only file", async () => {
    await login();
    expect(remote.grants).toEqual(["authorization_code"]);
    expect(remote.registrations[0]).toMatchObject({
      client_name: "mono-agent",
      token_endpoint_auth_method: "none",
    });
    const folder = join(stateDir, LOGIN_FOLDER);
    expect(readdirSync(folder)).toEqual(["remote.json"]);
    expect(statSync(join(folder, "remote.json")).mode & 0o777).toBe(0o600);
    expect(statSync(folder).mode & 0o777).toBe(0o700);
    const session = await open();
    expect(session.warnings).toEqual([]);
    expect(await session.call("hello", {}, never)).toEqual({ isError: false, text: "hello, person" });
  });

  test("uses the client that mcp.json names instead of registering one", async () => {
    await login(consenting, { url: remote.url, oauth: { clientId: "static-client", scope: "tools" } });
    expect(remote.registrations).toEqual([]);
    expect((await (await open()).call("hello", {}, never)).isError).toBe(false);
  });

  test("takes no answer but that of its own page", async () => {
    await login(async (page) => {
      const back = new URL(remote.consent(page));
      const forged = new URL(back);
      forged.searchParams.set("state", "x".repeat(43));
      forged.searchParams.set("code", "forged");
      expect((await fetch(forged)).status).toBe(400);
      expect((await fetch(new URL("/other", back))).status).toBe(404);
      expect((await fetch(back)).status).toBe(200);
    });
    expect(remote.grants).toEqual(["authorization_code"]);
  });

  test("that is refused, given up or never finished says so, and leaves the earlier one as it was", async () => {
    await login();
    const path = join(stateDir, LOGIN_FOLDER, "remote.json");
    const before = readFileSync(path, "utf8");
    expect(await refusal(login((page) => fetch(remote.consent(page, "deny"))))).toBe(
      "remote: the authorization server refused (access_denied)",
    );
    const stop = new AbortController();
    const givenUp = login(() => stop.abort(), undefined, { signal: stop.signal });
    expect(await refusal(givenUp)).toBe("remote: the login was given up");
    const clock = createFakeClock();
    const slow = login(() => clock.advance(5 * 60_000), undefined, { clock });
    expect(await refusal(slow)).toBe("remote: nobody logged in within five minutes");
    expect(readFileSync(path, "utf8")).toBe(before);
  });

  test("is not offered where none is asked for, or where a token would travel in the open", async () => {
    const open = Bun.serve({ port: 0, hostname: "127.0.0.1", fetch: () => new Response("{}") });
    cleanups.push(() => open.stop(true));
    const url = `http://127.0.0.1:${open.port}/mcp`;
    const asked = login(consenting, { url }, { store: storeFor("remote", url) });
    expect(await refusal(asked)).toContain("it does not ask for a login (it answers with HTTP 200)");
    const plain = "http://example.com/mcp";
    const refused = login(consenting, { url: plain }, { store: storeFor("remote", plain) });
    expect(await refusal(refused)).toContain("its URL is not https");
    expect(await refusal(login(consenting, { command: "x" }))).toContain("only a remote server has a login");
  });
});

describe("a server that wants a login", () => {
  test("is a warning that says what to do when nobody logged in, and nothing is registered", async () => {
    const session = await open();
    expect(session.warnings.map(({ code }) => code)).toEqual(["mcp_init_failed"]);
    expect(session.warnings[0]?.message).toContain("mono-agent mcp login");
    expect(remote.registrations).toEqual([]);
  });

  test("gets a refreshed token, once for all calls that wait, and the login keeps it", async () => {
    await login();
    const session = await open();
    remote.expireAccess();
    const outcomes = await Promise.all([1, 2, 3, 4].map(() => session.call("hello", {}, never)));
    expect(outcomes.map(({ text }) => text)).toEqual(Array(4).fill("hello, person"));
    expect(remote.grants).toEqual(["authorization_code", "refresh_token"]);
    const text = readFileSync(join(stateDir, LOGIN_FOLDER, "remote.json"), "utf8");
    expect(text).toContain(remote.issued.at(-1) ?? "?");
    expect((await (await open()).call("hello", {}, never)).isError).toBe(false);
    expect(remote.grants.length).toBe(2);
  });

  test("is asked for new tokens once also when its clients are replaced meanwhile", async () => {
    await login();
    const host = toolHost({ remote: { url: remote.url } }, { oauthStore: storeFor });
    cleanups.push(() => host.close());
    const before = await host.open(sessionRequest());
    remote.expireAccess();
    const release = remote.holdTokens();
    const call = before.call("hello", {}, never);
    await until("the refresh", async () => remote.grants.includes("refresh_token"));
    const refused = remote.unauthorized();
    host.rotate({ remote: { url: remote.url } });
    const after = host.open(sessionRequest());
    await until("the new client", async () => remote.unauthorized() > refused);
    release();
    expect((await call).text).toBe("hello, person");
    expect((await (await after).call("hello", {}, never)).text).toBe("hello, person");
    expect(remote.grants).toEqual(["authorization_code", "refresh_token"]);
  });

  test("is asked for new tokens once also when two processes want them at once", async () => {
    await login();
    const others = await Promise.all([open(), open()]);
    remote.expireAccess();
    const release = remote.holdTokens();
    const before = remote.unauthorized();
    const calls = others.map((session) => session.call("hello", {}, never));
    await until("a refresh, and one that waits for it", async () => {
      return remote.unauthorized() === before + 2 && remote.grants.length === 2 && lockRefusals > 0;
    });
    release();
    expect((await Promise.all(calls)).map(({ text }) => text)).toEqual(Array(2).fill("hello, person"));
    expect(remote.grants).toEqual(["authorization_code", "refresh_token"]);
  });

  test("is not asked while another process holds the lock for too long", async () => {
    await login();
    const clock = createFakeClock();
    const held = lock(join(stateDir, LOGIN_FOLDER, "remote.lock"));
    const sent: string[] = [];
    const send = authorizedFetch(
      async (url) => {
        sent.push(String(url));
        return new Response("no", { status: 401 });
      },
      remote.url,
      storeFor("remote", remote.url, clock),
      clock,
    );
    const answer = refusal(send(remote.url));
    await until("the wait for the lock", async () => clock.pending() > 0);
    for (let passed = 0; passed <= LOCK_WAIT_MS && clock.pending() > 0; passed += LOCK_RETRY_MS) {
      clock.advance(LOCK_RETRY_MS);
      for (let turn = 0; turn < 10; turn += 1) await Promise.resolve();
    }
    expect(await answer).toBe("its login is being refreshed by another process without an end");
    expect(sent).toEqual([remote.url]);
    held?.release();
  });

  test.each([
    ["a new login", (store: OAuthStore, kept: Login) => store.write(kept), true],
    ["a logout", (store: OAuthStore) => rmSync(store.path), false],
  ])("does not undo %s by another process with what its refresh gave", async (_what, change, isLoggedIn) => {
    await login();
    const store = storeFor("remote", remote.url);
    const session = await open();
    remote.expireAccess();
    const release = remote.holdTokens();
    const call = session.call("hello", {}, never);
    await until("the refresh", async () => remote.grants.includes("refresh_token"));
    const kept = store.read();
    if (kept === undefined) throw new Error("there is no login");
    const tokens = { access_token: "access-of-the-new-login", token_type: "Bearer", refresh_token: "newer" };
    change(store, { ...kept, tokens });
    release();
    await call;
    expect(store.read()?.tokens).toEqual(isLoggedIn ? tokens : undefined);
  });

  test("whose authorization server is silent is refused after 30 seconds, and asked again the next time", async () => {
    await login();
    const clock = createFakeClock();
    let asked = Promise.withResolvers<void>();
    const send = authorizedFetch(
      (url) => {
        if (String(url) === remote.url) return Promise.resolve(new Response("no", { status: 401 }));
        asked.resolve();
        return new Promise(() => {});
      },
      remote.url,
      storeFor("remote", remote.url),
      clock,
    );
    for (let round = 0; round < 2; round += 1) {
      const answer = refusal(send(remote.url));
      await asked.promise;
      asked = Promise.withResolvers();
      clock.advance(REFRESH_TIMEOUT_MS);
      expect(await answer).toContain("the authorization server did not answer in 30 seconds");
      expect(clock.pending()).toBe(0);
    }
  });

  test("uses at once the tokens of a login by another process", async () => {
    const session = await open();
    expect(session.warnings.length).toBe(1);
    await login();
    const late = await open();
    remote.expireAccess();
    remote.revokeRefresh();
    await login();
    expect((await late.call("hello", {}, never)).text).toBe("hello, person");
    expect(remote.grants.filter((grant) => grant === "refresh_token")).toEqual([]);
  });

  test("whose refresh is refused answers with what to do; the dead tokens are dropped", async () => {
    await login();
    const session = await open();
    remote.expireAccess();
    remote.revokeRefresh();
    const outcome = await session.call("hello", {}, never);
    expect(outcome.isError).toBe(true);
    expect(outcome.text).toContain("mono-agent mcp login");
    expect(storeFor("remote", remote.url).read()?.tokens).toBeUndefined();
  });

  test("with an Authorization header of its own is left to that", async () => {
    await login();
    const session = await open(undefined, { headers: { Authorization: "Bearer wrong" } });
    expect(session.warnings[0]?.message).toContain("login");
    expect(remote.grants).toEqual(["authorization_code"]);
  });
});

describe("a kept login", () => {
  test("is not used for another URL under the same name", async () => {
    await login();
    expect(storeFor("remote", `${remote.url}/other`).read()).toBeUndefined();
    expect(storeFor("remote", remote.url).read()?.tokens).toBeDefined();
  });

  test.each([
    ["that others can read", (path: string) => chmodSync(path, 0o644), "has mode 644"],
    ["that is damaged", (path: string) => writeFileSync(path, "{"), "does not hold a login"],
  ])("%s is refused, with the way out", async (_what, damage, reason) => {
    await login();
    damage(join(stateDir, LOGIN_FOLDER, "remote.json"));
    const session = await open();
    expect(session.warnings[0]?.message).toContain(reason);
    expect(session.warnings[0]?.message).toContain("delete it and log in again");
  });

  test("never appears in a log line, a warning or a result", async () => {
    const logger = createRecordingLogger();
    await login();
    const session = await open(logger);
    remote.expireAccess();
    const outcome = await session.call("hello", {}, never);
    remote.expireAccess();
    remote.revokeRefresh();
    const failed = await session.call("hello", {}, never);
    await session.close();
    const said = [...logger.lines, outcome.text, failed.text, JSON.stringify(session.warnings)].join("\n");
    for (const token of remote.issued) expect(said).not.toContain(token);
  });
});
