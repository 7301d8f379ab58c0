import { McpError } from "../core/errors.ts";
import type { Clock } from "../core/ports/platform.ts";
import { refreshLogin } from "./oauth-client.ts";
import type { OAuthStore } from "./oauth-store.ts";

export type Fetch = (url: string | URL, init?: RequestInit) => Promise<Response>;

/**
 * Sends requests to a server with the access token of its login, when there is one, to the server's own origin only. A
 * 401 means that the request was not taken up: the token is refreshed and the request sent once more. An
 * `Authorization` header of the configuration is left alone.
 */
export function authorizedFetch(
  plain: Fetch,
  serverUrl: string,
  store: OAuthStore | undefined,
  clock: Clock,
): Fetch {
  if (store === undefined) return plain;
  const { origin } = new URL(serverUrl);
  return async (url, init = {}) => {
    const headers = new Headers(init.headers);
    const token = store.read()?.tokens?.access_token;
    if (token === undefined || headers.has("authorization") || new URL(url).origin !== origin) {
      return plain(url, init);
    }
    const send = (bearer: string) => {
      headers.set("authorization", `Bearer ${bearer}`);
      return plain(url, { ...init, headers });
    };
    const response = await send(token);
    if (response.status !== 401) return response;
    // A refresh that is refused leaves the answer as it is: the server wants a login. One that was not possible is told.
    const refreshed = await refreshLogin(store, token, response, plain, clock).catch(
      async (error: unknown) => {
        if (!(error instanceof McpError)) return false;
        await response.body?.cancel();
        throw error;
      },
    );
    const fresh = refreshed ? store.read()?.tokens?.access_token : undefined;
    if (fresh === undefined) return response;
    await response.body?.cancel();
    return send(fresh);
  };
}
