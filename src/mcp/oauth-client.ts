import type { OAuthClientProvider } from "@modelcontextprotocol/sdk/client/auth.js";
import { equalTokens } from "../core/digest.ts";
import { McpError } from "../core/errors.ts";
import { SECOND_MS } from "../core/limits.ts";
import type { Clock } from "../core/ports/platform.ts";
import { noAnswer } from "./failures.ts";
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
 * tokens than `used` now; nobody is asked for anything.
 *
 * @throws McpError when the login may still be good but the authorization server can't be reached, is at fault or does
 *   not answer within 30 seconds, or when another process holds the login for too long.
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
    const provider = refreshing(store, login);
    // The library goes on to ask the person after most failures; it does not tell what they were.
    let trouble: string | undefined;
    const refresh = auth(provider, {
      serverUrl: store.serverUrl,
      async fetchFn(url, init) {
        try {
          // Nothing comes of an answer after the limit.
          const response = await fetchFn(url, { ...init, signal: late.signal });
          const { status } = response;
          trouble = status >= 500 || status === 429 ? `answered with HTTP ${status}` : undefined;
          return response;
        } catch (error) {
          trouble = noAnswer(error)?.replace(/^it /, "") ?? "can't be reached";
          throw error;
        }
      },
      ...(resourceMetadataUrl === undefined ? {} : { resourceMetadataUrl }),
    });
    try {
      await unlessAborted(refresh, late.signal, () => notRefreshed(TOO_SLOW));
    } catch (error) {
      if (error instanceof McpError || trouble === undefined) throw error;
    } finally {
      cancel();
    }
    if (trouble !== undefined && !provider.isRefused() && current() === used) throw notRefreshed(trouble);
  });
  const now = current();
  return now !== undefined && now !== used;
}

const TOO_SLOW = `did not answer in ${REFRESH_TIMEOUT_MS / SECOND_MS} seconds`;

function notRefreshed(what: string): McpError {
  const message = `its login could not be refreshed: the authorization server ${what}; if that stays so, log in again with \`mono-agent mcp login\``;
  return new McpError("mcp_failed", message);
}

/** Without a way to register or to ask anybody: all that the SDK can do with it is a refresh. */
function refreshing(
  store: OAuthStore,
  login: Login,
): OAuthClientProvider & {
  /** Whether the authorization server said that the login is over. */
  isRefused(): boolean;
} {
  let rejected = false;
  /** A person may have logged in anew meanwhile, or deleted the login: that counts. */
  const isStill = () =>
    equalTokens(store.read()?.tokens?.refresh_token ?? "", login.tokens?.refresh_token ?? "");
  return {
    isRefused: () => rejected,
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
