import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { StoreError } from "../../src/core/errors.ts";
import { fileJson } from "../../src/core/json.ts";
import { recordFileName } from "../../src/core/record.ts";
import { GUARD_CONTENT } from "../../src/core/store-files.ts";
import { createMemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { activationMarker, readMarker } from "../../src/store/activation.ts";
import { encodeRecord } from "../../src/store/codec.ts";
import { readGuard } from "../../src/store/guard.ts";
import { readRecordFile, readTransaction } from "../../src/store/inspect.ts";
import { readManifest } from "../../src/store/manifest.ts";
import { storePaths } from "../../src/store/paths.ts";
import { readSecret } from "../../src/store/secret.ts";
import { readSnapshot } from "../../src/store/snapshots.ts";
import { NOW, recordIn } from "../support/records.ts";
import { claim, GROUP, GROUP_KEY, openStore, STATE_DIR, snapshotOf } from "../support/store-harness.ts";

/**
 * Every reader against mutated valid files and arbitrary content: it accepts, or it throws a `StoreError` that names
 * the path. It never throws anything else, hangs, or changes a file; what it accepts says the same when written again.
 */

/** The first four are 100,000 together. */
const RUNS = { record: 45_000, transaction: 25_000, manifest: 15_000, marker: 15_000, other: 3_000 };
const SEED = Number(process.env.FUZZ_SEED ?? 20_261_130);

const paths = storePaths(STATE_DIR);
const ID = "fuzzed";
const recordFile = paths.record(ID);

async function valid() {
  const fs = createMemoryFileSystem();
  const store = await openStore({ fs });
  const stored = await store.snapshots.put(snapshotOf());
  if (!stored.ok) throw new Error("refused");
  const { ref } = stored.value;
  await store.commit({ puts: [claim("a")] });
  await store.close();
  const files = fs.files();
  return {
    ref,
    blob: files[paths.snapshot(ref.digest)] ?? "",
    secret: files[paths.secret] ?? "",
    manifest: JSON.parse(files[paths.manifest] ?? ""),
    marker: activationMarker(GROUP, ref.digest, ["a", "b"], NOW),
    transaction: {
      schemaVersion: 3,
      generation: "g",
      createdAt: NOW,
      writes: [claim("w-1"), recordIn("delivery_retry", { continuationId: "w-2" })],
      deletes: ["d-1", "d-2"],
    },
    record: recordIn("delivery_retry", {
      continuationId: ID,
      resultPayload: { "10": [1, { "9": null }], b: "\u2028\ud83d\ude00" },
      timeline: [{ at: NOW, what: "claimed" }],
      receipt: { kind: "delivered", deliveredAt: NOW, historyRecorded: false, historyErrorCode: "x" },
      originContextRef: ref,
    }),
  };
}
const files = await valid();

type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/** Values that tend to break readers. */
const AWKWARD = fc.constantFrom<Json>(
  null,
  true,
  -1,
  0.5,
  Number.MAX_VALUE,
  2 ** 53,
  "",
  "__proto__",
  "constructor",
  NOW,
  "9999999999-01-01",
  "a".repeat(64),
  "\ud800",
  [],
  {},
  [null],
  [[[[]]]],
);
const VALUE: fc.Arbitrary<Json> = fc.oneof(
  { weight: 3, arbitrary: AWKWARD },
  { weight: 1, arbitrary: fc.jsonValue() as fc.Arbitrary<Json> },
);
const KEY = fc.oneof(
  fc.constantFrom("__proto__", "toJSON", "length", "10", "9", "", "state", "limits", "extra"),
  fc.string({ maxLength: 6 }),
);

/** One change of a value somewhere inside; `at` picks the place. */
type Edit =
  | { kind: "set"; at: number; value: Json }
  | { kind: "drop"; at: number }
  | { kind: "add"; at: number; key: string; value: Json }
  | { kind: "swap"; at: number; with: number };
const AT = fc.nat({ max: 1000 });
const EDIT: fc.Arbitrary<Edit> = fc.oneof(
  fc.record({ kind: fc.constant("set" as const), at: AT, value: VALUE }),
  fc.record({ kind: fc.constant("drop" as const), at: AT }),
  fc.record({ kind: fc.constant("add" as const), at: AT, key: KEY, value: VALUE }),
  fc.record({ kind: fc.constant("swap" as const), at: AT, with: AT }),
);

interface Place {
  holder: Record<string, Json>;
  key: string;
}
function places(value: Json, found: Place[] = []): Place[] {
  if (typeof value !== "object" || value === null) return found;
  const holder = value as Record<string, Json>;
  for (const key of Object.keys(holder)) {
    found.push({ holder, key });
    places(holder[key] ?? null, found);
  }
  return found;
}
const put = (holder: Record<string, Json>, key: string, value: Json) =>
  Object.defineProperty(holder, key, { value, enumerable: true, configurable: true, writable: true });

function edited(base: unknown, edits: readonly Edit[]): string {
  const value = structuredClone(base) as Json;
  for (const edit of edits) {
    const all = places(value);
    const place = all[edit.at % all.length];
    if (place === undefined) break;
    const { holder, key } = place;
    if (edit.kind === "set") put(holder, key, edit.value);
    else if (edit.kind === "drop") delete holder[key];
    else if (edit.kind === "add" && !Array.isArray(holder)) put(holder, edit.key, edit.value);
    else if (edit.kind === "swap") {
      const other = all[edit.with % all.length];
      if (other !== undefined) put(holder, key, structuredClone(other.holder[other.key] ?? null));
    }
  }
  return fileJson(value);
}

/** Mostly files that are nearly right, some that are damaged bytes, some that are anything. */
function contentOf(base: unknown): fc.Arbitrary<Uint8Array> {
  const text = typeof base === "string" ? base : fileJson(base);
  const whole = Buffer.from(text, "utf8");
  const flips = fc.array(
    fc.record({ at: fc.nat({ max: whole.length - 1 }), bit: fc.integer({ min: 0, max: 7 }) }),
    { minLength: 1, maxLength: 3 },
  );
  const damaged = fc.oneof(
    flips.map((all) => {
      const copy = Buffer.from(whole);
      for (const { at, bit } of all) copy.writeUInt8((copy[at] ?? 0) ^ (1 << bit), at);
      return copy;
    }),
    fc.nat({ max: whole.length }).map((length) => whole.subarray(0, length)),
    fc
      .tuple(fc.nat({ max: whole.length }), fc.string({ unit: "binary", maxLength: 4 }))
      .map(([at, extra]) => Buffer.concat([whole.subarray(0, at), Buffer.from(extra), whole.subarray(at)])),
    fc.uint8Array({ maxLength: 40 }),
    fc.jsonValue().map((value) => Buffer.from(fileJson(value))),
  );
  if (typeof base === "string") return damaged;
  const edits = fc.array(EDIT, { minLength: 1, maxLength: 3 });
  return fc.oneof(
    { weight: 2, arbitrary: edits.map((all) => Buffer.from(edited(base, all))) },
    { weight: 1, arbitrary: damaged },
  );
}

/** Runs a reader over one file with each content; `accepted` judges what it returned. */
function fuzz(
  runs: number,
  file: string,
  content: fc.Arbitrary<Uint8Array>,
  read: (fs: ReturnType<typeof createMemoryFileSystem>) => unknown,
  accepted: (value: unknown, data: Uint8Array) => void = () => {},
): { accepted: number; refused: number; deep: number } {
  const seen = { accepted: 0, refused: 0, deep: 0 };
  const fs = createMemoryFileSystem();
  const real = fs.open;
  let data: Uint8Array = new Uint8Array();
  // The content is handed to the reader as bytes: a text in between would repair what is not UTF-8.
  fs.seed(file, "");
  const served = {
    ...fs,
    lstat: (path: string, label: string) => {
      const stat = fs.lstat(path, label);
      return stat === undefined || path !== file ? stat : { ...stat, size: data.length };
    },
    open: (path: string, label: string) => {
      const handle = real(path, label);
      if (handle === undefined || path !== file) return handle;
      return {
        ...handle,
        stat: () => ({ ...handle.stat(), size: data.length }),
        read: () => Buffer.from(data),
      };
    },
  };
  fc.assert(
    fc.property(content, (next) => {
      data = next;
      let value: unknown;
      try {
        value = read(served);
      } catch (error) {
        seen.refused += 1;
        if (!(error instanceof StoreError) || !error.message.includes(file)) throw error;
        // Past the bytes and the syntax: refused for what it says.
        if (!error.message.includes("is not valid")) seen.deep += 1;
        return;
      }
      seen.accepted += 1;
      accepted(value, next);
    }),
    { numRuns: runs, seed: SEED, endOnFailure: false },
  );
  expect(fs.counts.operations).toBe(0);
  return seen;
}

const text = (data: Uint8Array) => Buffer.from(data).toString("utf8");

describe("the reader of", () => {
  test("records accepts or refuses, and keeps unknown keys and their order", () => {
    const name = recordFileName(ID);
    const seen = fuzz(
      RUNS.record,
      recordFile,
      contentOf(files.record),
      (fs) => readRecordFile(fs, recordFile, name),
      (value, data) => {
        const parsed = JSON.parse(text(data));
        // What older versions lack is added at the end; everything else stays where it was.
        parsed.originContextState ??=
          parsed.historyBoundary === undefined ? "detached_latest" : "legacy_missing";
        parsed.synthesisDeferrals ??= 0;
        const body = encodeRecord(value as typeof files.record);
        if (body !== fileJson(parsed)) throw new Error(`written as ${body}`);
      },
    );
    expect(seen.accepted).toBeGreaterThan(RUNS.record / 20);
    expect(seen.refused).toBeGreaterThan(RUNS.record / 4);
    expect(seen.deep).toBeGreaterThan(RUNS.record / 2);
  }, 60_000);

  test("transactions accepts whole ones only, each id once", () => {
    const seen = fuzz(
      RUNS.transaction,
      paths.transaction,
      contentOf(files.transaction),
      (fs) => readTransaction(fs, paths),
      (value, data) => {
        const { writes, deletes } = value as ReturnType<typeof readTransaction> & object;
        const parsed = JSON.parse(text(data));
        expect(deletes).toEqual(parsed.deletes);
        expect(writes.length).toBe(parsed.writes.length);
        const ids = [...writes.map((record) => record.continuationId), ...deletes];
        expect(new Set(ids).size).toBe(ids.length);
      },
    );
    expect(seen.accepted).toBeGreaterThan(RUNS.transaction / 40);
    expect(seen.refused).toBeGreaterThan(RUNS.transaction / 4);
    expect(seen.deep).toBeGreaterThan(RUNS.transaction / 2);
  }, 60_000);

  test("the manifest accepts or refuses, and requires the guard unless the file says false", () => {
    const seen = fuzz(
      RUNS.manifest,
      paths.manifest,
      contentOf(files.manifest),
      (fs) => readManifest(fs, paths),
      (value, data) => {
        const own = JSON.parse(text(data));
        const says = Object.hasOwn(own, "rollbackGuardRequired") ? own.rollbackGuardRequired : true;
        expect((value as { rollbackGuardRequired: boolean }).rollbackGuardRequired).toBe(says);
      },
    );
    expect(seen.accepted).toBeGreaterThan(RUNS.manifest / 40);
    expect(seen.refused).toBeGreaterThan(RUNS.manifest / 4);
    expect(seen.deep).toBeGreaterThan(RUNS.manifest / 2);
  }, 60_000);

  test("markers accepts only the key of its own group", () => {
    const file = paths.marker(GROUP_KEY);
    const seen = fuzz(
      RUNS.marker,
      file,
      contentOf(files.marker),
      (fs) => readMarker(fs, paths, file),
      (value) => {
        expect((value as { marker: unknown }).marker).toMatchObject({ ...GROUP, groupKey: GROUP_KEY });
      },
    );
    expect(seen.accepted).toBeGreaterThan(RUNS.marker / 100);
    expect(seen.refused).toBeGreaterThan(RUNS.marker / 4);
    expect(seen.deep).toBeGreaterThan(RUNS.marker / 2);
  }, 60_000);

  test("the guard accepts one content and nothing else", () => {
    fuzz(
      RUNS.other,
      paths.guard,
      contentOf(GUARD_CONTENT),
      (fs) => readGuard(fs, paths),
      (_value, data) => expect(text(data)).toBe(GUARD_CONTENT),
    );
  });

  test("the secret calls anything else than 32 bytes invalid", () => {
    fuzz(
      RUNS.other,
      paths.secret,
      contentOf(files.secret),
      (fs) => readSecret(fs, paths),
      (value) => {
        const found = value as ReturnType<typeof readSecret>;
        if (found.kind === "valid") expect(found.secret.length).toBe(32);
      },
    );
  });

  test("snapshots never throws, and gives only what its digest says", () => {
    const file = paths.snapshot(files.ref.digest);
    const seen = { ok: 0, damaged: 0 };
    fuzz(
      RUNS.other,
      file,
      fc.oneof(contentOf(files.blob), contentOf(JSON.parse(files.blob))),
      (fs) => readSnapshot(fs, paths, files.ref),
      (value, data) => {
        const { ok } = value as { ok: boolean };
        seen[ok ? "ok" : "damaged"] += 1;
        if (ok) expect(text(data)).toBe(files.blob);
      },
    );
    expect(seen.damaged).toBeGreaterThan(RUNS.other / 2);
  });
});
