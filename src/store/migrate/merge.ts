import { StoreError } from "../../core/errors.ts";
import { canonicalJson } from "../../core/json.ts";
import { type ContinuationRecord, isSettled } from "../../core/record.ts";

/** Whether two versions of a record say the same, whatever the order of their keys. */
export function sameRecord(left: ContinuationRecord, right: ContinuationRecord): boolean {
  return left === right || canonicalJson(left) === canonicalJson(right);
}

/**
 * Whether `compacted` is what the older runtime's retention makes of the settled record `full`: it lost its payload,
 * and its text where that is not kept, and got the date. An older runtime killed between writing v2 records and
 * removing the v1 file leaves both (store-format.md §10). Any other difference is a conflict.
 */
export function isCompactedForm(full: ContinuationRecord, compacted: ContinuationRecord): boolean {
  if (!isSettled(full) || compacted.compactedAt === undefined || compacted.resultPayload !== undefined) {
    return false;
  }
  if (full.compactedAt !== undefined && full.compactedAt !== compacted.compactedAt) return false;
  const textKept = compacted.synthesizedText !== undefined;
  if (textKept && compacted.synthesizedText !== full.synthesizedText) return false;
  return canonicalJson(withoutRetained(full)) === canonicalJson(withoutRetained(compacted));
}

function withoutRetained(record: ContinuationRecord): Omit<ContinuationRecord, "resultPayload"> {
  const { resultPayload: _payload, synthesizedText: _text, compactedAt: _date, ...rest } = record;
  return rest;
}

export function conflict(older: string, newer: string, id: string): StoreError {
  return new StoreError(
    "store_migration_conflict",
    `continuation ${id} is in ${older} and in ${newer} with different content; migration never guesses which one is right: move one of the two away, or restore the directory from a backup`,
  );
}
