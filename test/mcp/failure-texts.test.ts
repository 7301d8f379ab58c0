import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { McpError } from "../../src/core/errors.ts";
import { callFailure } from "../../src/mcp/failures.ts";
import { authorizedFetch, type Fetch } from "../../src/mcp/oauth-fetch.ts";
import { logIn } from "../../src/mcp/oauth-login.ts";
import { createOAuthStore } from "../../src/mcp/oauth-store.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { createIds } from "../../src/platform/ids.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { never, sessionRequest, toolHost } from "../support/mcp-host.ts";

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

/** An address where nothing listens any more. */
async function gone(): Promise<string> {
  const http = Bun.serve({ port: 0, hostname: "127.0.0.1", fetch: () => new Response() });
  await http.stop(true);
  return `http://127.0.0.1:${http.port}`;
}

async function warningOf(url: string, type: "http" | "sse"): Promise<string | undefined> {
  const host = toolHost({ web: { type, url } });
  cleanups.push(() => host.close());
  return (await host.open(sessionRequest())).warnings[0]?.message;
}

describe("of a server that is not there it is said that it can't be reached, and why:", () => {
  test.each(["http", "sse"] as const)("%s", async (type) => {
    expect(await warningOf(`${await gone()}/mcp`, type)).toBe("web: it can't be reached (ECONNREFUSED)");
  });
});

describe("a web page instead of a server is said to be unreadable:", () => {
  test.each(["http", "sse"] as const)("%s", async (type) => {
    const http = Bun.serve({
      port: 0,
      hostname: "127.0.0.1",
      fetch: () => new Response("<html>", { headers: { "content-type": "text/html" } }),
    });
    cleanups.push(() => http.stop(true));
    expect(await warningOf(`http://127.0.0.1:${http.port}/mcp`, type)).toBe(
      "web: it answered in a form that can't be read",
    );
  });
});

describe("a login", () => {
  let stateDir: string;
  beforeEach(() => {
    stateDir = mkdtempSync(join(tmpdir(), "mono-agent-login-"));
    cleanups.push(() => rmSync(stateDir, { recursive: true, force: true }));
  });
  const clock = createFakeClock();
  const storeAt = (serverUrl: string) =>
    createOAuthStore({
      fs: createFileSystem(),
      stateDir,
      server: "remote",
      serverUrl,
      lock: () => ({ release() {} }),
      clock,
    });

  async function refusal(work: Promise<unknown>): Promise<McpError> {
    const error = await work.catch((thrown: unknown) => thrown);
    if (!(error instanceof McpError)) throw new Error(`expected an McpError, got ${String(error)}`);
    return error;
  }

  test("at a server that is not there says so", async () => {
    const url = `${await gone()}/mcp`;
    const login = logIn({
      spec: { url },
      store: storeAt(url),
      ids: createIds(),
      clock,
      signal: never,
      show: () => {},
    });
    expect((await refusal(login)).message).toBe("remote: it can't be reached (ECONNREFUSED)");
  });

  const refused = Object.assign(new TypeError("fetch failed"), { code: "ECONNREFUSED" });
  test.each([
    ["can't be reached", () => Promise.reject(refused), "can't be reached (ECONNREFUSED)"],
    ["is at fault", () => new Response("secret-words", { status: 503 }), "answered with HTTP 503"],
    ["is busy", () => new Response("", { status: 429 }), "answered with HTTP 429"],
  ])("whose authorization server %s is not said to be over", async (_what, answer, reason) => {
    const url = "http://127.0.0.1:1/mcp";
    const store = storeAt(url);
    store.write({
      redirectUrl: "http://127.0.0.1:2/callback",
      client: { client_id: "c" },
      tokens: {
        access_token: "old-access",
        token_type: "Bearer",
        refresh_token: "old-refresh",
        issuer: "http://127.0.0.1:1",
      },
    });
    const plain: Fetch = async (to) => (String(to) === url ? new Response("no", { status: 401 }) : answer());
    const send = authorizedFetch(plain, url, store, clock);
    const errors = await Promise.all([refusal(send(url)), refusal(send(url))]);
    for (const error of errors) {
      expect(error.message).toBe(
        `its login could not be refreshed: the authorization server ${reason}; if that stays so, log in again with \`mono-agent mcp login\``,
      );
    }
    expect(store.read()?.tokens?.refresh_token).toBe("old-refresh");
    const [error] = errors;
    const context = { server: "remote", aborted: false, timedOut: false, lost: false, exit: undefined };
    expect((await callFailure(error, context)).text).toBe(
      `The server remote can't be used: ${error?.message}. It took nothing up.`,
    );
  });
});
