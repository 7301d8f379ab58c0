import {
  MODEL_BACKOFF_MS,
  MODEL_CALL_MAX_TOTAL_TIMEOUT_MS,
  MODEL_CALL_TIMEOUT_MS,
  MODEL_MAX_BACKOFF_MS,
} from "../core/limits.ts";
import type { Model } from "../core/ports/model.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";
import type { CallLimits } from "./call-watch.ts";
import { createDemoModel } from "./demo.ts";
import { type Backoff, type Candidate, createFallbackModel } from "./fallbacks.ts";
import { type ModelProvider, resolveModel } from "./resolve.ts";
import { createVendorModel } from "./vendor.ts";
import type { Effort, FetchLike } from "./vendor-load.ts";

export { type ModelFacts, type ModelProvider, modelAddress } from "./resolve.ts";
export type { Effort } from "./vendor-load.ts";

export interface ModelChoice {
  /** `<provider>:<model>` as configured. */
  readonly name: string;
  /** Absent: the provider's default. */
  readonly effort?: Effort;
  /** Calls for one request; default 1. */
  readonly attempts?: number;
}

export interface ModelOptions extends ModelChoice {
  readonly providers: readonly ModelProvider[];
  /** Asked in order when the model fails. */
  readonly fallbacks?: readonly ModelChoice[];
  readonly backoff?: Backoff;
  readonly limits?: CallLimits;
  /** Stands in for the real fetch, in tests. */
  readonly fetch?: FetchLike;
  readonly clock: Clock;
  readonly logger: Logger;
}

/**
 * The model that a configuration names, with its retries and fallbacks. Nothing is loaded and nothing is sent before
 * the first call.
 *
 * @throws ModelError `model_unconfigured` when a provider, its base URL or its key is missing, for fallbacks too.
 */
export function createModel(options: ModelOptions): Model {
  const { clock, logger, providers, fallbacks = [] } = options;
  const limits = options.limits ?? {
    inactivityMs: MODEL_CALL_TIMEOUT_MS,
    totalMs: MODEL_CALL_MAX_TOTAL_TIMEOUT_MS,
  };
  const backoff = options.backoff ?? { backoffMs: MODEL_BACKOFF_MS, maxBackoffMs: MODEL_MAX_BACKOFF_MS };
  const send = options.fetch ?? fetch;

  const candidate = ({ name, effort, attempts = 1 }: ModelChoice): Candidate => {
    const resolved = resolveModel(name, providers);
    const model =
      resolved.kind === "demo"
        ? createDemoModel(name)
        : createVendorModel({ name, resolved, effort, limits, fetch: send, clock, logger });
    return { model, attempts };
  };
  return createFallbackModel({
    candidates: [candidate(options), ...fallbacks.map(candidate)],
    backoff,
    clock,
    logger,
  });
}
