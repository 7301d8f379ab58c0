import type { Environment } from "./environment.ts";

/** Secret values that the configuration names. They live in a closure, so no dump of the configuration shows them. */
export interface ConfigSecrets {
  /** Value of the variable that a provider's `apiKeyEnv` names; undefined when it is not set. */
  apiKey(apiKeyEnv: string): string | undefined;
  /** Key of a local provider: from its variable, or from the file where it stands there against advice. */
  localApiKey(providerId: string): string | undefined;
  /** Bearer of a detached service, trimmed; undefined for a name that is not configured. */
  detachedToken(serviceName: string): string | undefined;
}

export const DETACHED_TOKEN_MIN_CHARS = 16;

export function createSecrets(
  env: Environment,
  apiKeyNames: readonly string[],
  locals: readonly {
    readonly id: string;
    readonly apiKeyEnv?: string | undefined;
    readonly apiKey?: string | undefined;
  }[],
  detachedServices: readonly { readonly name: string; readonly tokenEnv: string }[],
): ConfigSecrets {
  const keys = new Map(apiKeyNames.map((name) => [name, secretValue(env, name)]));
  const localKeys = new Map(
    locals.map(({ id, apiKeyEnv, apiKey }) => [
      id,
      apiKeyEnv === undefined ? apiKey : secretValue(env, apiKeyEnv),
    ]),
  );
  const tokens = new Map(detachedServices.map(({ name, tokenEnv }) => [name, secretValue(env, tokenEnv)]));
  return {
    apiKey: (name) => keys.get(name),
    localApiKey: (id) => localKeys.get(id),
    detachedToken: (name) => tokens.get(name),
  };
}

/** A secret from the environment, trimmed; an empty one counts as not set. */
export function secretValue(env: Environment, name: string): string | undefined {
  const value = env[name]?.trim();
  return value === "" ? undefined : value;
}
