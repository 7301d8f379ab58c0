import { z } from "zod";
import { DAY_MS, FIELD_MAX_CHARS } from "./limits.ts";

/**
 * Owns: the shape of mcp.json (host-facts.md §1), what a server's entry means (its transport), which entries may
 * hold continuation authority or a request's context, and the reserved names that carry either.
 *
 * I1. A contradictory entry parses, so that it can be named and refused; it never becomes a transport by guess.
 * I2. Values are final: references to the environment were resolved when the file was read (config/mcp-file.ts).
 */

/** Environment variables by which a trusted stdio server receives its claim capability (seed-000). */
export const CLAIM_ENV = {
  url: "MONO_AGENT_CONTINUATION_CLAIM_URL",
  token: "MONO_AGENT_CONTINUATION_CLAIM_TOKEN",
  fingerprint: "MONO_AGENT_CONTINUATION_CLAIM_FINGERPRINT",
  mode: "MONO_AGENT_CONTINUATION_CLAIM_MODE",
} as const;

/** The same four values as headers, for a trusted loopback HTTP server. */
export const CLAIM_HEADERS = {
  url: "x-mono-agent-continuation-claim-url",
  token: "x-mono-agent-continuation-claim-token",
  fingerprint: "x-mono-agent-continuation-claim-fingerprint",
  mode: "x-mono-agent-continuation-claim-mode",
} as const;

/** The four values, in the order in which they are written. */
export const CLAIM_KEYS = ["url", "token", "fingerprint", "mode"] as const;

/** Environment variables by which a stdio server learns for which run it works (host-facts.md §2). */
export const CONTEXT_ENV = {
  conversationId: "MONO_AGENT_MCP_PRODUCING_CONVERSATION_ID",
  runId: "MONO_AGENT_MCP_PRODUCING_RUN_ID",
  outputDir: "MONO_AGENT_MCP_RUN_OUTPUT_DIR",
} as const;

/** The rest of that family, which this host has no value for: nobody else's value may stand in its place. */
export const CONTEXT_ENV_UNUSED = [
  "MONO_AGENT_MCP_ATTACHMENTS_ROOT",
  "MONO_AGENT_MCP_ALLOWED_ATTACHMENT_PATHS",
  "MONO_AGENT_MCP_ALLOWED_ATTACHMENT_IDENTITIES",
  "MONO_AGENT_INTERACTION_PROGRESS_URL",
  "MONO_AGENT_INTERACTION_PROGRESS_TOKEN",
] as const;

/** Always empty for such a server. */
export const CONTEXT_ENV_BLANK = [
  "MONO_AGENT_INTERACTION_BRIDGE_URL",
  "MONO_AGENT_INTERACTION_BRIDGE_TOKEN",
] as const;

/** Letters, digits, `_` and `-`. */
export const serverNameSchema = z
  .string()
  .regex(/^[A-Za-z0-9_-]{1,128}$/)
  .describe("a server name of 1 to 128 letters, digits, _ and -");

const httpUrl = z.url({ protocol: /^https?$/ }).describe("an http or https URL");

const toolPatterns = z.array(z.string().min(1).max(FIELD_MAX_CHARS)).optional();

/** How a person logs in to a remote server whose authorization server registers no clients by itself. */
const oauthSchema = z.object({
  clientId: z.string().min(1).optional(),
  clientSecret: z.string().min(1).optional(),
  scope: z.string().min(1).optional(),
  /** The port of the loopback redirect, where one had to be registered. */
  callbackPort: z.int().min(1).max(65_535).optional(),
});

/** One entry. Keys of other hosts that mean nothing here (`description`, `autoApprove`…) are ignored. */
export const mcpServerSchema = z
  .object({
    type: z
      .enum(["stdio", "http", "sse", "streamable-http", "streamableHttp"])
      .transform((type) => (type === "streamable-http" || type === "streamableHttp" ? "http" : type))
      .optional(),
    command: z.string().min(1).optional(),
    args: z.array(z.string()).optional(),
    env: z.record(z.string(), z.string()).optional(),
    cwd: z.string().min(1).optional(),
    url: httpUrl.optional(),
    headers: z.record(z.string(), z.string()).optional(),
    /** False: the server is not started and its tools are not offered. `disabled: true` of other hosts says the same. */
    enabled: z.boolean().optional(),
    disabled: z.boolean().optional(),
    /** Names of its tools that are offered, `*` for any characters; absent: all. */
    allowTools: toolPatterns,
    /** Names of its tools that are not offered; stronger than `allowTools`. */
    denyTools: toolPatterns,
    /** Its own `tools.mcpCallTimeoutMs`. */
    timeoutMs: z.int().min(1).max(DAY_MS).optional(),
    /** Whether what its tools say of themselves (`readOnlyHint`) is believed. */
    trusted: z.boolean().optional(),
    oauth: oauthSchema.optional(),
  })
  .superRefine((spec, context) => {
    if (spec.command === undefined && spec.url === undefined) {
      context.addIssue({ code: "custom", message: "needs a command (stdio) or a url (http, sse)" });
    }
  });
export type McpServerSpec = z.infer<typeof mcpServerSchema> & {
  /** What stands in it for references to the environment; never in the file. It may be secret wherever it stands. */
  readonly substituted?: readonly string[];
};

export const mcpFileSchema = z.object({ mcpServers: z.record(serverNameSchema, mcpServerSchema) });

/** Whether the server takes part at all. */
export function isEnabled(spec: McpServerSpec): boolean {
  return spec.enabled !== false && spec.disabled !== true;
}

/** Whether a tool of the server is offered: what `denyTools` names never is. */
export function isToolAllowed(
  { allowTools, denyTools }: Pick<McpServerSpec, "allowTools" | "denyTools">,
  tool: string,
): boolean {
  if (denyTools?.some((pattern) => matchesPattern(pattern, tool))) return false;
  return allowTools === undefined || allowTools.some((pattern) => matchesPattern(pattern, tool));
}

/** `*` stands for any characters, everything else for itself. */
export function matchesPattern(pattern: string, name: string): boolean {
  const [first = "", ...rest] = pattern.split("*");
  const last = rest.pop();
  if (last === undefined) return name === pattern;
  if (!name.startsWith(first) || name.length < first.length + last.length) return false;
  let at = first.length;
  for (const part of rest) {
    const found = name.indexOf(part, at);
    if (found < 0) return false;
    at = found + part.length;
  }
  return at <= name.length - last.length && name.endsWith(last);
}

export type ServerTransport =
  | {
      readonly kind: "stdio";
      readonly command: string;
      readonly args: readonly string[];
      readonly env: Readonly<Record<string, string>>;
      readonly cwd: string | undefined;
    }
  | {
      readonly kind: "http" | "sse";
      readonly url: string;
      readonly headers: Readonly<Record<string, string>>;
    }
  | { readonly kind: "contradictory"; readonly reason: string };

/** What an entry means: `command` is stdio, a bare `url` is streamable HTTP, `type: "sse"` the older transport. */
export function serverTransport(spec: McpServerSpec): ServerTransport {
  const { type, command, url } = spec;
  if (command !== undefined && url !== undefined) {
    return { kind: "contradictory", reason: "it has both command and url" };
  }
  if (command !== undefined) {
    if (type === "http" || type === "sse") {
      return { kind: "contradictory", reason: `it has type ${type} with a command` };
    }
    return { kind: "stdio", command, args: spec.args ?? [], env: spec.env ?? {}, cwd: spec.cwd };
  }
  if (url === undefined) return { kind: "contradictory", reason: "it has neither command nor url" };
  if (type === "stdio") return { kind: "contradictory", reason: "it has type stdio with a url" };
  return { kind: type ?? "http", url, headers: spec.headers ?? {} };
}

/** `localhost`, `127.0.0.1` or `::1`, and nothing that merely resolves to them. */
export function isLoopbackUrl(url: string): boolean {
  if (!URL.canParse(url)) return false;
  return ["localhost", "127.0.0.1", "[::1]"].includes(new URL(url).hostname);
}

export type ContinuationEligibility = "stdio" | "http" | { readonly unsupported: string };

/** Whether a server may hold continuation authority: stdio, or streamable HTTP on loopback (seed-000). */
export function continuationEligibility(spec: McpServerSpec): ContinuationEligibility {
  const transport = serverTransport(spec);
  switch (transport.kind) {
    case "stdio":
      return "stdio";
    case "contradictory":
      return { unsupported: transport.reason };
    case "sse":
      return { unsupported: "it uses SSE; only stdio and loopback streamable HTTP qualify" };
    case "http":
      return isLoopbackUrl(transport.url)
        ? "http"
        : { unsupported: "its host is not localhost, 127.0.0.1 or ::1" };
  }
}

/** Why a server can't be told for which run it works, or undefined when it can: only stdio has a way. */
export function requestContextProblem(spec: McpServerSpec): string | undefined {
  const transport = serverTransport(spec);
  if (transport.kind === "stdio") return undefined;
  return transport.kind === "contradictory" ? transport.reason : "it is not a stdio server";
}
