import { resolve } from "node:path";
import type { z } from "zod";
import type { ConfigProblem } from "../core/errors.ts";
import { isJsonObject, type JsonObject, type JsonValue } from "../core/json.ts";
import { isEnabled, type McpServerSpec } from "../core/mcp-servers.ts";
import type { Environment } from "./environment.ts";
import { contextSelectionProblem, readMcpFile, selectionProblem } from "./mcp-file.ts";
import { misplaced } from "./places.ts";
import { dottedPath, type SourceOf } from "./problems.ts";
import { BLOCKS, BUILT_IN_PROVIDERS, DEFAULT_CONTINUATION_PORT, DEFAULT_TERMINAL_PORT } from "./schema.ts";
import { DETACHED_TOKEN_MIN_CHARS, secretValue } from "./secrets.ts";
import { IDENTITY_MAX_BYTES, readTextFile } from "./text-file.ts";

/**
 * Owns: the rules that need another file, another block or the environment.
 *
 * I1. Each rule reads only the fields it needs, one by one, so that a problem elsewhere never hides one here.
 */

export interface CrossChecks {
  readonly problems: readonly ConfigProblem[];
  readonly warnings: readonly string[];
  readonly mcpServers: ReadonlyMap<string, McpServerSpec>;
  readonly identity: string;
}

export interface CheckInput {
  readonly raw: JsonObject;
  readonly cwd: string;
  readonly configPath: string;
  readonly env: Environment;
  readonly sourceOf: SourceOf;
  readonly secretsOptional: boolean;
  /** Whether a server's references to the environment have to resolve. */
  readonly isServerNeeded: (server: string) => boolean;
  readonly withoutServers: boolean;
}

/** Providers that a model may name without an entry: the built-in ones, and local servers at their usual address. */
const NEEDS_NO_ENTRY: readonly string[] = [...BUILT_IN_PROVIDERS, "ollama", "lmstudio"];

type Providers = z.output<typeof BLOCKS.providers>;
type LocalProvider = Providers["local"][number];
type Report = (path: readonly PropertyKey[], message: string) => void;

/** Runs every rule on the overlaid file as it was read, before or after the schema refused parts of it. */
export function crossCheck(input: CheckInput): CrossChecks {
  const problems: ConfigProblem[] = [];
  const report: Report = (path, message) => {
    problems.push({ source: input.sourceOf(path), path: dottedPath(path), message });
  };
  const identity = checkIdentity(input, report);
  checkModels(input, report);
  const mcp = checkServers(input, report);
  if (!input.secretsOptional) checkDetachedTokens(input, report);
  checkPorts(input, report);
  checkPlaces(input, report);
  return {
    problems: [...problems, ...mcp.problems],
    warnings: [...zoneWarnings(input), ...keyWarnings(input), ...windowWarnings(input), ...mcp.warnings],
    mcpServers: mcp.servers,
    identity,
  };
}

function checkIdentity({ raw, cwd }: CheckInput, report: Report): string {
  const path = fieldOf(BLOCKS.context.shape.identityPath, block(raw, "context").identityPath);
  if (path === undefined) return "";
  const absolute = resolve(cwd, path);
  const file = readTextFile(absolute, IDENTITY_MAX_BYTES);
  if (file.kind === "text") return file.text;
  const why = file.kind === "missing" ? "there is no such file" : file.reason;
  report(["context", "identityPath"], `${absolute}: ${why}`);
  return "";
}

interface NamedModel {
  readonly path: readonly PropertyKey[];
  readonly model: string;
}

/** The primary model and the fallbacks. */
function namedModels({ raw }: CheckInput): NamedModel[] {
  const runtime = block(raw, "runtime");
  const fallbacks = Array.isArray(runtime.fallbacks) ? runtime.fallbacks : [];
  const places = [
    { path: ["runtime", "model"], name: runtime.model },
    ...fallbacks.map((fallback, index) => ({
      path: ["runtime", "fallbacks", index, "model"],
      name: isJsonObject(fallback) ? fallback.model : undefined,
    })),
  ];
  return places.flatMap(({ path, name }) => {
    const model = fieldOf(BLOCKS.runtime.shape.model, name);
    return model === undefined ? [] : [{ path, model }];
  });
}

function checkModels(input: CheckInput, report: Report): void {
  const providers = fieldOf(BLOCKS.providers, input.raw.providers ?? {});
  if (providers === undefined) return;
  for (const named of namedModels(input)) checkModel(named, providers, input, report);
}

function checkModel(
  { path, model }: NamedModel,
  providers: Providers,
  { env, secretsOptional }: CheckInput,
  report: Report,
): void {
  const provider = model.slice(0, model.indexOf(":"));
  const name = model.slice(provider.length + 1);
  const local = localProvider(provider, providers.local);
  if (local === "ambiguous") {
    report(path, `several providers are of type ${provider}; name one by its id`);
    return;
  }
  if (local === undefined && !NEEDS_NO_ENTRY.includes(provider)) {
    const known = [...NEEDS_NO_ENTRY, ...providers.local.map((candidate) => candidate.id)].join(", ");
    report(path, `there is no provider "${provider}"; known: ${known} (more in providers.local)`);
    return;
  }
  const models = local?.models?.map((each) => (typeof each === "string" ? each : each.id));
  if (models !== undefined && !models.includes(name)) {
    report(path, `provider "${provider}" lists other models: ${models.join(", ") || "none"}`);
  }
  const keyEnv = hostedKeyEnv(provider, providers) ?? local?.apiKeyEnv;
  if (!secretsOptional && keyEnv !== undefined && secretValue(env, keyEnv) === undefined) {
    report(path, `needs an API key: set the environment variable ${keyEnv}`);
  }
}

function hostedKeyEnv(provider: string, { anthropic, openai, google }: Providers): string | undefined {
  switch (provider) {
    case "anthropic":
      return anthropic.apiKeyEnv;
    case "openai":
    case "openai_chat":
      return openai.apiKeyEnv;
    case "google":
      return google.apiKeyEnv;
    default:
      return undefined;
  }
}

/** A key in the file is used (host-facts.md §1), but whoever reads the file has it. */
function keyWarnings({ raw }: CheckInput): string[] {
  const { local } = block(raw, "providers");
  return (Array.isArray(local) ? local : []).flatMap((provider, index) =>
    isJsonObject(provider) && provider.apiKey !== undefined
      ? [
          `providers.local[${index}].apiKey: a secret stands in the file; name its variable in apiKeyEnv instead`,
        ]
      : [],
  );
}

/** A local server says nothing of its window, and many drop the beginning of what is too long without a word. */
function windowWarnings(input: CheckInput): string[] {
  // Commands that call no model would only repeat what the host said.
  if (input.secretsOptional) return [];
  const local = fieldOf(BLOCKS.providers, input.raw.providers ?? {})?.local;
  if (local === undefined) return [];
  const named = namedModels(input);
  return named.flatMap(({ path, model }, index) => {
    const [provider = "", ...rest] = model.split(":");
    const entry = localProvider(provider, local);
    const isLocal = entry !== undefined || !(BUILT_IN_PROVIDERS as readonly string[]).includes(provider);
    const facts =
      entry === "ambiguous"
        ? undefined
        : entry?.models?.find((each) => typeof each !== "string" && each.id === rest.join(":"));
    const isSized = typeof facts === "object" && facts.contextTokens !== undefined;
    if (!isLocal || isSized || named.findIndex((each) => each.model === model) < index) return [];
    return [
      `${dottedPath(path)}: nobody says how many tokens ${model} holds, so a long conversation is never cut to fit; set contextTokens in providers.local[].models`,
    ];
  });
}

/** A provider by its id, else the only one of the type with that name, as `model/resolve.ts` finds it. */
function localProvider(
  name: string,
  locals: readonly LocalProvider[],
): LocalProvider | "ambiguous" | undefined {
  const byId = locals.find((candidate) => candidate.id === name);
  if (byId !== undefined) return byId;
  const byType = locals.filter((candidate) => candidate.type === name);
  return byType.length > 1 ? "ambiguous" : byType[0];
}

function checkServers({ raw, cwd, env, isServerNeeded, withoutServers }: CheckInput, report: Report) {
  const none = {
    servers: new Map<string, McpServerSpec>(),
    problems: [] as readonly ConfigProblem[],
    warnings: [] as readonly string[],
  };
  if (withoutServers) return none;
  const tools = block(raw, "tools");
  const { shape } = BLOCKS.tools.unwrap();
  const selections = (["continuationServers", "mcpRequestContextServers"] as const).map((key) => ({
    key,
    names: fieldOf(shape[key], tools[key]) ?? [],
    problemOf: key === "continuationServers" ? selectionProblem : contextSelectionProblem,
  }));
  const filePath = fieldOf(shape.mcpConfigPath, tools.mcpConfigPath);
  if (filePath === undefined) {
    const asking = selections.find(({ names }) => names.length > 0);
    if (asking !== undefined && tools.mcpConfigPath === undefined) {
      report(
        ["tools", "mcpConfigPath"],
        `is required because tools.${asking.key} selects ${asking.names.join(", ")}; name the file that declares them`,
      );
    }
    return none;
  }
  const workspace = fieldOf(BLOCKS.runtime.shape.workspace, block(raw, "runtime").workspace) ?? ".";
  const absolute = resolve(cwd, workspace, filePath);
  const { servers, incomplete, problems, ...read } = readMcpFile(absolute, env, isServerNeeded);
  const warnings = [...read.warnings];
  if (servers === undefined) return { ...none, problems, warnings };
  for (const { key, names, problemOf } of selections) {
    for (const [index, name] of names.entries()) {
      if (incomplete.has(name)) continue;
      const message = problemOf(name, servers, absolute);
      if (message !== undefined) report(["tools", key, index], message);
      const spec = servers.get(name);
      if (spec !== undefined && !isEnabled(spec)) {
        warnings.push(`tools.${key}: ${name} is switched off in ${absolute}`);
      }
    }
  }
  return { servers, problems, warnings };
}

function checkDetachedTokens({ raw, env }: CheckInput, report: Report): void {
  const continuations = block(raw, "continuations");
  const services = continuations.detachedServices;
  if (continuations.enabled === false || !Array.isArray(services)) return;
  const envName = BLOCKS.continuations.unwrap().shape.detachedServices.unwrap().element.shape.tokenEnv;
  for (const [index, service] of services.entries()) {
    const name = isJsonObject(service) ? fieldOf(envName, service.tokenEnv) : undefined;
    if (name === undefined) continue;
    const token = secretValue(env, name);
    const path = ["continuations", "detachedServices", index, "tokenEnv"];
    if (token === undefined) {
      report(
        path,
        `the environment variable ${name} is not set; it must hold at least ${DETACHED_TOKEN_MIN_CHARS} characters`,
      );
    } else if (token.length < DETACHED_TOKEN_MIN_CHARS) {
      report(
        path,
        `the token in ${name} has ${token.length} characters; allowed: at least ${DETACHED_TOKEN_MIN_CHARS}`,
      );
    }
  }
}

function checkPorts({ raw }: CheckInput, report: Report): void {
  const continuations = block(raw, "continuations");
  const terminal = block(raw, "terminal");
  const both = continuations.enabled !== false && terminal.enabled !== false;
  const port = terminal.port ?? DEFAULT_TERMINAL_PORT;
  if (both && port === (continuations.port ?? DEFAULT_CONTINUATION_PORT)) {
    report(
      ["terminal", "port"],
      `${String(port)} is the port of the continuation service too; they must differ`,
    );
  }
}

/** Also of continuations that are off: their state is there for when they are on again. */
function checkPlaces({ raw, cwd, configPath }: CheckInput, report: Report): void {
  const { stateDir } = BLOCKS.continuations.unwrap().shape;
  const continuations = fieldOf(stateDir, block(raw, "continuations").stateDir);
  const host = fieldOf(BLOCKS.host.unwrap().shape.stateDir, block(raw, "host").stateDir);
  const workspace = fieldOf(BLOCKS.runtime.shape.workspace, block(raw, "runtime").workspace);
  const identity = fieldOf(BLOCKS.context.shape.identityPath, block(raw, "context").identityPath);
  const servers = fieldOf(BLOCKS.tools.unwrap().shape.mcpConfigPath, block(raw, "tools").mcpConfigPath);
  // Without both there is nothing to compare with, and the schema says what is wrong.
  if (continuations === undefined || host === undefined) return;
  const named = [
    { key: ["continuations", "stateDir"], from: cwd, path: continuations },
    { key: ["host", "stateDir"], from: cwd, path: host },
    { key: ["runtime", "workspace"], from: cwd, path: workspace },
    { key: ["context", "identityPath"], from: cwd, path: identity },
    { key: ["tools", "mcpConfigPath"], from: resolve(cwd, workspace ?? "."), path: servers },
    { key: [], from: cwd, path: configPath },
  ];
  const paths = named.flatMap(({ key, from, path }) =>
    path === undefined ? [] : [{ key, absolute: resolve(from, path) }],
  );
  const places = { hostDir: resolve(cwd, host), stateDir: resolve(cwd, continuations) };
  for (const { key, message } of misplaced(paths, places)) report(key, message);
}

/** An unknown zone falls back to the system's (host-facts.md §3), but not silently. */
function zoneWarnings({ raw }: CheckInput): string[] {
  const session = block(block(raw, "runtime"), "session");
  const zone = session.rolloverTimezone;
  if (typeof zone !== "string" || isTimeZone(zone)) return [];
  return [`runtime.session.rolloverTimezone: no such time zone; the system's is used`];
}

/** Whether the runtime knows this IANA time zone. */
export function isTimeZone(zone: string): boolean {
  try {
    new Intl.DateTimeFormat("en", { timeZone: zone });
    return true;
  } catch {
    return false;
  }
}

/** A field by its own schema; undefined when it is refused (the schema of the whole reports that). */
function fieldOf<T>(
  schema: { safeParse(value: unknown): { success: true; data: T } | { success: false } },
  value: JsonValue | undefined,
): T | undefined {
  const parsed = schema.safeParse(value);
  return parsed.success ? parsed.data : undefined;
}

function block(raw: JsonObject, key: string): JsonObject {
  const value = raw[key];
  return isJsonObject(value) ? value : {};
}
