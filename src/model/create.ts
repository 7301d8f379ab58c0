import type { Model } from "../core/ports/model.ts";
import type { Logger } from "../core/ports/platform.ts";
import { createDemoModel } from "./demo.ts";
import { type ModelProvider, resolveModel } from "./resolve.ts";
import { createVendorModel, type FetchLike } from "./vendor.ts";

export type { ModelProvider } from "./resolve.ts";

export interface ModelOptions {
  /** `<provider>:<model>` as configured. */
  readonly name: string;
  readonly providers: readonly ModelProvider[];
  /** Stands in for the real fetch, in tests. */
  readonly fetch?: FetchLike;
  readonly logger: Logger;
}

/**
 * The model that a configuration names. Nothing is loaded and nothing is sent before the first call.
 *
 * @throws ModelError `model_unconfigured` when the provider, its base URL or its key is missing.
 */
export function createModel(options: ModelOptions): Model {
  const resolved = resolveModel(options.name, options.providers);
  if (resolved.kind === "demo") return createDemoModel(options.name);
  return createVendorModel({
    name: options.name,
    resolved,
    fetch: options.fetch ?? fetch,
    logger: options.logger,
  });
}
