import type { ConfigProblem } from "../core/errors.ts";
import { isJsonObject, type JsonObject, type JsonValue } from "../core/json.ts";
import {
  continuationEligibility,
  type McpServerSpec,
  mcpFileSchema,
  requestContextProblem,
} from "../core/mcp-servers.ts";
import type { Environment } from "./environment.ts";
import { JsoncError, parseJsonc } from "./jsonc.ts";
import { keyWarnings, literalWarnings } from "./mcp-warnings.ts";
import { nearestName } from "./nearest.ts";
import { type AllowedWords, allowedWords, dottedPath, schemaProblems } from "./problems.ts";
import { resolveReferences } from "./references.ts";
import { CONFIG_FILE_MAX_BYTES, readTextFile } from "./text-file.ts";

export interface McpServers {
  /** In the order of the file; undefined when the file can't be used. */
  readonly servers: ReadonlyMap<string, McpServerSpec> | undefined;
  /** Servers that are left out, because they lack a variable and nobody needs them now. */
  readonly incomplete: ReadonlySet<string>;
  readonly problems: readonly ConfigProblem[];
  /** What probably was meant otherwise. */
  readonly warnings: readonly string[];
}

/** The parts of an entry that may refer to the environment. */
const REFERRING = ["command", "args", "env", "cwd", "url", "headers", "oauth"] as const;

/**
 * Reads mcp.json and resolves its references to the environment. Values in it may be secrets: no problem quotes one.
 * A reference to a variable that is not set is a problem where the server is needed and not switched off.
 */
export function readMcpFile(
  path: string,
  env: Environment,
  isNeeded: (server: string) => boolean,
): McpServers {
  const incomplete = new Set<string>();
  const unusable = (message: string): McpServers => ({
    servers: undefined,
    incomplete,
    problems: [{ source: path, path: "", message }],
    warnings: [],
  });
  const file = readTextFile(path, CONFIG_FILE_MAX_BYTES);
  if (file.kind === "missing") return unusable("there is no such file (named by tools.mcpConfigPath)");
  if (file.kind === "unreadable") return unusable(file.reason);
  try {
    const read = parseJsonc(file.text);
    const allowed = allowedWords(mcpFileSchema);
    const warnings = entriesOf(read).flatMap(([name, entry]) => entryWarnings(name, entry, allowed, path));
    const { raw, missing, substituted } = withEnvironment(read, {
      source: path,
      env,
      isNeeded,
      leaveOut: (server) => incomplete.add(server),
    });
    const parsed = mcpFileSchema.safeParse(raw);
    if (parsed.success) {
      const servers = Object.entries(parsed.data.mcpServers).map(([name, spec]): [string, McpServerSpec] => {
        const values = substituted.get(name) ?? [];
        return [name, values.length === 0 ? spec : { ...spec, substituted: values }];
      });
      // A record of the schema has no such member; it would vanish without a word.
      if (!hasProto(raw)) return { servers: new Map(servers), incomplete, problems: missing, warnings };
      const message = "is not a name that is allowed here; allowed: any other name";
      const problem = { source: path, path: "mcpServers.__proto__", message };
      return { servers: undefined, incomplete, problems: [...missing, problem], warnings };
    }
    // A text that lacks its variable is no URL either: what is missing is said once.
    const problems = schemaProblems(parsed.error, raw, allowed, () => path).filter(
      (problem) => !missing.some((other) => other.path === problem.path),
    );
    return { servers: undefined, incomplete, problems: [...missing, ...problems], warnings };
  } catch (error) {
    if (error instanceof JsoncError) return unusable(`is not JSON: ${error.message}`);
    throw error;
  }
}

/** The entries that are objects, by name. */
function entriesOf(raw: JsonValue): [string, JsonObject][] {
  if (!isJsonObject(raw) || !isJsonObject(raw.mcpServers)) return [];
  return Object.entries(raw.mcpServers).flatMap(([name, entry]): [string, JsonObject][] =>
    isJsonObject(entry) ? [[name, entry]] : [],
  );
}

function entryWarnings(name: string, entry: JsonObject, allowed: AllowedWords, source: string): string[] {
  const literals = isOff(entry)
    ? []
    : REFERRING.flatMap((key) => {
        const value = entry[key];
        return value === undefined ? [] : literalWarnings(value, ["mcpServers", name, key]);
      });
  return [...keyWarnings(name, entry, allowed), ...literals].map(
    ({ path, message }) => `${path} (${source}): ${message}`,
  );
}

function isOff(entry: JsonObject): boolean {
  return entry.enabled === false || entry.disabled === true;
}

function hasProto(raw: JsonValue): boolean {
  return isJsonObject(raw) && isJsonObject(raw.mcpServers) && Object.hasOwn(raw.mcpServers, "__proto__");
}

function withEnvironment(
  raw: JsonValue,
  how: {
    readonly source: string;
    readonly env: Environment;
    readonly isNeeded: (server: string) => boolean;
    readonly leaveOut: (server: string) => void;
  },
): { raw: JsonValue; missing: ConfigProblem[]; substituted: ReadonlyMap<string, readonly string[]> } {
  const missing: ConfigProblem[] = [];
  const substituted = new Map<string, readonly string[]>();
  const { source, env } = how;
  if (!isJsonObject(raw) || !isJsonObject(raw.mcpServers)) return { raw, missing, substituted };
  const servers = Object.entries(raw.mcpServers).flatMap(([name, entry]): [string, JsonValue][] => {
    if (!isJsonObject(entry)) return [[name, entry]];
    const resolved = { ...entry };
    const off = isOff(entry);
    for (const key of REFERRING) {
      const value = entry[key];
      if (value === undefined) continue;
      const found = resolveReferences(value, env, ["mcpServers", name, key]);
      resolved[key] = found.value;
      substituted.set(name, [...(substituted.get(name) ?? []), ...found.substituted]);
      if (found.missing.length > 0 && !off && !how.isNeeded(name)) {
        how.leaveOut(name);
        return [];
      }
      for (const variable of off ? [] : found.missing) {
        const message = `server "${name}" needs the environment variable ${variable.name}, which is not set; set it, or give a default: \${${variable.name}:-default}`;
        missing.push({ source, path: dottedPath(variable.path), message });
      }
    }
    return [[name, resolved]];
  });
  return { raw: { ...raw, mcpServers: Object.fromEntries(servers) }, missing, substituted };
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
  if (spec === undefined) return noSuchServer(name, servers, path);
  const eligibility = continuationEligibility(spec);
  if (typeof eligibility === "string") return undefined;
  return `"${name}" can't hold continuation authority: ${eligibility.unsupported}; use a stdio command or a http url on localhost, 127.0.0.1 or ::1, or take it off this list`;
}

/** Why a server that `tools.mcpRequestContextServers` selects can't be told for which run it works, or undefined. */
export function contextSelectionProblem(
  name: string,
  servers: ReadonlyMap<string, McpServerSpec>,
  path: string,
): string | undefined {
  const spec = servers.get(name);
  if (spec === undefined) return noSuchServer(name, servers, path);
  const problem = requestContextProblem(spec);
  if (problem === undefined) return undefined;
  return `"${name}" can't be told for which run it works: ${problem}; use a stdio command, or take it off this list`;
}

function noSuchServer(name: string, servers: ReadonlyMap<string, McpServerSpec>, path: string): string {
  const names = [...servers.keys()];
  const nearest = nearestName(name, names);
  const hint = nearest === undefined ? "" : `; did you mean "${nearest}"?`;
  return `there is no server "${name}" in ${path}${hint}; it declares: ${names.join(", ") || "none"}`;
}
