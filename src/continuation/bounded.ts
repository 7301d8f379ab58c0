import type { Clock } from "../core/ports/platform.ts";

export type Bounded<T> =
  | { readonly kind: "value"; readonly value: T }
  | { readonly kind: "threw"; readonly error: unknown }
  | { readonly kind: "timed_out" }
  | { readonly kind: "stopped" };

/**
 * Races work against its time limit and the stop signal. The work gets a signal that aborts at either; whether or
 * not it obeys, the race ends, so one stuck provider never holds others. A late outcome is dropped.
 */
export function bounded<T>(
  clock: Clock,
  timeoutMs: number,
  stop: AbortSignal,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<Bounded<T>> {
  return new Promise((resolve) => {
    const controller = new AbortController();
    const end = (outcome: Bounded<T>) => {
      cancelTimer();
      stop.removeEventListener("abort", onStop);
      resolve(outcome);
      if (outcome.kind === "timed_out" || outcome.kind === "stopped") controller.abort();
    };
    const onStop = () => end({ kind: "stopped" });
    const cancelTimer = clock.timer(timeoutMs, () => end({ kind: "timed_out" }));
    if (stop.aborted) return onStop();
    stop.addEventListener("abort", onStop, { once: true });
    const run = async () => work(controller.signal);
    run().then(
      (value) => end({ kind: "value", value }),
      (error: unknown) => end({ kind: "threw", error }),
    );
  });
}
