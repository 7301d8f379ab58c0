import { ModelError } from "../core/errors.ts";

/** Default base URLs of local servers, as their documentation gives them (OpenAI-compatible endpoints). */
export const OLLAMA_BASE_URL = "http://127.0.0.1:11434/v1";
export const LMSTUDIO_BASE_URL = "http://127.0.0.1:1234/v1";

/** A provider as configured. Keys are already resolved from their environment variables. */
export interface ModelProvider {
  /** The `<provider>` of `<provider>:<model>`. */
  readonly id: string;
  readonly type: "anthropic" | "ollama" | "lmstudio" | "openai_compat";
  /** Required for openai_compat. For ollama and lmstudio, a URL without a path gets `/v1`. */
  readonly baseUrl?: string;
  readonly apiKey?: string;
}

export type ResolvedModel =
  | { readonly kind: "demo" }
  | { readonly kind: "anthropic"; readonly model: string; readonly apiKey: string; readonly baseUrl?: string }
  | {
      readonly kind: "openai_compat";
      readonly provider: string;
      readonly model: string;
      readonly baseUrl: string;
      readonly apiKey?: string;
    };

/**
 * What `<provider>:<model>` means: a configured provider's id first, then the built-in names `anthropic`, `ollama`,
 * `lmstudio`, `openai_compat` (the only configured provider of that type) and `demo`. The model part may hold colons.
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
    const known = [
      ...new Set([...providers.map((each) => each.id), "anthropic", "ollama", "lmstudio", "demo"]),
    ];
    throw unconfigured(`model "${name}": no provider "${id}" is configured (known: ${known.join(", ")})`);
  }
  if (provider.type === "anthropic") {
    if (provider.apiKey === undefined || provider.apiKey === "") {
      throw unconfigured(
        `model "${name}" needs an API key: set the environment variable that providers.anthropic.apiKeyEnv names (ANTHROPIC_API_KEY unless configured)`,
      );
    }
    return {
      kind: "anthropic",
      model,
      apiKey: provider.apiKey,
      ...(provider.baseUrl === undefined ? {} : { baseUrl: trimSlashes(provider.baseUrl) }),
    };
  }
  return {
    kind: "openai_compat",
    provider: id,
    model,
    baseUrl: baseUrlOf(provider, name),
    ...(provider.apiKey === undefined || provider.apiKey === "" ? {} : { apiKey: provider.apiKey }),
  };
}

function builtIn(id: string, providers: readonly ModelProvider[]): ModelProvider | undefined {
  if (id === "anthropic" || id === "ollama" || id === "lmstudio") {
    return providers.find((candidate) => candidate.type === id) ?? { id, type: id };
  }
  if (id !== "openai_compat") return undefined;
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
  return new ModelError("model_unconfigured", message);
}
