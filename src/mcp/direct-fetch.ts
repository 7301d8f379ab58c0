import { isLoopbackUrl } from "../core/mcp-servers.ts";
import { boundedBody } from "./bounded-body.ts";

/**
 * Owns: how a request leaves for a server, and where its redirects may lead.
 *
 * I1. Headers of the configuration, claim values, session ids, messages and tokens go to the origin that they are for
 *     and nowhere else: a redirect to another one is followed only by a GET that carries none of them.
 */

const MAX_REDIRECTS = 5;
/** What a request may say to anybody. */
const ANYBODYS_HEADERS = new Set(["accept", "mcp-protocol-version"]);

/**
 * A loopback server is reached directly: its claim token must not pass a proxy that the environment names. Bun would end
 * whatever is silent for five minutes; how long a call may be silent is said by its own limits, and a stream of events
 * may be for days. A redirect that is not followed is the answer.
 */
export async function directFetch(url: string | URL, init: RequestInit = {}): Promise<Response> {
  let target = new URL(url);
  for (let redirects = 0; ; redirects += 1) {
    const direct = isLoopbackUrl(target.href) ? { proxy: false as const } : {};
    const response = await fetch(target.href, { ...init, ...direct, timeout: false, redirect: "manual" });
    const next = redirects < MAX_REDIRECTS ? redirectOf(response, target, init) : undefined;
    if (next === undefined) return boundedBody(response);
    await response.body?.cancel();
    target = next;
  }
}

/** Where the same request is sent next; undefined when the answer is no redirect, or one that is not followed. */
function redirectOf(
  response: Response,
  from: URL,
  { method = "GET", headers }: RequestInit,
): URL | undefined {
  const location = response.headers.get("location");
  // The others turn a POST into a GET, which is not what was asked.
  const keepsMethod = method === "GET" ? [301, 302, 303, 307, 308] : [307, 308];
  if (location === null || !keepsMethod.includes(response.status)) return undefined;
  if (!URL.canParse(location, from.href)) return undefined;
  const to = new URL(location, from.href);
  if (to.origin === from.origin) return to;
  const isForAnybody =
    method === "GET" && [...new Headers(headers).keys()].every((name) => ANYBODYS_HEADERS.has(name));
  return isForAnybody && (to.protocol === "https:" || to.protocol === "http:") ? to : undefined;
}
