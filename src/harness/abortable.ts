/**
 * The outcome of `work`, or a rejection with the signal's reason as soon as it aborts: a model or tool that ignores
 * its signal can't hold a turn. What `work` does later is dropped.
 */
export function abortable<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise<T>((resolve, reject) => {
    const onAbort = () => reject(signal.reason);
    const settle =
      <V>(then: (value: V) => void) =>
      (value: V) => {
        signal.removeEventListener("abort", onAbort);
        then(value);
      };
    work.then(settle(resolve), settle(reject));
    if (signal.aborted) onAbort();
    else signal.addEventListener("abort", onAbort, { once: true });
  });
}
