import { type ContinuationRecord, isSettled, isTerminal } from "./record.ts";

/**
 * Owns: what a record keeps once no work is left for it (store-format.md §8), as pure functions.
 * Does not own: which records lie beyond the configured limits; the store knows the order of all of them.
 */

/** Why a settled record still holds its text; undefined for one that holds none, or that is not settled. */
export type HeldText = "captured" | "dead_letter";

/** A dead letter of any mode keeps its text for an operator's retry, and a captured answer is its record's text. */
export function heldText(
  record: Pick<ContinuationRecord, "mode" | "state" | "synthesizedText">,
): HeldText | undefined {
  if (!isSettled(record) || record.synthesizedText === undefined) return undefined;
  if (record.state === "dead_lettered") return "dead_letter";
  return record.mode === "capture" ? "captured" : undefined;
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
    settled && record.synthesizedText !== undefined && !(options.keepText && heldText(record) !== undefined);
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
