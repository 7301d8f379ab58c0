import { resolve } from "node:path";
import { ConfigError, type ConfigProblem } from "../core/errors.ts";
import { isJsonObject, type JsonObject } from "../core/json.ts";
import { type ContinuationLimits, DEFAULT_MAX_STEPS, type RetentionLimits } from "../core/limits.ts";
import type { McpServerSpec } from "../core/mcp-servers.ts";
import type { ContinuationMode } from "../core/record.ts";
import { crossCheck, isTimeZone } from "./cross-checks.ts";
import { type Environment, overlayEnvironment } from "./environment.ts";
import { JsoncError, parseJsonc } from "./jsonc.ts";
import { allowedWords, problemsText, type SourceOf, schemaProblems, unknownKey } from "./problems.ts";
import { BLOCKS, type ConfigFile, configSchema, type EFFORTS, FOREIGN_BLOCKS } from "./schema.ts";
import { type ConfigSecrets, createSecrets } from "./secrets.ts";
import { CONFIG_FILE_MAX_BYTES, readTextFile } from "./text-file.ts";

/**
 * Owns: reading mono-agent.config.json, mcp.json, the identity file and the environment once, into one frozen value.
 *
 * I1. All problems are reported at once.
 * I2. No secret is an enumerable part of the value: keys and tokens are behind `secrets`, mcp.json in a Map.
 * I3. Paths are absolute. They are relative to the agent folder (cwd), and mcpConfigPath to the workspace.
 */

export const CONFIG_FILE_NAME = "mono-agent.config.json";

export interface NamedRoute {
  readonly mode: Exclude<ContinuationMode, "reply">;
  /** Present unless the mode is silent. */
  readonly conversationId?: string | undefined;
}

export interface ContinuationsConfig {
  readonly host: string;
  readonly port: number;
  readonly stateDir: string;
  readonly limits: ContinuationLimits;
  readonly retention: RetentionLimits;
  readonly namedRoutes: Readonly<Record<string, NamedRoute>>;
  readonly detachedServices: readonly { readonly name: string; readonly tokenEnv: string }[];
}

export type Effort = (typeof EFFORTS)[number];

export interface ModelFacts {
  readonly id: string;
  /** Size of its context window; absent: nobody told. */
  readonly contextTokens?: number | undefined;
  readonly images?: boolean | undefined;
  readonly documents?: boolean | undefined;
  /** Only of local models: every answer begins with reasoning that ends with `</think>`. */
  readonly thinksFirst?: boolean | undefined;
}

export interface LocalProvider {
  readonly id: string;
  readonly type: "ollama" | "lmstudio" | "openai_compat";
  /** Absent: the usual local address of the type (only openai_compat has none). */
  readonly baseUrl?: string | undefined;
  readonly apiKeyEnv?: string | undefined;
  /** Its key stands in the configuration file, which works but is advised against. */
  readonly keyInFile?: true;
  /** Absent: every model of the server may be named. */
  readonly models?: readonly ModelFacts[] | undefined;
}

export interface HostedProvider {
  readonly apiKeyEnv: string;
  readonly baseUrl?: string | undefined;
  /** What differs from what is assumed; other models may be named too. */
  readonly models?: readonly ModelFacts[] | undefined;
}

export interface LoadedConfig {
  /** Absolute path of the file that was read. */
  readonly configPath: string;
  readonly agent: { readonly name?: string | undefined };
  readonly runtime: {
    /** `<provider>:<model>`. */
    readonly model: string;
    /** Asked in order when the model fails. */
    readonly fallbacks: readonly {
      readonly model: string;
      readonly effort?: Effort | undefined;
      /** Calls for one request. */
      readonly attempts: number;
    }[];
    readonly retry: {
      readonly primaryAttempts: number;
      readonly backoffMs: number;
      readonly maxBackoffMs: number;
    };
    /** Absent: the provider's default. */
    readonly effort?: Effort | undefined;
    /** A model call without a sign of life for so long has failed. */
    readonly modelCallTimeoutMs: number;
    readonly modelCallMaxTotalTimeoutMs: number;
    /** Model calls in one turn, at least 1. */
    readonly maxTurns: number;
    readonly workspace: string;
    readonly session: {
      readonly rollover: "none" | "daily";
      /** A zone that the runtime knows; absent: the system's. */
      readonly rolloverTimezone?: string | undefined;
    };
  };
  /** `identity` is the content of the file. */
  readonly context: { readonly identityPath: string; readonly identity: string };
  readonly concurrency: { readonly maxConcurrentRuns: number };
  readonly tools: {
    readonly mcpConfigPath?: string | undefined;
    /** Empty when continuations are disabled: then no server receives authority. */
    readonly continuationServers: readonly string[];
    /** Stdio servers that are told for which run they work. */
    readonly mcpRequestContextServers: readonly string[];
    readonly mcpCallTimeoutMs: number;
    readonly mcpCallMaxTotalTimeoutMs: number;
  };
  readonly mcpServers: ReadonlyMap<string, McpServerSpec>;
  readonly providers: {
    readonly local: readonly LocalProvider[];
    readonly anthropic: HostedProvider;
    readonly openai: HostedProvider & { readonly api: "responses" | "chat" };
    readonly google: HostedProvider;
  };
  /** Undefined when the service is off: no block and no selected server, or `enabled: false`. */
  readonly continuations: ContinuationsConfig | undefined;
  /** It is off because of `continuations.enabled: false`, not because nothing asks for it. */
  readonly continuationsDisabled: boolean;
  readonly terminal: {
    readonly enabled: boolean;
    readonly host: string;
    readonly port: number;
    /** Names of the conversations that are admitted; absent: all. */
    readonly allow?: readonly string[] | undefined;
  };
  /** `backupBeforeMigration`: the host backs its state up before it converts an older format. */
  readonly host: { readonly stateDir: string; readonly backupBeforeMigration: boolean };
  readonly secrets: ConfigSecrets;
  /** What was ignored or replaced, a sentence each. */
  readonly warnings: readonly string[];
}

export interface LoadOptions {
  /** The agent folder. */
  readonly cwd: string;
  /** Default: mono-agent.config.json in the agent folder. */
  readonly configPath?: string | undefined;
  readonly env: Environment;
  /**
   * True where no model is called and no service is served: an operator's shell need not hold the API keys and
   * detached tokens that the host's has. Default false: a missing one is a problem.
   */
  readonly secretsOptional?: boolean;
  /**
   * Which servers of mcp.json must find the variables that they refer to; one that lacks any and is not needed is left
   * out. Default: all, or none with `secretsOptional`.
   */
  readonly isServerNeeded?: (server: string) => boolean;
  /** True where no server of mcp.json is looked at: the file is not read, and its problems hold nothing up. */
  readonly withoutServers?: boolean;
  /** How this program is called, for a command that a message advises. Default: mono-agent. */
  readonly program?: string;
}

/** Reads the configuration. Throws `ConfigError`: `config_missing`, or `config_invalid` with every problem. */
export function loadConfig(options: LoadOptions): LoadedConfig {
  const cwd = resolve(options.cwd);
  const configPath = resolve(cwd, options.configPath ?? CONFIG_FILE_NAME);
  const file = readConfigFile(configPath, {
    isDefault: options.configPath === undefined,
    program: options.program ?? "mono-agent",
  });
  const { ours, warnings, problems } = splitBlocks(file, configPath);
  const overlaid = overlayEnvironment(ours, options.env);
  const raw = overlaid.value;
  const sourceOf: SourceOf = (path) => overlaid.variableAt(path) ?? configPath;

  const parsed = configSchema.safeParse(raw);
  const secretsOptional = options.secretsOptional ?? false;
  const isServerNeeded = options.isServerNeeded ?? (() => !secretsOptional);
  const withoutServers = options.withoutServers ?? false;
  const { env } = options;
  const checked = crossCheck({
    raw,
    cwd,
    configPath,
    env,
    sourceOf,
    secretsOptional,
    isServerNeeded,
    withoutServers,
  });
  if (!parsed.success)
    problems.push(...schemaProblems(parsed.error, raw, allowedWords(configSchema), sourceOf));
  problems.push(...checked.problems);
  if (!parsed.success || problems.length > 0) throw invalid(problems);

  const { $schema: _, continuations: declared, ...blocks } = parsed.data;
  const continuations = activeContinuations(parsed.data, cwd);
  const workspace = resolve(cwd, blocks.runtime.workspace);
  const zone = blocks.runtime.session.rolloverTimezone;
  const { anthropic, openai, google, local } = blocks.providers;
  const apiKeyNames = [anthropic.apiKeyEnv, openai.apiKeyEnv, google.apiKeyEnv];
  return deepFreeze({
    ...blocks,
    configPath,
    runtime: {
      ...blocks.runtime,
      maxTurns: blocks.runtime.maxTurns === 0 ? DEFAULT_MAX_STEPS : blocks.runtime.maxTurns,
      workspace,
      session: {
        ...blocks.runtime.session,
        rolloverTimezone: zone !== undefined && isTimeZone(zone) ? zone : undefined,
      },
    },
    context: { identityPath: resolve(cwd, blocks.context.identityPath), identity: checked.identity },
    tools: {
      ...blocks.tools,
      mcpConfigPath:
        blocks.tools.mcpConfigPath === undefined ? undefined : resolve(workspace, blocks.tools.mcpConfigPath),
      continuationServers: continuations === undefined ? [] : [...new Set(blocks.tools.continuationServers)],
    },
    mcpServers: checked.mcpServers,
    providers: { anthropic, openai, google, local: local.map(withoutSecret) },
    continuations,
    continuationsDisabled: declared?.enabled === false,
    host: { ...blocks.host, stateDir: resolve(cwd, blocks.host.stateDir) },
    secrets: createSecrets(
      options.env,
      apiKeyNames,
      local,
      continuations === undefined ? [] : (declared?.detachedServices ?? []),
    ),
    warnings: [...warnings, ...checked.warnings],
  });
}

function readConfigFile(
  configPath: string,
  { isDefault, program }: { isDefault: boolean; program: string },
): JsonObject {
  const file = readTextFile(configPath, CONFIG_FILE_MAX_BYTES);
  if (file.kind === "missing") {
    throw new ConfigError(
      "config_missing",
      isDefault
        ? `there is no configuration at ${configPath}; write a first one with \`${program} init\``
        : `there is no configuration at ${configPath}`,
    );
  }
  const unusable = (message: string) => invalid([{ source: configPath, path: "", message }]);
  if (file.kind === "unreadable") throw unusable(file.reason);
  try {
    const raw = parseJsonc(file.text);
    if (isJsonObject(raw)) return raw;
    throw unusable("must be an object");
  } catch (error) {
    if (error instanceof JsoncError) throw unusable(`is not JSON: ${error.message}`);
    throw error;
  }
}

/** Sorts the top-level keys: ours, those of other hosts (a warning each), and unknown ones (a problem each). */
function splitBlocks(file: JsonObject, configPath: string) {
  const ours: JsonObject = {};
  const warnings: string[] = [];
  const problems: ConfigProblem[] = [];
  for (const [key, value] of Object.entries(file)) {
    if (Object.hasOwn(BLOCKS, key)) ours[key] = value;
    else if (FOREIGN_BLOCKS.has(key)) warnings.push(`${key}: this host has no such block; it is ignored`);
    else {
      const message = unknownKey(key, Object.keys(BLOCKS), [...FOREIGN_BLOCKS]);
      problems.push({ source: configPath, path: key, message });
    }
  }
  return { ours, warnings, problems };
}

type LocalBlock = ConfigFile["providers"]["local"][number];

function withoutSecret({ apiKey, models, ...local }: LocalBlock): LocalProvider {
  return {
    ...local,
    ...(apiKey === undefined ? {} : { keyInFile: true as const }),
    ...(models === undefined
      ? {}
      : { models: models.map((model) => (typeof model === "string" ? { id: model } : model)) }),
  };
}

/** The service is on when the block is there or a server is selected; `enabled: false` turns all of it off. */
function activeContinuations(config: ConfigFile, cwd: string): ContinuationsConfig | undefined {
  if (config.continuations === undefined && config.tools.continuationServers.length === 0) return undefined;
  const { enabled, ...settings } = config.continuations ?? BLOCKS.continuations.unwrap().parse({});
  return enabled ? { ...settings, stateDir: resolve(cwd, settings.stateDir) } : undefined;
}

function invalid(problems: readonly ConfigProblem[]): ConfigError {
  return new ConfigError("config_invalid", problemsText(problems), { problems });
}

function deepFreeze<T extends object>(value: T): T {
  for (const member of Object.values(value)) {
    if (typeof member === "object" && member !== null && !Object.isFrozen(member)) deepFreeze(member);
  }
  return Object.freeze(value);
}
