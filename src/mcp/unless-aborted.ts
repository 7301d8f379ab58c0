/** What `work` gives, or a rejection with `reason()` as soon as the signal fires; `work` itself goes on unheeded. */
export async function unlessAborted<T>(
  work: Promise<T>,
  signal: AbortSignal,
  reason: () => unknown,
): Promise<T> {
  const aborted = Promise.withResolvers<never>();
  const onAbort = () => aborted.reject(reason());
  if (signal.aborted) onAbort();
  signal.addEventListener("abort", onAbort, { once: true });
  try {
    return await Promise.race([work, aborted.promise]);
  } finally {
    signal.removeEventListener("abort", onAbort);
  }
}

/**
 * Gives `work` a signal that fires with any of these, but not after its end: the protocol's library would tell the
 * server that a request is cancelled which it has answered long since.
 */
export async function untilDone<T>(
  signals: readonly AbortSignal[],
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const under = new AbortController();
  const any = AbortSignal.any([...signals]);
  const onAbort = () => under.abort(any.reason);
  if (any.aborted) onAbort();
  any.addEventListener("abort", onAbort, { once: true });
  try {
    return await work(under.signal);
  } finally {
    any.removeEventListener("abort", onAbort);
  }
}
