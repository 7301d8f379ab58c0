import { ERROR_TABLE, ModelError } from "../core/errors.ts";
import type { Model, ModelRequest, ModelResult } from "../core/ports/model.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";

/**
 * Owns: asking again and asking another model. Does not own: what a failure means (`failures.ts`).
 *
 * I1. Nothing is asked again once a text was streamed to somebody; tools run only after a call returned, so nothing was
 *     acted on either. A call that was aborted, or failed by a mistake in the program, is not asked again.
 * I2. The same model is asked again only after a failure of class "later", at most `attempts` times in all, and never
 *     before the time that its provider named.
 * I3. A request that must run at most once (a synthesis) is asked again, of this or another model, only when the
 *     failure proves that the model did not run (`ModelError.notRun`): no connection came about, or the provider
 *     refused the request with 429 or another 4xx. After a 5xx, a time-out or a stream that broke, the model may have
 *     run, and it is over. "Synthesis is at most once" (protocol.md) counts runs of a model, not HTTP requests.
 */

export interface Candidate {
  readonly model: Model;
  /** Calls of this model for one request, at least 1. */
  readonly attempts: number;
}

export interface Backoff {
  /** Before the second attempt; doubles with each further one. */
  readonly backoffMs: number;
  /** Longest wait; a provider that asks for more is not asked again for this request. */
  readonly maxBackoffMs: number;
}

export interface FallbackOptions {
  /** The primary model first, then the fallbacks in the order in which they are asked. */
  readonly candidates: readonly [Candidate, ...Candidate[]];
  readonly backoff: Backoff;
  readonly clock: Clock;
  readonly logger: Logger;
}

/** One model that stands for a primary one and its fallbacks. An answer of another one than asked first says so. */
export function createFallbackModel({ candidates, backoff, clock, logger }: FallbackOptions): Model {
  const [primary] = candidates;
  return {
    name: primary.model.name,
    async call(request) {
      let heard = false;
      let costUnknown = false;
      let first: ModelError | undefined;
      let last: ModelError | undefined;
      const asked: ModelRequest = {
        ...request,
        onText(delta) {
          heard = true;
          request.onText?.(delta);
        },
      };
      for (const { model, attempts } of startingWith(candidates, request.startWith)) {
        for (let attempt = 1; ; attempt += 1) {
          try {
            return told(await model.call(asked), model, first, costUnknown);
          } catch (error) {
            if (!(error instanceof ModelError) || heard || request.signal.aborted) throw error;
            const { code, message: reason } = error;
            logger.warn("a model call failed", { model: model.name, attempt, code, reason });
            if (request.atMostOnce && !error.notRun) throw error;
            costUnknown ||= !error.notRun;
            last = error;
            if (ERROR_TABLE[error.code].retry !== "later" || attempt >= attempts) break;
            const { retryAfterMs = 0 } = error;
            if (retryAfterMs > backoff.maxBackoffMs) break;
            await pause(waitMs(backoff, attempt, retryAfterMs), request.signal);
          }
        }
        first ??= last;
      }
      throw last;
    },
  };

  function pause(ms: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const done = () => {
        cancel();
        signal.removeEventListener("abort", done);
        resolve();
      };
      const cancel = clock.timer(ms, done);
      // The next attempt then finds the signal aborted and sends nothing.
      signal.addEventListener("abort", done, { once: true });
    });
  }
}

function startingWith(candidates: FallbackOptions["candidates"], name: string | undefined) {
  const at = candidates.findIndex(({ model }) => model.name === name);
  return at <= 0 ? candidates : [...candidates.slice(at), ...candidates.slice(0, at)];
}

function waitMs({ backoffMs, maxBackoffMs }: Backoff, attempt: number, retryAfterMs: number): number {
  return Math.min(maxBackoffMs, Math.max(backoffMs * 2 ** (attempt - 1), retryAfterMs));
}

function told(
  result: ModelResult,
  model: Model,
  first: ModelError | undefined,
  costUnknown: boolean,
): ModelResult {
  const notices = [
    ...(result.notices ?? []),
    ...(first === undefined ? [] : [`Answered by ${model.name}. ${first.message}.`]),
  ];
  return {
    ...result,
    answeredBy: model.name,
    ...(notices.length === 0 ? {} : { notices }),
    ...(costUnknown ? { usageComplete: false } : {}),
  };
}
