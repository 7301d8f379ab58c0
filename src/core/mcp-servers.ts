import { z } from "zod";

/**
 * Owns: the shape of mcp.json (host-facts.md §1), what a server's entry means (its transport), which entries may
 * hold continuation authority, and the reserved names that carry that authority.
 *
 * I1. A contradictory entry parses, so that it can be named and refused; it never becomes a transport by guess.
 * I2. Values are literal: nothing expands `${VAR}`.
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

/** Letters, digits, `_` and `-`. */
export const serverNameSchema = z
  .string()
  .regex(/^[A-Za-z0-9_-]{1,128}$/, "a server name has only letters, digits, _ and - (at most 128)");

const httpUrl = z.url({ protocol: /^https?$/, error: "must be an http or https URL" });

/** One entry. Keys that other hosts put here (`disabled`, `description`…) are ignored. */
export const mcpServerSchema = z
  .object({
    type: z.enum(["stdio", "http", "sse"]).optional(),
    command: z.string().min(1).optional(),
    args: z.array(z.string()).optional(),
    env: z.record(z.string(), z.string()).optional(),
    cwd: z.string().min(1).optional(),
    url: httpUrl.optional(),
    headers: z.record(z.string(), z.string()).optional(),
  })
  .superRefine((spec, context) => {
    if (spec.command === undefined && spec.url === undefined) {
      context.addIssue({ code: "custom", message: "needs a command (stdio) or a url (http, sse)" });
    }
  });
export type McpServerSpec = z.infer<typeof mcpServerSchema>;

export const mcpFileSchema = z.object({ mcpServers: z.record(serverNameSchema, mcpServerSchema) });
export type McpFile = z.infer<typeof mcpFileSchema>;

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
