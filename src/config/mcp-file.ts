import type { ConfigProblem } from "../core/errors.ts";
import { continuationEligibility, type McpServerSpec, mcpFileSchema } from "../core/mcp-servers.ts";
import { JsoncError, parseJsonc } from "./jsonc.ts";
import { nearestName } from "./nearest.ts";
import { allowedWords, schemaProblems } from "./problems.ts";
import { CONFIG_FILE_MAX_BYTES, readTextFile } from "./text-file.ts";

export interface McpServers {
  /** In the order of the file; undefined when the file can't be used. */
  readonly servers: ReadonlyMap<string, McpServerSpec> | undefined;
  readonly problems: readonly ConfigProblem[];
}

/** Reads mcp.json. Values in it are literal and may be secrets: no problem quotes one. */
export function readMcpFile(path: string): McpServers {
  const unusable = (message: string): McpServers => ({
    servers: undefined,
    problems: [{ source: path, path: "", message }],
  });
  const file = readTextFile(path, CONFIG_FILE_MAX_BYTES);
  if (file.kind === "missing") return unusable("there is no such file (named by tools.mcpConfigPath)");
  if (file.kind === "unreadable") return unusable(file.reason);
  try {
    const raw = parseJsonc(file.text);
    const parsed = mcpFileSchema.safeParse(raw);
    if (parsed.success) return { servers: new Map(Object.entries(parsed.data.mcpServers)), problems: [] };
    const problems = schemaProblems(parsed.error, raw, allowedWords(mcpFileSchema), () => path);
    return { servers: undefined, problems };
  } catch (error) {
    if (error instanceof JsoncError) return unusable(`is not JSON: ${error.message}`);
    throw error;
  }
}

/**
 * Why a server that `tools.continuationServers` selects may not hold continuation authority, or undefined when it
 * may: it must be in the file, and use stdio or streamable HTTP on loopback (seed-000).
 */
export function selectionProblem(
  name: string,
  servers: ReadonlyMap<string, McpServerSpec>,
  path: string,
): string | undefined {
  const spec = servers.get(name);
  if (spec === undefined) {
    const names = [...servers.keys()];
    const nearest = nearestName(name, names);
    const hint = nearest === undefined ? "" : `; did you mean "${nearest}"?`;
    return `there is no server "${name}" in ${path}${hint}; it declares: ${names.join(", ") || "none"}`;
  }
  const eligibility = continuationEligibility(spec);
  if (typeof eligibility === "string") return undefined;
  return `"${name}" can't hold continuation authority: ${eligibility.unsupported}; use a stdio command or a http url on localhost, 127.0.0.1 or ::1, or take it off this list`;
}
