import type { OAuthClientProvider } from "@modelcontextprotocol/sdk/client/auth.js";
import { equalTokens } from "../core/digest.ts";
import { McpError } from "../core/errors.ts";
import { SECOND_MS } from "../core/limits.ts";
import type { Clock } from "../core/ports/platform.ts";
import type { Login, OAuthStore } from "./oauth-store.ts";
import { unlessAborted } from "./unless-aborted.ts";

/**
 * Owns: what the SDK's OAuth client is told about us, and what it may change of a login.
 */

type Fetch = (url: string | URL, init?: RequestInit) => Promise<Response>;

/** A refresh, from the discovery to the tokens; every request of the server waits for it. Ours. */
export const REFRESH_TIMEOUT_MS = 30 * SECOND_MS;
const CLIENT_NAME = "mono-agent";

/** What a registration of this client says; a public client, so that it keeps no secret of its own. */
export function clientMetadata(redirectUrl: string, scope?: string) {
  return {
    client_name: CLIENT_NAME,
    redirect_uris: [redirectUrl],
    grant_types: ["authorization_code", "refresh_token"],
    response_types: ["code"],
    token_endpoint_auth_method: "none",
    ...(scope === undefined ? {} : { scope }),
  };
}

/**
 * Trades the refresh token of a login for new tokens, once for all that wait. Resolves with whether there are other
 * tokens than `used` now; nobody is asked for anything. Rejects when the authorization server can't be reached, or
 * does not answer within 30 seconds.
 */
export async function refreshLogin(
  store: OAuthStore,
  used: string,
  challenge: Response,
  fetchFn: Fetch,
  clock: Clock,
): Promise<boolean> {
  const current = () => store.read()?.tokens?.access_token;
  await store.once(async () => {
    const login = store.read();
    // Another process, or the request before, was faster.
    if (login?.tokens === undefined || !equalTokens(login.tokens.access_token, used)) return;
    if (login.tokens.refresh_token === undefined) return;
    const { auth, extractWWWAuthenticateParams } = await import("@modelcontextprotocol/sdk/client/auth.js");
    const { resourceMetadataUrl } = extractWWWAuthenticateParams(challenge);
    const late = new AbortController();
    const cancel = clock.timer(REFRESH_TIMEOUT_MS, () => late.abort());
    const refresh = auth(refreshing(store, login), {
      serverUrl: store.serverUrl,
      // Nothing comes of an answer after the limit.
      fetchFn: (url, init) => fetchFn(url, { ...init, signal: late.signal }),
      ...(resourceMetadataUrl === undefined ? {} : { resourceMetadataUrl }),
    });
    try {
      await unlessAborted(
        refresh,
        late.signal,
        () => new McpError("mcp_failed", "the refresh took too long"),
      );
    } finally {
      cancel();
    }
  });
  const now = current();
  return now !== undefined && now !== used;
}

/** Without a way to register or to ask anybody: all that the SDK can do with it is a refresh. */
function refreshing(store: OAuthStore, login: Login): OAuthClientProvider {
  let rejected = false;
  /** A person may have logged in anew meanwhile, or deleted the login: that counts. */
  const isStill = () =>
    equalTokens(store.read()?.tokens?.refresh_token ?? "", login.tokens?.refresh_token ?? "");
  return {
    redirectUrl: login.redirectUrl,
    clientMetadata: clientMetadata(login.redirectUrl),
    clientInformation: () => login.client,
    tokens: () => (rejected ? undefined : login.tokens),
    saveTokens(tokens) {
      if (!isStill()) return;
      // A server that does not rotate refresh tokens leaves the old one out.
      store.write({ ...login, tokens: { ...keptRefreshToken(login), ...tokens } });
    },
    invalidateCredentials() {
      rejected = true;
      if (!isStill()) return;
      const { tokens: _, ...rest } = login;
      store.write(rest);
    },
    redirectToAuthorization() {},
    saveCodeVerifier() {},
    codeVerifier: () => "",
  };
}

function keptRefreshToken({ tokens }: Login) {
  return tokens?.refresh_token === undefined ? {} : { refresh_token: tokens.refresh_token };
}
