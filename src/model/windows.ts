import type { ResolvedModel } from "./resolve.ts";

/**
 * The context windows of the hosted providers' models in tokens, as their own pages list them
 * (platform.openai.com/docs/models, ai.google.dev/gemini-api/docs/models, docs.claude.com/en/docs/about-claude/models).
 * The first row that matches a name counts. A model that no row names gets its provider's last row, the smallest window
 * of the present general models: a larger one is used less than it could be, but not overrun. Where a page limits the
 * input by itself, that limit stands here.
 */
const ANTHROPIC = [[/^/, 200_000]] as const;
const OPENAI = [
  [/^gpt-3\.5-turbo/, 16_385],
  [/^gpt-4-(turbo|vision|1106|0125)/, 128_000],
  [/^gpt-4-32k/, 32_768],
  [/^gpt-4(-|$)/, 8_192],
  [/^gpt-4\.1/, 1_000_000],
  [/^o1-(mini|preview)/, 128_000],
  [/^o[134](-|$)/, 200_000],
  [/^gpt-5[^:]*-(chat|spark)/, 128_000],
  [/^gpt-5/, 272_000],
  [/^/, 128_000],
] as const;
const GOOGLE = [
  [/^gemini-2[^:]*-image/, 32_768],
  [/^gemini-[^:]*-image/, 65_536],
  [/^gemini-[^:]*-computer-use/, 128_000],
  [/^gemma-3(n|-1b)/, 32_768],
  [/^gemma/, 128_000],
  [/^/, 1_000_000],
] as const;

const WINDOWS = {
  anthropic: ANTHROPIC,
  openai_responses: OPENAI,
  openai_chat: OPENAI,
  google: GOOGLE,
} as const satisfies Partial<Record<ResolvedModel["kind"], readonly (readonly [RegExp, number])[]>>;

/** The window of a hosted model, unless the configuration tells another one. */
export function hostedWindow(kind: keyof typeof WINDOWS, model: string): number | undefined {
  // A tuned model (ft:<base>:<owner>::<id>) has the window of its base; Google lists its names as models/<name>.
  const name = model.replace(/^(ft:|models\/)/, "");
  return WINDOWS[kind].find(([pattern]) => pattern.test(name))?.[1];
}
