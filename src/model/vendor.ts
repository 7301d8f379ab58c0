import { isLoopbackUrl } from "../core/mcp-servers.ts";
import type { Model, ModelMessage, ModelRequest, ModelResult } from "../core/ports/model.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";
import { boundedBody, eventStreamOnly } from "./answer-body.ts";
import { type CallLimits, type CallWatch, watchCall } from "./call-watch.ts";
import { type FittedInput, fitToWindow } from "./context-window.ts";
import { modelFailure, toModelError } from "./failures.ts";
import { checkInputs, inputsOf, withoutToolImages } from "./inputs.ts";
import {
  type Effort,
  type FetchLike,
  loadVendorModel,
  type VendorLanguageModel,
  type VendorResolved,
  vendorEffort,
  vendorOptions,
} from "./vendor-load.ts";
import { vendorMessages } from "./vendor-messages.ts";
import { readAnswer } from "./vendor-stream.ts";

/**
 * Owns: one call of a real provider through the `ai` library. Does not own: retries and other models (`fallbacks.ts`),
 * running tools, history.
 *
 * I1. One HTTP request per call (Google's API may ask for a second that goes on with the same answer), and it ends with
 *     the call, however that ends.
 * I2. What the model can't take (an image, a request beyond its window) is refused before anything is sent.
 */

export interface VendorModelOptions {
  readonly name: string;
  readonly resolved: VendorResolved;
  readonly effort: Effort | undefined;
  readonly limits: CallLimits;
  readonly fetch: FetchLike;
  readonly clock: Clock;
  readonly logger: Logger;
}

/** A model behind a provider's API. The libraries are loaded by the first call. */
export function createVendorModel(options: VendorModelOptions): Model {
  const { name, resolved, effort, clock, logger } = options;
  const inputs = inputsOf(resolved);
  return {
    name,
    async call(asked) {
      checkInputs(asked, inputs, name);
      const request = inputs.toolImages ? asked : { ...asked, messages: withoutToolImages(asked.messages) };
      const fitted = fitToWindow(request, inputs.contextTokens, name);
      const watch = watchCall(clock, options.limits, request.signal, name);
      const exchange: { status: number | undefined } = { status: undefined };
      try {
        const send = observed(options.fetch, watch, {
          model: name,
          now: () => clock.now(),
          onStatus(status) {
            // A request that was accepted once stays accepted, whatever follows.
            if ((exchange.status ?? 300) >= 300) exchange.status = status;
          },
        });
        const vendorModel = await loadVendorModel(resolved, send);
        const result = await stream(vendorModel, request, fitted, watch.signal);
        logger.debug("model call finished", {
          model: name,
          stopReason: result.stopReason,
          inputTokens: result.inputTokens,
          outputTokens: result.outputTokens,
          leftOut: request.messages.length - fitted.messages.length,
        });
        return result;
      } catch (error) {
        if (request.signal.aborted) throw modelFailure("aborted", name);
        throw watch.expired() ?? toModelError(error, name, { ...exchange, nowMs: clock.now() });
      } finally {
        watch.end();
      }
    },
  };

  async function stream(
    model: VendorLanguageModel,
    request: ModelRequest,
    fitted: FittedInput,
    signal: AbortSignal,
  ): Promise<ModelResult> {
    const { jsonSchema, streamText, tool } = await import("ai");
    // The library prints warnings to the console unless this is false; we print through our logger only.
    Object.assign(globalThis, { AI_SDK_LOG_WARNINGS: false });
    signal.throwIfAborted();
    const tools = Object.fromEntries(
      request.tools.map((each) => [
        each.name,
        tool({ description: each.description, inputSchema: jsonSchema(each.inputSchema) }),
      ]),
    );
    const providerOptions = vendorOptions(resolved);
    const thinks = resolved.kind !== "anthropic" || ownTurn(request.messages, name);
    const reasoning = effort === undefined || !thinks ? undefined : vendorEffort(effort, resolved);
    const answer = streamText({
      model,
      ...(request.system === "" ? {} : { instructions: request.system }),
      messages: vendorMessages(fitted.messages, name),
      ...(request.tools.length === 0 ? {} : { tools }),
      ...(reasoning === undefined ? {} : { reasoning }),
      ...(providerOptions === undefined ? {} : { providerOptions }),
      abortSignal: signal,
      maxRetries: 0,
      // The default prints the error, with the request in it, to the console.
      onError: () => {},
    });
    const isLocal = resolved.kind === "openai_compat";
    const result = await readAnswer(answer.stream, request, name, {
      splitThinking: isLocal,
      thinksFirst: isLocal && resolved.facts?.thinksFirst === true,
    });
    const { inputTokens } = result;
    return inputTokens === undefined
      ? result
      : { ...result, measured: { bytes: fitted.bytes, tokens: inputTokens } };
  }
}

/**
 * Whether this model said all that was said since the last user message. Anthropic refuses to think in the middle of a
 * turn whose tool calls begin without its own thinking, as after a change to a fallback model.
 */
function ownTurn(messages: readonly ModelMessage[], name: string): boolean {
  const present = messages.findLastIndex((message) => message.role === "user");
  return messages
    .slice(present + 1)
    .every((message) => message.role !== "assistant" || message.reply?.model === name);
}

/** The fetch of one call: it says what status came and when bytes come. */
function observed(
  send: FetchLike,
  watch: CallWatch,
  { model, now, onStatus }: { model: string; now: () => number; onStatus: (status: number) => void },
): FetchLike {
  return async (input, init) => {
    const url = input instanceof Request ? input.url : String(input);
    // A local server is reached directly: a proxy from the environment would neither find it nor may see it.
    const direct = isLoopbackUrl(url) ? { proxy: false as const } : {};
    // Bun would end a silent call after 5 minutes; how long one may be silent is said by the call's limits alone.
    const unlimited = { timeout: false as const };
    // A redirect would take key and conversation to an address that nobody configured.
    const response = await send(input, { ...init, ...direct, ...unlimited, redirect: "manual" });
    onStatus(response.status);
    watch.touch();
    if (response.body === null) {
      if (response.ok) throw modelFailure("broken_off", model);
      return response;
    }
    const { status, statusText, headers } = response;
    const touch = () => watch.touch();
    const through = response.ok ? eventStreamOnly({ model, now, touch }) : boundedBody({ touch });
    const body = response.body.pipeThrough(through);
    return new Response(body, { status, statusText, headers });
  };
}
