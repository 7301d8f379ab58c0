import { type ContinuationRecord, isSettled, isTerminal } from "./record.ts";

/**
 * Owns: what a record keeps once no work is left for it (store-format.md §8), as pure functions.
 * Does not own: which records lie beyond the configured limits; the store knows the order of all of them.
 */

/** Whether the kind of a settled record may keep its text at all: captured answers, and dead letters for a retry. */
export function mayKeepText(record: Pick<ContinuationRecord, "mode" | "state">): boolean {
  return record.mode === "capture" || record.state === "dead_lettered";
}

/**
 * Reduces a terminal record to what must remain; any other record comes back as it is.
 *
 * - Terminal: the snapshot reference goes and, where there was one, the context state becomes `scrubbed`; digest
 *   and message count stay.
 * - Settled (`delivery_unknown` is not): the payload goes; the text goes too unless `keepText` and the record is
 *   a captured answer or a dead letter; `compactedAt` is set to `nowIso` once.
 *
 * Idempotent: returns the same object when nothing is left to do.
 */
export function settleRecord(
  record: ContinuationRecord,
  nowIso: string,
  options: { keepText: boolean },
): ContinuationRecord {
  if (!isTerminal(record)) return record;
  const settled = isSettled(record);
  const scrub = record.originContextRef !== undefined;
  const dropText =
    settled && record.synthesizedText !== undefined && !(options.keepText && mayKeepText(record));
  const dropPayload = settled && record.resultPayload !== undefined;
  const stamp = settled && record.compactedAt === undefined;
  if (!scrub && !dropText && !dropPayload && !stamp) return record;

  const next = { ...record };
  if (scrub) {
    delete next.originContextRef;
    next.originContextState = "scrubbed";
  }
  if (dropPayload) delete next.resultPayload;
  if (dropText) delete next.synthesizedText;
  if (stamp) next.compactedAt = nowIso;
  return next;
}
