import { ModelError } from "../core/errors.ts";

/** Default base URLs of local servers, as their documentation gives them (OpenAI-compatible endpoints). */
export const OLLAMA_BASE_URL = "http://127.0.0.1:11434/v1";
export const LMSTUDIO_BASE_URL = "http://127.0.0.1:1234/v1";

/** Providers with an API of their own. */
export type HostedProviderType = "anthropic" | "openai" | "google";

/** What a provider's configuration tells about one of its models. */
export interface ModelFacts {
  readonly id: string;
  /** Size of the context window in tokens. */
  readonly contextTokens?: number;
  readonly images?: boolean;
  readonly documents?: boolean;
  /** Only for local servers: its answers begin with reasoning up to `</think>`, with or without the opening tag. */
  readonly thinksFirst?: boolean;
}

/** A provider as configured. Keys are already resolved from their environment variables. */
export interface ModelProvider {
  /** The `<provider>` of `<provider>:<model>`. */
  readonly id: string;
  readonly type: HostedProviderType | "ollama" | "lmstudio" | "openai_compat";
  /** Required for openai_compat. For ollama and lmstudio, a URL without a path gets `/v1`. */
  readonly baseUrl?: string;
  readonly apiKey?: string;
  /** Only for openai: which of its two interfaces `openai:<model>` means. Default: responses. */
  readonly api?: "responses" | "chat";
  readonly models?: readonly ModelFacts[];
}

export type ResolvedModel =
  | { readonly kind: "demo" }
  | {
      readonly kind: "anthropic" | "openai_responses" | "openai_chat" | "google";
      readonly model: string;
      readonly apiKey: string;
      readonly baseUrl: string;
      readonly facts?: ModelFacts;
    }
  | {
      readonly kind: "openai_compat";
      readonly provider: string;
      readonly model: string;
      readonly baseUrl: string;
      readonly apiKey?: string;
      readonly facts?: ModelFacts;
    };

/**
 * Where each hosted provider is and which key it needs. The address is always given to the library, so that a
 * variable of the environment (ANTHROPIC_BASE_URL, OPENAI_BASE_URL) can't redirect the key.
 */
const HOSTED = {
  anthropic: { baseUrl: "https://api.anthropic.com/v1", keyEnv: "ANTHROPIC_API_KEY" },
  openai: { baseUrl: "https://api.openai.com/v1", keyEnv: "OPENAI_API_KEY" },
  google: { baseUrl: "https://generativelanguage.googleapis.com/v1beta", keyEnv: "GEMINI_API_KEY" },
} as const satisfies Record<HostedProviderType, { baseUrl: string; keyEnv: string }>;

const BUILT_IN = ["anthropic", "openai", "openai_chat", "google", "ollama", "lmstudio", "demo"] as const;

/**
 * What `<provider>:<model>` means: a configured provider's id first, then the built-in names `anthropic`, `openai`
 * (responses), `openai_chat` (chat completions with the same key), `google`, `ollama`, `lmstudio`, `openai_compat`
 * (the only configured provider of that type) and `demo`. The model part may hold colons.
 *
 * @throws ModelError `model_unconfigured` naming what is missing.
 */
export function resolveModel(name: string, providers: readonly ModelProvider[]): ResolvedModel {
  const colon = name.indexOf(":");
  const id = name.slice(0, colon);
  const model = name.slice(colon + 1);
  if (colon < 1 || model === "") throw unconfigured(`model "${name}" is not of the form <provider>:<model>`);
  if (id === "demo") return { kind: "demo" };

  const provider = providers.find((candidate) => candidate.id === id) ?? builtIn(id, providers);
  if (provider === undefined) {
    const known = [...new Set([...providers.map((each) => each.id), ...BUILT_IN])];
    throw unconfigured(`model "${name}": no provider "${id}" is configured (known: ${known.join(", ")})`);
  }
  const { type, apiKey } = provider;
  const found = provider.models?.find((each) => each.id === model);
  const facts = found === undefined ? {} : { facts: found };
  if (type === "anthropic" || type === "openai" || type === "google") {
    const { baseUrl, keyEnv } = HOSTED[type];
    const variable = `the environment variable that providers.${type}.apiKeyEnv names (${keyEnv} unless configured)`;
    if (apiKey === undefined || apiKey === "") {
      throw unconfigured(`model "${name}" needs an API key: set ${variable}`);
    }
    if (!KEY_TEXT.test(apiKey)) throw unusableKey(name, variable, "a space");
    const chat = id === "openai_chat" || provider.api === "chat";
    const kind = type !== "openai" ? type : chat ? "openai_chat" : "openai_responses";
    return { kind, model, apiKey, baseUrl: trimSlashes(provider.baseUrl ?? baseUrl), ...facts };
  }
  if (apiKey !== undefined && apiKey !== "") {
    const where = `the key of "${provider.id}" in providers.local[]`;
    if (!HEADER_TEXT.test(apiKey)) throw unusableKey(name, where, "a tab");
  }
  return {
    kind: "openai_compat",
    provider: id,
    model,
    baseUrl: baseUrlOf(provider, name),
    ...(apiKey === undefined || apiKey === "" ? {} : { apiKey }),
    ...facts,
  };
}

/**
 * Where a model is asked, without what may be secret in an address; undefined for the demo model.
 *
 * @throws ModelError `model_unconfigured` as `resolveModel` does.
 */
export function modelAddress(name: string, providers: readonly ModelProvider[]): string | undefined {
  const resolved = resolveModel(name, providers);
  if (resolved.kind === "demo" || !URL.canParse(resolved.baseUrl)) return undefined;
  const { origin, pathname } = new URL(resolved.baseUrl);
  return `${origin}${pathname === "/" ? "" : pathname}`;
}

/** No key of a hosted provider holds other characters; a space comes from a paste of more than the key. */
const KEY_TEXT = /^[\x21-\x7e]+$/;
/** What goes into a header everywhere: a local server may take any words ("not needed") for its key. */
const HEADER_TEXT = /^[\x20-\x7e]+$/;

/** Said here, for what refuses a key later quotes the whole of it. */
function unusableKey(name: string, where: string, blank: string): ModelError {
  return unconfigured(
    `model "${name}" has no usable API key: ${where} holds a character that no key has (${blank}, a line break, an invisible or non-ASCII character)`,
  );
}

function builtIn(id: string, providers: readonly ModelProvider[]): ModelProvider | undefined {
  const type = id === "openai_chat" ? "openai" : id;
  switch (type) {
    case "anthropic":
    case "openai":
    case "google":
    case "ollama":
    case "lmstudio":
      return providers.find((candidate) => candidate.type === type) ?? { id, type };
    case "openai_compat":
      break;
    default:
      return undefined;
  }
  const candidates = providers.filter((candidate) => candidate.type === "openai_compat");
  if (candidates.length > 1) {
    const ids = candidates.map((candidate) => candidate.id).join(", ");
    throw unconfigured(`"openai_compat:" is ambiguous here: name one of the providers ${ids} instead`);
  }
  return candidates[0];
}

function baseUrlOf(provider: ModelProvider, name: string): string {
  if (provider.type === "openai_compat") {
    if (provider.baseUrl === undefined)
      throw unconfigured(`model "${name}" needs a baseUrl for its provider`);
    return trimSlashes(provider.baseUrl);
  }
  const fallback = provider.type === "ollama" ? OLLAMA_BASE_URL : LMSTUDIO_BASE_URL;
  const url = trimSlashes(provider.baseUrl ?? fallback);
  return URL.canParse(url) && new URL(url).pathname === "/" ? `${url}/v1` : url;
}

function trimSlashes(url: string): string {
  return url.replace(/\/+$/, "");
}

function unconfigured(message: string): ModelError {
  return new ModelError("model_unconfigured", message, { notRun: true });
}
