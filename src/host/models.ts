import type { LoadedConfig } from "../config/load.ts";
import type { Model } from "../core/ports/model.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";
import {
  createModel,
  type ModelFacts,
  type ModelOptions,
  type ModelProvider,
  modelAddress,
} from "../model/create.ts";

/**
 * The configured model with its retries and fallbacks. Throws `ModelError` `model_unconfigured` when a provider or a
 * key is missing.
 */
export function configuredModel(config: LoadedConfig, deps: { clock: Clock; logger: Logger }): Model {
  const { model, effort, fallbacks, retry } = config.runtime;
  return createModel({
    ...modelBasis(config),
    ...deps,
    ...choice(model, effort, retry.primaryAttempts),
    fallbacks: fallbacks.map((each) => choice(each.model, each.effort, each.attempts)),
    backoff: { backoffMs: retry.backoffMs, maxBackoffMs: retry.maxBackoffMs },
  });
}

/**
 * One model by its name with the configured providers, asked once: no retry and no fallback hides what it does. An
 * image is sent to it whatever the configuration says that it takes, so that the answer shows it.
 *
 * @throws ModelError `model_unconfigured` when its provider or key is missing.
 */
export function singleModel(
  config: LoadedConfig,
  name: string,
  deps: Pick<ModelOptions, "clock" | "logger" | "fetch">,
): Model {
  const { model, effort, fallbacks } = config.runtime;
  const own = name === model ? effort : fallbacks.find((each) => each.model === name)?.effort;
  const basis = modelBasis(config);
  const id = name.slice(name.indexOf(":") + 1);
  // A local server at its usual address has no entry; without one nothing could be said of its model.
  const usual = (["ollama", "lmstudio"] as const)
    .filter((type) => !basis.providers.some((each) => each.id === type || each.type === type))
    .map((type): ModelProvider => ({ id: type, type }));
  const providers = [...basis.providers, ...usual].map((provider) => {
    const facts = provider.models?.find((each) => each.id === id);
    return { ...provider, models: [{ ...facts, id, images: true }] };
  });
  return createModel({ ...basis, ...deps, providers, ...choice(name, own, 1) });
}

/**
 * Where the model of this name is asked; undefined for the demo model.
 *
 * @throws ModelError `model_unconfigured` when its provider or key is missing.
 */
export function addressOf(config: LoadedConfig, name: string): string | undefined {
  return modelAddress(name, modelBasis(config).providers);
}

/** Whether a turn may send images to this model, as far as the configuration tells. */
export function takesImages(config: LoadedConfig, name: string): boolean {
  const [provider = "", ...model] = name.split(":");
  const { anthropic, openai, google, local } = config.providers;
  const hosted = new Map([
    ["anthropic", anthropic],
    ["openai", openai],
    ["openai_chat", openai],
    ["google", google],
  ]).get(provider);
  const { models } = hosted ?? local.find((each) => each.id === provider || each.type === provider) ?? {};
  return models?.find(({ id }) => id === model.join(":"))?.images ?? hosted !== undefined;
}

function choice(name: string, effort: LoadedConfig["runtime"]["effort"], attempts: number) {
  return { name, attempts, ...(effort === undefined ? {} : { effort }) };
}

function modelBasis({ runtime, providers, secrets }: LoadedConfig) {
  const { anthropic, openai, google, local } = providers;
  const entries: ModelProvider[] = [
    { id: "anthropic", type: "anthropic", ...given(anthropic, secrets.apiKey(anthropic.apiKeyEnv)) },
    { id: "openai", type: "openai", api: openai.api, ...given(openai, secrets.apiKey(openai.apiKeyEnv)) },
    { id: "google", type: "google", ...given(google, secrets.apiKey(google.apiKeyEnv)) },
    ...local.map((each) => ({ id: each.id, type: each.type, ...given(each, secrets.localApiKey(each.id)) })),
  ];
  const limits = {
    inactivityMs: runtime.modelCallTimeoutMs,
    totalMs: runtime.modelCallMaxTotalTimeoutMs,
  };
  return { providers: entries, limits };
}

type Entry = Pick<LoadedConfig["providers"]["local"][number], "baseUrl" | "models">;

function given({ baseUrl, models = [] }: Entry, apiKey: string | undefined) {
  return {
    models: models.map(factsOf),
    ...(baseUrl === undefined ? {} : { baseUrl }),
    ...(apiKey === undefined ? {} : { apiKey }),
  };
}

function factsOf(facts: NonNullable<Entry["models"]>[number]): ModelFacts {
  const { id, contextTokens, images, documents, thinksFirst } = facts;
  return {
    id,
    ...(contextTokens === undefined ? {} : { contextTokens }),
    ...(images === undefined ? {} : { images }),
    ...(documents === undefined ? {} : { documents }),
    ...(thinksFirst === undefined ? {} : { thinksFirst }),
  };
}
