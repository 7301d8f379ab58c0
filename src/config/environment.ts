import { isJsonObject, type JsonObject, type JsonValue } from "../core/json.ts";

/** The environment as it is given to us: nothing here reads the process's own. */
export type Environment = Readonly<Record<string, string | undefined>>;

interface Override {
  readonly name: string;
  readonly path: readonly [string, ...string[]];
  readonly read: (text: string) => JsonValue;
}

const asText = (text: string): JsonValue => text;
const asNumber = (text: string): JsonValue => (/^[0-9]+$/.test(text.trim()) ? Number(text) : text);
const asList = (text: string): JsonValue =>
  text
    .split(",")
    .map((part) => part.trim())
    .filter((part) => part !== "");

/** The variables that override a key of the file (host-facts.md §1), as far as they concern keys that we have. */
export const OVERRIDES: readonly Override[] = [
  { name: "MONO_AGENT_MODEL", path: ["runtime", "model"], read: asText },
  { name: "MONO_AGENT_WORKSPACE", path: ["runtime", "workspace"], read: asText },
  { name: "MONO_AGENT_SESSION_ROLLOVER", path: ["runtime", "session", "rollover"], read: asText },
  {
    name: "MONO_AGENT_SESSION_ROLLOVER_TIMEZONE",
    path: ["runtime", "session", "rolloverTimezone"],
    read: asText,
  },
  { name: "MONO_AGENT_MCP_CONFIG_PATH", path: ["tools", "mcpConfigPath"], read: asText },
  {
    name: "MONO_AGENT_MCP_REQUEST_CONTEXT_SERVERS",
    path: ["tools", "mcpRequestContextServers"],
    read: asList,
  },
  { name: "MONO_AGENT_CONTINUATION_SERVERS", path: ["tools", "continuationServers"], read: asList },
  { name: "MONO_AGENT_MCP_CALL_TIMEOUT_MS", path: ["tools", "mcpCallTimeoutMs"], read: asNumber },
  {
    name: "MONO_AGENT_MCP_CALL_MAX_TOTAL_TIMEOUT_MS",
    path: ["tools", "mcpCallMaxTotalTimeoutMs"],
    read: asNumber,
  },
];

export interface Overlaid {
  readonly value: JsonObject;
  /** The variable that gave the value at a path, if one did. */
  variableAt(path: readonly PropertyKey[]): string | undefined;
}

/**
 * Lays the environment over the file, field by field: environment before file before default. An empty variable
 * counts as not set. A block that is no object is left for the schema to refuse.
 */
export function overlayEnvironment(file: JsonObject, env: Environment): Overlaid {
  let value = file;
  const used: Override[] = [];
  for (const override of OVERRIDES) {
    const text = env[override.name];
    if (text === undefined || text.trim() === "") continue;
    const next = withValue(value, override.path, override.read(text));
    if (next === undefined) continue;
    value = next;
    used.push(override);
  }
  return {
    value,
    variableAt: (path) => used.find((override) => override.path.every((part, at) => path[at] === part))?.name,
  };
}

function withValue(
  target: JsonObject,
  [key, ...rest]: readonly string[],
  value: JsonValue,
): JsonObject | undefined {
  if (key === undefined) return undefined;
  if (rest.length === 0) return { ...target, [key]: value };
  const inner = target[key] ?? {};
  if (!isJsonObject(inner)) return undefined;
  const changed = withValue(inner, rest, value);
  return changed === undefined ? undefined : { ...target, [key]: changed };
}

/**
 * Reads a file of `KEY=VALUE` lines: `#` comments, an optional `export `, and single or double quotes around a
 * value. Variables that are set already are kept. Returns the number of the first line that is none of these.
 */
export function overlayEnvFile(text: string, env: Environment): { env: Environment } | { badLine: number } {
  const added: Record<string, string> = {};
  for (const [index, raw] of text.split(/\r?\n/).entries()) {
    const line = raw.trim();
    if (line === "" || line.startsWith("#")) continue;
    const [, name, value] = /^(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)$/.exec(line) ?? [];
    if (name === undefined || value === undefined) return { badLine: index + 1 };
    added[name] = /^(["']).*\1$/.test(value) && value.length > 1 ? value.slice(1, -1) : value;
  }
  return { env: { ...added, ...env } };
}
