import type { LoadedConfig } from "../config/load.ts";
import { AppError, ModelError } from "../core/errors.ts";
import { isJsonObject } from "../core/json.ts";
import type { Model, ModelMessage, ModelRequest, ModelResult, ToolDefinition } from "../core/ports/model.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";
import { addressOf, singleModel, takesImages } from "./models.ts";

/**
 * Owns: what a model can do, found out by asking it: one call for text and streaming, one for tools, one for images.
 *
 * I1. Each call is made once, without retries and fallbacks, and stores nothing.
 * I2. A line says what works and never what the model wrote: a report can be shown to anybody.
 */

export interface Finding {
  readonly works: boolean;
  /** For people: how fast, or why not. */
  readonly detail: string;
}

export interface ModelCheck {
  readonly model: string;
  /** Where it was asked, without what may be secret in an address. */
  readonly address?: string;
  /** The model answers and calls tools; the rest is a matter of taste. */
  readonly usable: boolean;
  readonly text: Finding;
  readonly streaming: Finding;
  readonly tools: Finding;
  readonly images: Finding;
  /** Milliseconds from the request to the first piece of text, and to its end. */
  readonly firstTextMs?: number;
  readonly totalMs?: number;
  readonly tokensPerSecond?: number;
}

export interface ModelCheckDeps {
  readonly clock: Clock;
  readonly logger: Logger;
  readonly signal: AbortSignal;
}

const SYSTEM = "You are being checked by a program. Do exactly what is asked.";
/** Long enough to come in several pieces. */
const TEXT_PROMPT = "Write the numbers from one to twenty as English words, separated by commas.";
const TOOL_NUMBER = 7;
const TOOL: ToolDefinition = {
  name: "report_number",
  description: "Takes one number.",
  inputSchema: {
    type: "object",
    properties: { number: { type: "integer" } },
    required: ["number"],
    additionalProperties: false,
  },
};
const TOOL_PROMPT = `Call report_number with {"number": ${TOOL_NUMBER}} and do nothing else.`;
const IMAGE_PROMPT = "Which colour fills this image? Answer with one English word.";
const IMAGE_COLOUR = /\bred\b/i;
/** A PNG of 64 × 64 red points. */
const RED_PNG =
  "iVBORw0KGgoAAAANSUhEUgAAAEAAAABACAIAAAAlC+aJAAAAT0lEQVR42u3PQQkAAAgEsAtx/ZMZxgi+hcEKLNO+FgEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQGBywKqxUDxqh7TUQAAAABJRU5ErkJggg==";

/** Every model that the configuration would ask, the primary one first, each once. */
export function configuredModelNames({ runtime }: LoadedConfig): string[] {
  return [...new Set([runtime.model, ...runtime.fallbacks.map(({ model }) => model)])];
}

/** Checks one model. Rejects only when the signal aborts; a failure of the model is a finding. */
export async function checkModel(
  config: LoadedConfig,
  name: string,
  deps: ModelCheckDeps,
): Promise<ModelCheck> {
  let model: Model;
  let address: string | undefined;
  try {
    address = addressOf(config, name);
    model = singleModel(config, name, deps);
  } catch (error) {
    const text = { works: false, detail: reason(error) };
    const skipped = { works: false, detail: "not tried" };
    return { model: name, usable: false, text, streaming: skipped, tools: skipped, images: skipped };
  }
  const text = await checkText(model, deps);
  // A model that gives no answer at all gives none to the other questions either.
  const skipped = { works: false, detail: "not tried, because there was no answer" };
  const tools = text.finding.works ? await checkTools(model, deps) : skipped;
  const images = text.finding.works ? await checkImages(model, takesImages(config, name), deps) : skipped;
  return {
    model: name,
    ...(address === undefined ? {} : { address }),
    usable: text.finding.works && tools.works,
    text: text.finding,
    streaming: text.streaming,
    tools,
    images,
    ...text.speed,
  };
}

type Asked =
  | { readonly ok: true; readonly result: ModelResult }
  | { readonly ok: false; readonly why: string };

async function ask(
  model: Model,
  { signal }: ModelCheckDeps,
  over: { content: ModelMessage } & Partial<Pick<ModelRequest, "tools" | "onText">>,
): Promise<Asked> {
  const { content, tools = [], onText = () => {} } = over;
  try {
    return {
      ok: true,
      result: await model.call({ system: SYSTEM, messages: [content], tools, signal, onText }),
    };
  } catch (error) {
    signal.throwIfAborted();
    return { ok: false, why: reason(error) };
  }
}

async function checkText(model: Model, deps: ModelCheckDeps) {
  const { clock } = deps;
  const startedAt = clock.now();
  let firstAt: number | undefined;
  let pieces = 0;
  const asked = await ask(model, deps, {
    content: { role: "user", content: TEXT_PROMPT },
    onText() {
      firstAt ??= clock.now();
      pieces += 1;
    },
  });
  const totalMs = clock.now() - startedAt;
  if (!asked.ok) {
    const failed = { works: false, detail: asked.why };
    return { finding: failed, streaming: { works: false, detail: "no answer" }, speed: {} };
  }
  const { result } = asked;
  const firstTextMs = (firstAt ?? startedAt + totalMs) - startedAt;
  const { outputTokens } = result;
  const tokensPerSecond =
    outputTokens === undefined || totalMs === 0 ? undefined : Math.round((outputTokens * 1000) / totalMs);
  const rate = tokensPerSecond === undefined ? "" : `, ${tokensPerSecond} tokens a second`;
  const answered = result.text.trim() !== "" && result.stopReason === "stop";
  return {
    finding: {
      works: answered,
      detail: answered
        ? `first text after ${firstTextMs} ms, all after ${totalMs} ms${rate}`
        : `no whole answer (it stopped with: ${result.stopReason})`,
    },
    streaming: {
      works: pieces > 1,
      detail: `the answer came in ${pieces === 1 ? "1 piece" : `${pieces} pieces`}`,
    },
    speed: { firstTextMs, totalMs, ...(tokensPerSecond === undefined ? {} : { tokensPerSecond }) },
  };
}

async function checkTools(model: Model, deps: ModelCheckDeps): Promise<Finding> {
  const startedAt = deps.clock.now();
  const asked = await ask(model, deps, { content: { role: "user", content: TOOL_PROMPT }, tools: [TOOL] });
  if (!asked.ok) return { works: false, detail: asked.why };
  const [call, ...more] = asked.result.toolCalls;
  if (call === undefined) return { works: false, detail: "it answered in words instead of calling the tool" };
  const right =
    call.name === TOOL.name &&
    isJsonObject(call.input) &&
    call.input.number === TOOL_NUMBER &&
    more.length === 0;
  return right
    ? { works: true, detail: `called as asked, after ${deps.clock.now() - startedAt} ms` }
    : { works: false, detail: "it called a tool, but not as it was asked to" };
}

async function checkImages(model: Model, offered: boolean, deps: ModelCheckDeps): Promise<Finding> {
  const data = new Uint8Array(Buffer.from(RED_PNG, "base64"));
  const asked = await ask(model, deps, {
    content: {
      role: "user",
      content: IMAGE_PROMPT,
      attachments: [{ kind: "image", mediaType: "image/png", name: "check.png", data }],
    },
  });
  if (!asked.ok) return { works: false, detail: asked.why };
  if (!IMAGE_COLOUR.test(asked.result.text)) return { works: false, detail: "it did not see the image" };
  return {
    works: true,
    detail: offered ? "seen" : "seen; say images: true for it in its provider's models to use that",
  };
}

function reason(error: unknown): string {
  if (error instanceof ModelError && error.remedy !== undefined) return `${error.message}; ${error.remedy}`;
  if (error instanceof AppError) return error.message;
  throw error;
}
