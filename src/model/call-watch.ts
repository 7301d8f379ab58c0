import type { ModelError } from "../core/errors.ts";
import type { Clock } from "../core/ports/platform.ts";
import { modelFailure } from "./failures.ts";

/** Time limits of one model call, in milliseconds. */
export interface CallLimits {
  /** Nothing came from the provider for so long. */
  readonly inactivityMs: number;
  /** The whole call, waiting and streaming. */
  readonly totalMs: number;
}

export interface CallWatch {
  /** Aborts with the caller's signal, when a limit passes, and at `end`: an HTTP request never outlives its call. */
  readonly signal: AbortSignal;
  /** Something came from the provider. */
  touch(): void;
  /** The limit that passed, as the error of the call. */
  expired(): ModelError | undefined;
  end(): void;
}

/** Watches one call. */
export function watchCall(clock: Clock, limits: CallLimits, signal: AbortSignal, model: string): CallWatch {
  const abort = new AbortController();
  let expired: ModelError | undefined;
  const expire = (kind: "silent" | "too_slow", ms: number) => () => {
    expired ??= modelFailure(kind, model, `limit ${ms} ms`);
    abort.abort(expired);
  };
  const onAbort = () => abort.abort(signal.reason);
  if (signal.aborted) onAbort();
  else signal.addEventListener("abort", onAbort, { once: true });
  const stopTotal = clock.timer(limits.totalMs, expire("too_slow", limits.totalMs));
  const startIdle = () => clock.timer(limits.inactivityMs, expire("silent", limits.inactivityMs));
  let stopIdle = startIdle();
  return {
    signal: abort.signal,
    touch() {
      stopIdle();
      stopIdle = startIdle();
    },
    expired: () => expired,
    end() {
      stopIdle();
      stopTotal();
      signal.removeEventListener("abort", onAbort);
      abort.abort();
    },
  };
}
