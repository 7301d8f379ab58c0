import {
  CLAIM_ENV,
  CLAIM_HEADERS,
  CLAIM_KEYS,
  CONTEXT_ENV,
  CONTEXT_ENV_BLANK,
  CONTEXT_ENV_UNUSED,
} from "../core/mcp-servers.ts";
import type { ClaimCapability } from "../core/ports/tools.ts";

/**
 * Owns: the one place where trusted claim values and the context of a run meet a server's environment or headers.
 *
 * I1. Reserved names of the host's own environment and of the configuration never reach any server.
 * I2. The host's values are written last, to selected servers only.
 * I3. A selected stdio server without a capability sees the four names empty, so that it can say so.
 * I4. Inputs are not changed; the results are new objects.
 * I5. The context of a run and claim values do not depend on each other: a server may get either, both or none.
 */

/** What a server is to receive: a capability, the four empty values (selected, none at hand), or nothing. */
export type ClaimGrant = ClaimCapability | "empty" | "unselected";

/** For which run a server works (`tools.mcpRequestContextServers`); "unselected" leaves those names alone. */
export type ContextGrant =
  | { readonly conversationId: string; readonly runId: string; readonly outputDir: string }
  | "unselected";

const RESERVED = new Set([...Object.values(CLAIM_ENV), ...Object.values(CLAIM_HEADERS)].map(lower));

function lower(name: string): string {
  return name.toLowerCase();
}

function withoutReserved(values: Readonly<Record<string, string | undefined>>): Record<string, string> {
  const kept: Record<string, string> = {};
  for (const [name, value] of Object.entries(values)) {
    // Any case: Windows does not tell variables apart by case, HTTP does not tell headers apart.
    if (value !== undefined && !RESERVED.has(lower(name))) kept[name] = value;
  }
  return kept;
}

/** What servers without authority inherit: tokens of detached services (`withheld`) are authority too. */
export function publicEnvironment(
  base: Readonly<Record<string, string | undefined>>,
  withheld: readonly string[],
): Record<string, string | undefined> {
  return Object.fromEntries(Object.entries(base).filter(([name]) => !withheld.includes(name)));
}

/** The values of some variables, of those that are set. */
export function valuesOf(
  env: Readonly<Record<string, string | undefined>>,
  names: readonly string[],
): readonly string[] {
  return names.flatMap((name) => env[name] ?? []);
}

/** The environment of a stdio child: the host's, the configured variables, the run's context, then the four values. */
export function childEnvironment(
  base: Readonly<Record<string, string | undefined>>,
  configured: Readonly<Record<string, string>>,
  grant: ClaimGrant,
  context: ContextGrant,
): Record<string, string> {
  const env = { ...withoutReserved(base), ...withoutReserved(configured) };
  if (context !== "unselected") {
    for (const name of CONTEXT_ENV_UNUSED) delete env[name];
    for (const name of CONTEXT_ENV_BLANK) env[name] = "";
    env[CONTEXT_ENV.conversationId] = context.conversationId;
    env[CONTEXT_ENV.runId] = context.runId;
    env[CONTEXT_ENV.outputDir] = context.outputDir;
  }
  if (grant === "unselected") return env;
  for (const key of CLAIM_KEYS) env[CLAIM_ENV[key]] = grant === "empty" ? "" : grant[key];
  return env;
}

/** The headers of every request to an HTTP server. */
export function requestHeaders(
  configured: Readonly<Record<string, string>>,
  grant: ClaimGrant,
): Record<string, string> {
  const headers = withoutReserved(configured);
  if (grant === "unselected" || grant === "empty") return headers;
  for (const key of CLAIM_KEYS) headers[CLAIM_HEADERS[key]] = grant[key];
  return headers;
}
