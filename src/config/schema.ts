import { z } from "zod";
import { isJsonObject } from "../core/json.ts";
import {
  BESIDE_OTHER_PROBLEMS,
  DAY_MS,
  FIELD_MAX_CHARS,
  limitsSchema,
  MINUTE_MS,
  MODEL_BACKOFF_MS,
  MODEL_CALL_MAX_TOTAL_TIMEOUT_MS,
  MODEL_CALL_TIMEOUT_MS,
  MODEL_MAX_ATTEMPTS,
  MODEL_MAX_BACKOFF_MS,
  MODEL_MAX_FALLBACKS,
  MODEL_PRIMARY_ATTEMPTS,
  retentionSchema,
  SECOND_MS,
} from "../core/limits.ts";
import { serverNameSchema } from "../core/mcp-servers.ts";
import { isTerminalName } from "../core/terminal.ts";

/**
 * Owns: the one definition of mono-agent.config.json: keys, defaults, bounds (host-facts.md §1, seed-000).
 * Does not own: rules that need another file or the environment (`cross-checks.ts`).
 *
 * `.describe()` is what an error message says is allowed, and the description in the JSON Schema.
 */

export const DEFAULT_CONTINUATION_PORT = 4319;
export const DEFAULT_TERMINAL_PORT = 4320;
/** As the providers' own documentation names them. */
export const DEFAULT_ANTHROPIC_KEY_ENV = "ANTHROPIC_API_KEY";
export const DEFAULT_OPENAI_KEY_ENV = "OPENAI_API_KEY";
export const DEFAULT_GOOGLE_KEY_ENV = "GEMINI_API_KEY";
export const LOOPBACK_HOSTS = ["localhost", "127.0.0.1", "::1"] as const;
/** Providers that are part of the binary; a local one may not take these names. */
export const BUILT_IN_PROVIDERS = ["demo", "anthropic", "openai", "openai_chat", "google"] as const;
export const EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"] as const;
/** The first two have a usual address, so they need no entry; all three may be named by type when it is unambiguous. */
export const LOCAL_PROVIDER_TYPES = ["ollama", "lmstudio", "openai_compat"] as const;

const NAME_MAX_CHARS = 128;
const PATH_MAX_CHARS = 4096;
const MAX_STEPS_LIMIT = 1000;
const MAX_RUNS_LIMIT = 256;
const DEFAULT_RUNS = 4;
const MIN_CONTEXT_TOKENS = 1_024;
const MAX_CONTEXT_TOKENS = 100_000_000;
const API_KEY_MAX_CHARS = 4096;

const path = z.string().min(1).max(PATH_MAX_CHARS).describe("a path");
const host = z.enum(LOOPBACK_HOSTS);
const port = z.int().min(1).max(65_535);
const duration = z.int().min(1).max(DAY_MS);
const conversationId = z
  .string()
  .min(1)
  .max(FIELD_MAX_CHARS)
  .describe("a conversation id, such as slack:C1:T1");
const terminalConversation = z
  .string()
  .refine(isTerminalName, "is no name of a terminal conversation")
  .describe("the name of a terminal conversation: 1 to 64 letters, digits, ., _ and -");
const printable = (max: number, what: string) =>
  z
    .string()
    .min(1)
    .max(max)
    .regex(/^\P{Cc}*$/u)
    .describe(`${what} of 1 to ${max} characters without control characters`);
const envName = z
  .string()
  .regex(/^[A-Z_][A-Z0-9_]*$/)
  .describe("the name of an environment variable in upper case (the name, never the secret itself)");
const serverName = serverNameSchema.describe("a server name of letters, digits, _ and -");
const httpUrl = z
  .url({ protocol: /^https?$/ })
  .refine((value) => !URL.canParse(value) || new URL(value).username === "", "must not carry credentials")
  .describe("an http or https URL without credentials");

const attempts = z.int().min(1).max(MODEL_MAX_ATTEMPTS);
const modelName = z
  .string()
  .regex(/^[A-Za-z0-9][A-Za-z0-9_-]*:\P{Cc}+$/u)
  .describe("<provider>:<model>, such as demo:assistant or anthropic:claude-sonnet-4-5");
/** A model's name at its provider. */
const modelId = printable(FIELD_MAX_CHARS, "a model name");
const facts = {
  id: modelId,
  contextTokens: z.int().min(MIN_CONTEXT_TOKENS).max(MAX_CONTEXT_TOKENS).optional(),
  images: z.boolean().optional(),
  documents: z.boolean().optional(),
} as const;
const modelFacts = z.strictObject(facts).describe("{id, contextTokens?, images?, documents?}");
const LOCAL_FACTS = "{id, contextTokens?, images?, documents?, thinksFirst?}";
const localModel = z.union([
  modelId,
  z.strictObject({ ...facts, thinksFirst: z.boolean().optional() }).describe(LOCAL_FACTS),
]);

const localProvider = z
  .strictObject({
    id: z
      .string()
      .regex(/^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/)
      .refine(
        (id) => !(BUILT_IN_PROVIDERS as readonly string[]).includes(id),
        "is the name of a built-in provider",
      )
      .describe(`a provider name of letters, digits, _ and -, other than ${BUILT_IN_PROVIDERS.join(", ")}`),
    type: z.enum(LOCAL_PROVIDER_TYPES),
    baseUrl: httpUrl.optional(),
    apiKeyEnv: envName.optional(),
    /** Advised against: it is used, with a warning. */
    apiKey: z.string().trim().min(1).max(API_KEY_MAX_CHARS).optional().describe("a secret; better apiKeyEnv"),
    models: z.array(localModel.describe(`a model name, or ${LOCAL_FACTS}`)).optional(),
  })
  .superRefine((local, context) => {
    if (local.apiKey !== undefined && local.apiKeyEnv !== undefined) {
      context.addIssue({ code: "custom", path: ["apiKey"], message: "stands beside apiKeyEnv; keep that" });
    }
    if (local.type !== "openai_compat" || local.baseUrl !== undefined) return;
    context.addIssue({ code: "custom", path: ["baseUrl"], message: "is required for type openai_compat" });
  }, BESIDE_OTHER_PROBLEMS);

const ROUTE_MODES = ["notify_if_actionable", "capture", "silent"] as const;

const namedRoute = z
  .strictObject({
    mode: z.enum(ROUTE_MODES),
    conversationId: conversationId.optional(),
  })
  .superRefine((route, context) => {
    if (!ROUTE_MODES.some((mode) => mode === route.mode)) return;
    const needed = route.mode !== "silent";
    if (needed === (route.conversationId !== undefined)) return;
    const message = needed ? `is required for mode ${route.mode}` : "is forbidden for mode silent";
    context.addIssue({ code: "custom", path: ["conversationId"], message });
  }, BESIDE_OTHER_PROBLEMS);

/** The rule that no two entries of a list have the same name under `key`. */
const unique =
  <K extends string>(key: K) =>
  (entries: readonly Partial<Record<K, unknown>>[], context: z.RefinementCtx) => {
    // Beside another problem it may be no list.
    if (!Array.isArray(entries)) return;
    const names = entries.map((entry) => (isJsonObject(entry) ? entry[key] : undefined));
    for (const [index, name] of names.entries()) {
      if (typeof name !== "string" || names.indexOf(name) === index) continue;
      context.addIssue({ code: "custom", path: [index, key], message: "is there twice" });
    }
  };

/** Corrections of what is assumed of a hosted provider's models. Unlike a local list it forbids no other model. */
const hostedModels = z.array(modelFacts).superRefine(unique("id"), BESIDE_OTHER_PROBLEMS).optional();

export const serviceName = printable(NAME_MAX_CHARS, "a service name");
export const detachedServicesSchema = z
  .array(z.strictObject({ name: serviceName, tokenEnv: envName }))
  .superRefine(unique("name"), BESIDE_OTHER_PROBLEMS)
  .default([]);

export const BLOCKS = {
  $schema: z.string().optional(),
  agent: z.strictObject({ name: printable(80, "a name").optional() }).prefault({}),
  runtime: z.strictObject({
    model: modelName,
    fallbacks: z
      .array(
        z.strictObject({
          model: modelName,
          effort: z.enum(EFFORTS).optional(),
          attempts: attempts.default(1),
        }),
      )
      .max(MODEL_MAX_FALLBACKS)
      .default([]),
    retry: z
      .strictObject({
        primaryAttempts: attempts.default(MODEL_PRIMARY_ATTEMPTS),
        backoffMs: duration.default(MODEL_BACKOFF_MS),
        maxBackoffMs: duration.default(MODEL_MAX_BACKOFF_MS),
      })
      .prefault({}),
    effort: z.enum(EFFORTS).optional(),
    modelCallTimeoutMs: duration.default(MODEL_CALL_TIMEOUT_MS),
    modelCallMaxTotalTimeoutMs: duration.default(MODEL_CALL_MAX_TOTAL_TIMEOUT_MS),
    maxTurns: z
      .int()
      .min(0)
      .max(MAX_STEPS_LIMIT)
      .default(0)
      .describe(`a number of model calls in one turn up to ${MAX_STEPS_LIMIT}; 0 is the default limit`),
    workspace: path.default("."),
    session: z
      .strictObject({
        rollover: z.enum(["none", "daily"]).default("none"),
        rolloverTimezone: z.string().min(1).max(FIELD_MAX_CHARS).optional().describe("an IANA time zone"),
      })
      .prefault({}),
  }),
  context: z.strictObject({ identityPath: path }),
  concurrency: z
    .strictObject({ maxConcurrentRuns: z.int().min(1).max(MAX_RUNS_LIMIT).default(DEFAULT_RUNS) })
    .prefault({}),
  tools: z
    .strictObject({
      mcpConfigPath: path.optional(),
      continuationServers: z.array(serverName).default([]),
      mcpRequestContextServers: z.array(serverName).default([]),
      mcpCallTimeoutMs: duration.default(120 * SECOND_MS),
      mcpCallMaxTotalTimeoutMs: duration.default(45 * MINUTE_MS),
    })
    .prefault({}),
  providers: z
    .strictObject({
      local: z.array(localProvider).superRefine(unique("id"), BESIDE_OTHER_PROBLEMS).default([]),
      anthropic: z
        .strictObject({
          apiKeyEnv: envName.default(DEFAULT_ANTHROPIC_KEY_ENV),
          baseUrl: httpUrl.optional(),
          models: hostedModels,
        })
        .prefault({}),
      openai: z
        .strictObject({
          apiKeyEnv: envName.default(DEFAULT_OPENAI_KEY_ENV),
          baseUrl: httpUrl.optional(),
          models: hostedModels,
          api: z.enum(["responses", "chat"]).default("responses"),
        })
        .prefault({}),
      google: z
        .strictObject({
          apiKeyEnv: envName.default(DEFAULT_GOOGLE_KEY_ENV),
          baseUrl: httpUrl.optional(),
          models: hostedModels,
        })
        .prefault({}),
    })
    .prefault({}),
  continuations: z
    .strictObject({
      enabled: z.boolean().default(true),
      host: host.default("127.0.0.1"),
      port: port.default(DEFAULT_CONTINUATION_PORT),
      stateDir: path.default(".mono-agent/continuations"),
      limits: limitsSchema.prefault({}),
      retention: retentionSchema.prefault({}),
      namedRoutes: z.record(printable(NAME_MAX_CHARS, "a route name"), namedRoute).default({}),
      detachedServices: detachedServicesSchema,
    })
    .optional(),
  terminal: z
    .strictObject({
      enabled: z.boolean().default(true),
      host: host.default("127.0.0.1"),
      port: port.default(DEFAULT_TERMINAL_PORT),
      allow: z.array(terminalConversation).optional(),
    })
    .prefault({}),
  host: z
    .strictObject({
      stateDir: path.default(".mono-agent"),
      backupBeforeMigration: z.boolean().default(true).describe("true or false"),
    })
    .prefault({}),
} as const;

export const configSchema = z.strictObject(BLOCKS);
export type ConfigFile = z.output<typeof configSchema>;

/** Blocks of other hosts (host-facts.md §1) that this one does not have: a warning each, never an error. */
export const FOREIGN_BLOCKS: ReadonlySet<string> = new Set([
  "subagents",
  "memory",
  "sandbox",
  "artifacts",
  "traceability",
  "observability",
  "processJobs",
  "monitors",
  "interaction",
  "channels",
  "cron",
  "webhook",
  "slack",
  "telegram",
  "openaiApi",
  "tui",
]);
