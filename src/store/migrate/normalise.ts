import { StoreError } from "../../core/errors.ts";
import { isJsonObject } from "../../core/json.ts";
import { RECORD_MAX_BYTES } from "../../core/limits.ts";
import type { ContinuationRecord } from "../../core/record.ts";
import { checkRecord, checkValue, corrupt, indentedBytes } from "../codec.ts";
import { legacyRecordSchema } from "./legacy-schema.ts";

/** Up to this many bytes of text, no indentation can bring a record to 2 MiB (see codec.ts). */
const SURELY_SMALL = 2_000;

/**
 * Checks a value as a record of an older format and makes it one of today's, in place: unknown keys and the order of
 * keys stay. `rawBytes` is the size of the text that it came from. Throws a `StoreError` that names `path` and the id.
 */
export function normaliseLegacy(path: string, value: unknown, rawBytes: number): ContinuationRecord {
  const id =
    isJsonObject(value) && typeof value.continuationId === "string" ? value.continuationId : undefined;
  const place = id === undefined ? path : `${path} (continuation ${id})`;
  checkValue(place, legacyRecordSchema, value);
  if (!isJsonObject(value)) throw corrupt(place, "does not hold a record");
  value.originContextState ??= value.historyBoundary === undefined ? "detached_latest" : "legacy_missing";
  value.synthesisDeferrals ??= 0;
  if (rawBytes > SURELY_SMALL && indentedBytes(value, RECORD_MAX_BYTES) > RECORD_MAX_BYTES) {
    throw new StoreError(
      "record_too_large",
      `${path}: continuation ${id} would pass ${RECORD_MAX_BYTES} bytes in the newer format; let the older runtime finish or cancel it first`,
    );
  }
  // The size is checked above, with a message of its own.
  return checkRecord(place, value, 0);
}
