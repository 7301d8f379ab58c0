import type { LoadedConfig } from "../config/load.ts";
import type { Model } from "../core/ports/model.ts";
import type { Logger } from "../core/ports/platform.ts";
import { createModel, type ModelProvider } from "../model/create.ts";

/** The configured model. Throws `ModelError` `model_unconfigured` when its provider or key is missing. */
export function configuredModel(config: LoadedConfig, logger: Logger): Model {
  const keyOf = (name: string | undefined) => (name === undefined ? undefined : config.secrets.apiKey(name));
  const { anthropic, local } = config.providers;
  const providers: ModelProvider[] = [
    provider("anthropic", "anthropic", anthropic.baseUrl, keyOf(anthropic.apiKeyEnv)),
    ...local.map((each) => provider(each.id, each.type, each.baseUrl, keyOf(each.apiKeyEnv))),
  ];
  return createModel({ name: config.runtime.model, providers, logger });
}

function provider(
  id: string,
  type: ModelProvider["type"],
  baseUrl: string | undefined,
  apiKey: string | undefined,
): ModelProvider {
  return {
    id,
    type,
    ...(baseUrl === undefined ? {} : { baseUrl }),
    ...(apiKey === undefined ? {} : { apiKey }),
  };
}
