import type { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { z } from "zod";
import { sha256Hex } from "../core/digest.ts";
import { canonicalJson, type JsonObject } from "../core/json.ts";
import { SECOND_MS } from "../core/limits.ts";
import { isToolAllowed, type McpServerSpec, matchesPattern, serverTransport } from "../core/mcp-servers.ts";
import type { ListedTool, SessionWarning } from "./catalogue.ts";

/**
 * Owns: what a server offers: every page of its list, less what the configuration keeps away.
 */

/** For a page and, kept by whoever asks, for all of them. */
export const LIST_TIMEOUT_MS = 30 * SECOND_MS;
/** A server whose cursor never ends is cut off here. */
const LIST_MAX_PAGES = 64;
export const LIST_MAX_TOOLS = 1024;

export interface Listing {
  readonly tools: readonly ListedTool[];
  readonly warnings: readonly SessionWarning[];
  /** The server could not be reached or did not give its list; the warnings say why. */
  readonly failed: boolean;
}

/** Reads the whole list. Rejects when the server does not give it. */
export async function listTools(
  client: Client,
  server: string,
  spec: McpServerSpec,
  signal: AbortSignal,
): Promise<Listing> {
  const found: ListedTool[] = [];
  const warnings: SessionWarning[] = [];
  if (client.getServerCapabilities()?.tools !== undefined) {
    const version = serverVersion(client);
    const target = targetDigest(spec);
    const { PaginatedResultSchema, ToolSchema } = await import("@modelcontextprotocol/sdk/types.js");
    // The tools are read one by one, so that a bad one takes only itself away.
    const pageSchema = PaginatedResultSchema.extend({ tools: z.array(z.unknown()) });
    const seen = new Set<string>();
    const names = new Set<string>();
    let unreadable = 0;
    let twins = 0;
    let cursor: string | undefined;
    let isCut = false;
    for (let page = 1; ; page += 1) {
      const params = cursor === undefined ? {} : { cursor };
      const answer = await client.request({ method: "tools/list", params }, pageSchema, {
        signal,
        timeout: LIST_TIMEOUT_MS,
      });
      for (const entry of answer.tools) {
        const { data: tool } = ToolSchema.safeParse(entry);
        if (tool === undefined) {
          unreadable += 1;
          continue;
        }
        if (names.has(tool.name)) {
          twins += 1;
          continue;
        }
        if (found.length >= LIST_MAX_TOOLS) {
          isCut = true;
          break;
        }
        names.add(tool.name);
        const inputSchema = tool.inputSchema as JsonObject;
        found.push({
          name: tool.name,
          description: tool.description ?? "",
          inputSchema,
          digest: bindingDigest({ server, target, version, tool: tool.name, schema: inputSchema }),
          readOnly: spec.trusted === true && tool.annotations?.readOnlyHint === true,
        });
      }
      cursor = answer.nextCursor;
      const isLast = cursor === undefined || cursor === "";
      if (!isLast && (page >= LIST_MAX_PAGES || seen.has(cursor ?? ""))) isCut = true;
      if (isLast || isCut) break;
      seen.add(cursor ?? "");
    }
    const warn = (what: string) =>
      warnings.push({ server, code: "mcp_list_tools_failed", message: `${server}: ${what}` });
    if (isCut) warn(`the list of tools is too long or does not end; its first ${found.length} are used`);
    if (unreadable > 0)
      warn(`${unreadable} of its tools can't be read and ${unreadable === 1 ? "is" : "are"} left out`);
    if (twins > 0)
      warn(`it lists ${twins} more under names that it has used already; the first of each counts`);
  }
  const tools = found.filter(({ name }) => isToolAllowed(spec, name));
  return { tools, warnings: [...warnings, ...unmatched(server, spec, found)], failed: false };
}

/** A name that matches no tool is probably mistyped, and what was to be denied would be offered. */
function unmatched(server: string, spec: McpServerSpec, found: readonly ListedTool[]): SessionWarning[] {
  const check = (key: "allowTools" | "denyTools") =>
    (spec[key] ?? [])
      .filter((pattern) => !found.some(({ name }) => matchesPattern(pattern, name)))
      .map((pattern) => ({
        server,
        code: "mcp_tool_filter_unmatched",
        message: `${server}: ${key} names ${JSON.stringify(pattern)}, but the server has no such tool`,
      }));
  return [...check("allowTools"), ...check("denyTools")];
}

/** What a server says of itself, `name@version`; both are its own words. */
export function serverVersion(client: Client): string {
  const info = client.getServerVersion();
  return info === undefined ? "unknown" : `${info.name}@${info.version}`;
}

/** The digest of `BoundTool`. Description and title are left out: they bind nobody. */
function bindingDigest(binding: {
  readonly server: string;
  readonly target: string;
  readonly version: string;
  readonly tool: string;
  readonly schema: JsonObject;
}): string {
  return sha256Hex(canonicalJson(binding));
}

/** Where the calls go: a command or a URL. By digest, and without the values of variables and headers: secrets change. */
function targetDigest(spec: McpServerSpec): string {
  const target = serverTransport(spec);
  const where =
    target.kind === "stdio"
      ? { command: target.command, args: target.args, cwd: target.cwd }
      : { url: spec.url };
  return sha256Hex(canonicalJson({ kind: target.kind, ...where }));
}
