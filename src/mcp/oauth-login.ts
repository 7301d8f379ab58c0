import type { OAuthClientProvider } from "@modelcontextprotocol/sdk/client/auth.js";
import { equalTokens } from "../core/digest.ts";
import { McpError } from "../core/errors.ts";
import { MINUTE_MS } from "../core/limits.ts";
import { isLoopbackUrl, type McpServerSpec, serverTransport } from "../core/mcp-servers.ts";
import type { Clock, Ids } from "../core/ports/platform.ts";
import { directFetch } from "./direct-fetch.ts";
import { noAnswer } from "./failures.ts";
import { clientMetadata } from "./oauth-client.ts";
import type { Login, OAuthStore } from "./oauth-store.ts";
import { unlessAborted } from "./unless-aborted.ts";

/**
 * Owns: the login of a person to a remote server: discovery, registration, the browser's way back, the exchange.
 *
 * I1. The way back is a loopback listener for this login alone; an answer without the state of this login is refused.
 * I2. The login is written only once its tokens are there; a login that fails leaves the earlier one as it was.
 */

const LOGIN_TIMEOUT_MS = 5 * MINUTE_MS;
const STATE_BYTES = 32;
const CALLBACK_PATH = "/callback";

export interface LoginOptions {
  readonly spec: McpServerSpec;
  readonly store: OAuthStore;
  readonly ids: Ids;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  /** Shows the person the page to open. */
  readonly show: (url: string) => void;
}

/** Logs a person in and keeps the tokens. Rejects with an `McpError` that says what went wrong. */
export async function logIn({ spec, store, ids, clock, signal, show }: LoginOptions): Promise<void> {
  const { server, serverUrl } = store;
  const failed = (why: string, cause?: unknown) =>
    new McpError("mcp_failed", `${server}: ${why}`, cause === undefined ? {} : { cause });
  const transport = serverTransport(spec);
  if (transport.kind !== "http" && transport.kind !== "sse") throw failed("only a remote server has a login");
  if (new URL(serverUrl).protocol !== "https:" && !isLoopbackUrl(serverUrl)) {
    throw failed("its URL is not https, so that a token would travel in the open");
  }
  const limit = new AbortController();
  const cancelLimit = clock.timer(LOGIN_TIMEOUT_MS, () => limit.abort());
  const stop = AbortSignal.any([signal, limit.signal]);
  const fetchFn = (url: string | URL, init?: RequestInit) => directFetch(url, { ...init, signal: stop });
  const state = ids.token(STATE_BYTES);
  const callback = listenForCallback(state, spec.oauth?.callbackPort, failed);
  try {
    const { auth, extractWWWAuthenticateParams } = await import("@modelcontextprotocol/sdk/client/auth.js");
    const challenge = await probe(transport.kind, serverUrl, fetchFn).catch((error: unknown) => {
      const why = stop.aborted ? undefined : noAnswer(error);
      throw why === undefined ? error : failed(why, error);
    });
    if (challenge.status !== 401) {
      throw failed(`it does not ask for a login (it answers with HTTP ${challenge.status})`);
    }
    const { resourceMetadataUrl, scope } = extractWWWAuthenticateParams(challenge);
    const draft: { client?: Login["client"]; tokens?: Login["tokens"]; verifier: string; page?: URL } = {
      verifier: "",
    };
    const { clientId, clientSecret, scope: ownScope } = spec.oauth ?? {};
    if (clientId !== undefined) {
      draft.client = {
        client_id: clientId,
        ...(clientSecret === undefined ? {} : { client_secret: clientSecret }),
      };
    }
    const provider: OAuthClientProvider = {
      redirectUrl: callback.url,
      clientMetadata: clientMetadata(callback.url, ownScope),
      state: () => state,
      clientInformation: () => draft.client,
      saveClientInformation(client) {
        draft.client = { ...client };
      },
      tokens: () => undefined,
      saveTokens(tokens) {
        draft.tokens = { ...tokens };
      },
      redirectToAuthorization(page) {
        draft.page = page;
      },
      saveCodeVerifier(verifier) {
        draft.verifier = verifier;
      },
      codeVerifier: () => draft.verifier,
    };
    const chosenScope = ownScope ?? scope;
    const options = {
      serverUrl,
      fetchFn,
      ...(resourceMetadataUrl === undefined ? {} : { resourceMetadataUrl }),
      ...(chosenScope === undefined ? {} : { scope: chosenScope }),
    };
    await auth(provider, options);
    if (draft.page === undefined) throw failed("its authorization server names no page to log in at");
    show(draft.page.href);
    const authorizationCode = await unlessAborted(callback.code, stop, () => stop.reason);
    await auth(provider, { ...options, authorizationCode });
    if (draft.client === undefined || draft.tokens === undefined) throw failed("the login gave no tokens");
    store.write({ redirectUrl: callback.url, client: draft.client, tokens: draft.tokens });
  } catch (error) {
    if (error instanceof McpError) throw error;
    if (limit.signal.aborted) throw failed("nobody logged in within five minutes");
    if (signal.aborted) throw failed("the login was given up");
    const unanswered = noAnswer(error);
    if (unanswered !== undefined) throw failed(`its authorization server: ${unanswered}`, error);
    // The words of a foreign authorization server may hold anything; its error class is enough.
    throw failed(`the login failed (${error instanceof Error ? error.name : "unknown"})`, error);
  } finally {
    cancelLimit();
    callback.close();
  }
}

/** An ordinary first request without a token: the answer says where to log in. */
async function probe(
  kind: "http" | "sse",
  url: string,
  fetchFn: (url: string, init?: RequestInit) => Promise<Response>,
): Promise<Response> {
  const initialize = {
    jsonrpc: "2.0",
    id: 0,
    method: "initialize",
    params: {
      protocolVersion: "2025-11-25",
      capabilities: {},
      clientInfo: { name: "mono-agent", version: "1" },
    },
  };
  const response = await fetchFn(
    url,
    kind === "sse"
      ? { headers: { accept: "text/event-stream" } }
      : {
          method: "POST",
          headers: { "content-type": "application/json", accept: "application/json, text/event-stream" },
          body: JSON.stringify(initialize),
        },
  );
  await response.body?.cancel();
  return response;
}

/** Waits on loopback for the browser that comes back with the code. */
function listenForCallback(state: string, port: number | undefined, failed: (why: string) => McpError) {
  const code = Promise.withResolvers<string>();
  // Whoever waits may have gone already.
  code.promise.catch(() => {});
  const page = (status: number, text: string) =>
    new Response(`${text}\n`, { status, headers: { "content-type": "text/plain; charset=utf-8" } });
  let http: ReturnType<typeof Bun.serve>;
  try {
    http = Bun.serve({
      hostname: "127.0.0.1",
      port: port ?? 0,
      development: false,
      fetch(request) {
        const { pathname, searchParams } = new URL(request.url);
        if (request.method !== "GET" || pathname !== CALLBACK_PATH) return page(404, "Not found.");
        if (!equalTokens(searchParams.get("state") ?? "", state)) {
          return page(400, "This is not the login that mono-agent waits for.");
        }
        const given = searchParams.get("code");
        if (given !== null) {
          code.resolve(given);
          return page(200, "You are logged in. This window can be closed.");
        }
        const reason = (searchParams.get("error") ?? "").replace(/[^a-z_]/g, "").slice(0, 64);
        code.reject(failed(`the authorization server refused (${reason || "no reason given"})`));
        return page(200, "The login was refused. This window can be closed.");
      },
    });
  } catch (error) {
    throw new McpError("listen_failed", `port ${port ?? 0} on 127.0.0.1 can't be used for the login`, {
      cause: error,
    });
  }
  return {
    url: `http://127.0.0.1:${http.port}${CALLBACK_PATH}`,
    code: code.promise,
    close: () => void http.stop(),
  };
}
