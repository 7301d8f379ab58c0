import { CLAIM_ENV, CLAIM_HEADERS, CLAIM_KEYS, isLoopbackUrl } from "../../core/mcp-servers.ts";
import type { ClaimCapability } from "../../core/ports/tools.ts";

/**
 * The claim values that the host gave to this server for the run that calls it: four environment variables over
 * stdio, four headers over HTTP. Undefined when the run has none (the variables are then empty), and when the
 * address is not a loopback one: the token goes to nobody else.
 */
export function capabilityFromEnv(
  env: Readonly<Record<string, string | undefined>>,
): ClaimCapability | undefined {
  return capability((key) => env[CLAIM_ENV[key]]);
}

export function capabilityFromHeaders(headers: Headers): ClaimCapability | undefined {
  return capability((key) => headers.get(CLAIM_HEADERS[key]) ?? undefined);
}

function capability(read: (key: (typeof CLAIM_KEYS)[number]) => string | undefined) {
  const [url = "", token = "", fingerprint = "", mode = ""] = CLAIM_KEYS.map(read);
  if (token === "" || !isLoopbackUrl(url)) return undefined;
  return { url, token, fingerprint, mode };
}
