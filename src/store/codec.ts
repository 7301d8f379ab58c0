import { isUtf8 } from "node:buffer";
import type { z } from "zod";
import { StoreError } from "../core/errors.ts";
import { fileJson, isJsonObject, utf8Bytes } from "../core/json.ts";
import { RECORD_MAX_BYTES } from "../core/limits.ts";
import { type ContinuationRecord, recordSchema } from "../core/record.ts";
import { fitsRecord } from "../core/record-check.ts";

/**
 * Owns: bytes of a file to a checked value and back; the 2 MiB limit on the indented form of a record.
 * Does not own: which file it is and whether it may be read (core/secure-files.ts).
 *
 * I1. A parsed record is the object that JSON.parse gave, only checked: key order and unknown keys stay, so a
 *     payload hashes the same after any number of restarts.
 * I2. No input makes the reader throw anything but `StoreError` `store_corrupt` with the path in its message.
 */

export function corrupt(path: string, problem: string, cause?: unknown): StoreError {
  return new StoreError("store_corrupt", `${path} ${problem}`, { cause });
}

export function parseJson(path: string, data: Uint8Array): unknown {
  if (!isUtf8(data)) throw corrupt(path, "is not valid UTF-8");
  // A byte order mark stays in the text, where JSON.parse refuses it as the older runtimes do.
  const text = Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("utf8");
  try {
    return JSON.parse(text);
  } catch (error) {
    // The parser's own message quotes the input, which may be a payload.
    throw corrupt(path, `is not valid JSON (${error instanceof RangeError ? "too deep" : "syntax"})`);
  }
}

/** Checks a parsed value by its schema and returns the schema's output. */
export function checkValue<T>(path: string, schema: z.ZodType<T>, value: unknown): T {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  const issue = result.error.issues[0];
  throw corrupt(path, `is invalid at ${issue?.path.join(".") || "the top"}: ${issue?.message ?? "unknown"}`);
}

/**
 * Checks one record as read from disk, after adding what older versions lack (store-format.md §2). `rawBytes` is the
 * size of the text that it came from.
 */
export function checkRecord(path: string, value: unknown, rawBytes: number): ContinuationRecord {
  if (!isJsonObject(value)) throw corrupt(path, "does not hold a record");
  if (value.originContextState === undefined) {
    value.originContextState = value.historyBoundary === undefined ? "detached_latest" : "legacy_missing";
  }
  if (value.synthesisDeferrals === undefined) value.synthesisDeferrals = 0;
  // Indenting n bytes gives at most about n²/2, so a text of 2,000 bytes cannot pass 2 MiB.
  if (rawBytes > 2_000 && indentedBytes(value, RECORD_MAX_BYTES) > RECORD_MAX_BYTES) {
    throw corrupt(path, `holds a record of more than ${RECORD_MAX_BYTES} bytes in its indented form`);
  }
  if (fitsRecord(value)) return value as ContinuationRecord;
  const result = recordSchema.safeParse(value);
  if (!result.success) {
    const issue = result.error.issues[0];
    throw corrupt(
      path,
      `is invalid at ${issue?.path.join(".") || "the top"}: ${issue?.message ?? "unknown"}`,
    );
  }
  // The schema has no transforms, so what it accepted is what was parsed (I1).
  return value as ContinuationRecord;
}

/**
 * The file content of a record. Throws `record_too_large` when its indented form passes 2 MiB, also for payloads whose
 * nesting would make the indentation itself explode.
 */
export function encodeRecord(record: ContinuationRecord): string {
  requireShallow(record);
  const body = fileJson(record);
  requireFits(record, body);
  return body;
}

/** What stands around a member two lists deep, which is as deep as the records in a transaction file. */
const BEFORE_NESTED = "[\n  [\n    ";
const AFTER_NESTED = "\n  ]\n]";

/**
 * The record as it stands in a transaction file, without the indentation of its first line. Throws as `encodeRecord`.
 * Made in one piece: indenting a finished text once more would copy it, and each commit would leave that much garbage.
 */
export function encodeMember(record: ContinuationRecord): string {
  requireShallow(record);
  const text = JSON.stringify([[record]], null, 2).slice(BEFORE_NESTED.length, -AFTER_NESTED.length);
  if (text.length * 3 > RECORD_MAX_BYTES) requireFits(record, memberBody(text));
  return text;
}

/** The content of the record's own file, from its text in a transaction. A raw line break is always indentation. */
export function memberBody(text: string): string {
  return `${text.replaceAll("\n    ", "\n")}\n`;
}

function requireShallow(record: ContinuationRecord): void {
  const { resultPayload } = record;
  const nested = typeof resultPayload === "object" && resultPayload !== null;
  if (nested && indentedBytes(resultPayload, RECORD_MAX_BYTES) > RECORD_MAX_BYTES) throw tooLarge(record);
}

function requireFits(record: ContinuationRecord, body: string): void {
  // A string of n code units has at most 3n bytes, so the exact count is rarely needed.
  if (body.length * 3 > RECORD_MAX_BYTES && utf8Bytes(body) > RECORD_MAX_BYTES) throw tooLarge(record);
}

function tooLarge(record: ContinuationRecord): StoreError {
  return new StoreError(
    "record_too_large",
    `continuation ${record.continuationId} would pass ${RECORD_MAX_BYTES} bytes on disk`,
  );
}

/**
 * UTF-8 size of `fileJson(value)`, exact up to `limit`; beyond it some number above `limit`. Stops early, so neither
 * time nor recursion grows with what does not fit: each level costs at least two bytes more than the one around it.
 */
export function indentedBytes(value: unknown, limit: number): number {
  let bytes = 1;
  const walk = (node: unknown, depth: number): void => {
    if (bytes > limit) return;
    if (typeof node !== "object" || node === null) {
      bytes += utf8Bytes(JSON.stringify(node) ?? "null");
      return;
    }
    const members: [string | undefined, unknown][] = Array.isArray(node)
      ? node.map((item) => [undefined, item])
      : Object.entries(node).filter(([, member]) => member !== undefined);
    bytes += 2;
    if (members.length === 0) return;
    // Per member: line break, indentation and, between members, a comma; then the closing line.
    bytes += members.length * (2 + 2 * (depth + 1)) + 2 * depth;
    for (const [key, member] of members) {
      if (key !== undefined) bytes += utf8Bytes(JSON.stringify(key)) + 2;
      walk(member, depth + 1);
      if (bytes > limit) return;
    }
  };
  walk(value, 0);
  return bytes;
}
