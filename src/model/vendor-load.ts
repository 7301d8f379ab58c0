import type { LanguageModel } from "ai";
import type { JsonObject } from "../core/json.ts";
import type { ResolvedModel } from "./resolve.ts";

/** How hard a model should think (host-facts.md §1). */
export type Effort = "none" | "minimal" | "low" | "medium" | "high" | "xhigh" | "max" | "ultra";

export type FetchLike = (input: string | URL | Request, init?: RequestInit) => Promise<Response>;
export type VendorResolved = Exclude<ResolvedModel, { kind: "demo" }>;
export type VendorLanguageModel = Exclude<LanguageModel, string>;

/** The vendor library's own model. Its package is loaded here, by the first call. */
export async function loadVendorModel(
  resolved: VendorResolved,
  send: FetchLike,
): Promise<VendorLanguageModel> {
  // Bun's fetch type has a `preconnect` member that the libraries never call.
  const options = {
    fetch: Object.assign(send, { preconnect: fetch.preconnect }),
    baseURL: resolved.baseUrl,
  };
  switch (resolved.kind) {
    case "anthropic": {
      const { createAnthropic } = await import("@ai-sdk/anthropic");
      return createAnthropic({ ...options, apiKey: resolved.apiKey })(resolved.model);
    }
    case "openai_responses":
    case "openai_chat": {
      const { createOpenAI } = await import("@ai-sdk/openai");
      const provider = createOpenAI({ ...options, apiKey: resolved.apiKey });
      return resolved.kind === "openai_chat"
        ? provider.chat(resolved.model)
        : provider.responses(resolved.model);
    }
    case "google": {
      const { createGoogle } = await import("@ai-sdk/google");
      return createGoogle({ ...options, apiKey: resolved.apiKey })(resolved.model);
    }
    case "openai_compat": {
      const { createOpenAICompatible } = await import("@ai-sdk/openai-compatible");
      const provider = createOpenAICompatible({
        ...options,
        name: resolved.provider,
        includeUsage: true,
        ...(resolved.apiKey === undefined ? {} : { apiKey: resolved.apiKey }),
      });
      return provider(resolved.model);
    }
  }
}

/**
 * Options of a call that are one vendor's own. OpenAI keeps nothing of ours (`store: false`); what it would have kept
 * of its reasoning comes back encrypted, and goes with the next call of the turn. Summaries of reasoning, which the
 * library would ask for and many accounts may not have, are of no use here.
 */
export function vendorOptions({ kind }: VendorResolved): Record<string, JsonObject> | undefined {
  return kind === "openai_responses" ? { openai: { store: false, reasoningSummary: null } } : undefined;
}

type VendorEffort = Exclude<Effort, "ultra">;

/** Three levels and off: what the servers behind an OpenAI-compatible endpoint understand. */
const COMPATIBLE: Record<Effort, VendorEffort> = {
  none: "none",
  minimal: "low",
  low: "low",
  medium: "medium",
  high: "high",
  xhigh: "high",
  max: "high",
  ultra: "high",
};
/** OpenAI's o-series, which the vendor library does not know: it has three levels and can't be switched off. */
const O_SERIES: Record<Effort, VendorEffort> = { ...COMPATIBLE, none: "low" };

/**
 * The effort for a vendor; undefined: the model has none. `ultra` is no vendor's word: it is the highest that there is.
 * Anthropic, OpenAI and Google get the others as they are, and the vendor library takes the next lower level that the
 * model has (`none` where thinking can't be switched off: the lowest).
 */
export function vendorEffort(effort: Effort, { kind, model }: VendorResolved): VendorEffort | undefined {
  if (kind === "openai_compat") return COMPATIBLE[effort];
  if (kind === "openai_chat" || kind === "openai_responses") {
    if (/^o[0-9]/.test(model)) return O_SERIES[effort];
    if (/^(gpt-[34]|chatgpt-)/.test(model)) return undefined;
  }
  return effort === "ultra" ? "max" : effort;
}
