import { describe, expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import {
  claimIsAuthentic,
  detachedFingerprint,
  interactiveFingerprint,
  operatorToken,
  originBindingIsAuthentic,
  payloadHash,
  resultToken,
} from "../../src/core/derive.ts";
import { sha256Hex } from "../../src/core/digest.ts";
import { canonicalJson } from "../../src/core/json.ts";
import { type ContinuationRecord, recordFileName, recordSchema } from "../../src/core/record.ts";
import { snapshotDigest, snapshotJson, snapshotSchema } from "../../src/core/snapshot.ts";

const FIXTURE = join(import.meta.dir, "../fixtures/v3/all-states");
const SECRET = Buffer.from(readFileSync(join(FIXTURE, "continuation-secret"), "utf8").trim(), "base64url");
const RECORDS: ContinuationRecord[] = readdirSync(join(FIXTURE, "records-v3")).map((name) =>
  recordSchema.parse(JSON.parse(readFileSync(join(FIXTURE, "records-v3", name), "utf8"))),
);

describe("derived values agree with the records of the released runtime", () => {
  test("the record file name is the digest of the id", () => {
    const names = new Set(readdirSync(join(FIXTURE, "records-v3")));
    for (const record of RECORDS) expect(names.has(recordFileName(record.continuationId))).toBe(true);
    expect(RECORDS.length).toBe(29);
  });

  test("the stored hash is the hash of the result token", () => {
    for (const record of RECORDS) {
      expect(sha256Hex(resultToken(SECRET, record.continuationId, record.taskHash))).toBe(
        record.resultTokenHash,
      );
    }
  });

  test("claim fingerprints of both kinds are recomputed from the record", () => {
    for (const record of RECORDS) {
      const expected =
        record.routeName === undefined
          ? interactiveFingerprint({
              serverName: record.serverName,
              originRunId: record.originRunId,
              originConversationId: record.originConversationId,
              replyToConversationId: record.replyToConversationId,
              historyBoundary: record.historyBoundary ?? "",
              mode: record.mode,
            })
          : detachedFingerprint(
              record.serverName.slice("detached:".length),
              record.routeName,
              record.mode,
              record.replyToConversationId,
            );
      expect(record.claimFingerprint).toBe(expected);
      expect(claimIsAuthentic(record)).toBe(true);
    }
  });

  test("payload hashes follow canonical JSON", () => {
    const withPayload = RECORDS.filter((record) => record.resultPayload !== undefined);
    expect(withPayload.length).toBeGreaterThan(3);
    for (const record of withPayload) {
      expect(record.resultPayloadHash).toBe(payloadHash(record.resultPayload ?? null));
    }
  });

  test("snapshot digests are recomputed from the blob files, which are canonical JSON", () => {
    const folder = join(FIXTURE, "origin-context-v1");
    for (const name of readdirSync(folder)) {
      const content = readFileSync(join(folder, name), "utf8");
      const snapshot = snapshotSchema.parse(JSON.parse(content));
      expect(snapshotJson(snapshot)).toBe(content);
      expect(`${snapshotDigest(content)}.json`).toBe(name);
    }
  });

  test("snapshot bindings are authentic, and every changed field is found out", () => {
    const bound = RECORDS.filter((record) => record.originContextRef !== undefined);
    expect(bound.length).toBeGreaterThan(3);
    for (const record of bound) {
      expect(originBindingIsAuthentic(SECRET, record)).toBe(true);
      const changes: Partial<ContinuationRecord>[] = [
        { continuationId: "other" },
        { serverName: "other" },
        { originRunId: "other" },
        { originConversationId: "other" },
        { replyToConversationId: "other" },
        { mode: record.mode === "capture" ? "reply" : "capture" },
        { taskKey: "other" },
        { taskHash: "other" },
        { createdAt: "2020-01-01T00:00:00.000Z" },
        { deadline: "2020-01-01T00:00:00.000Z" },
        { claimFingerprint: "other" },
        { originContextMessageCount: 3 },
        { originContextFingerprint: "0".repeat(64) },
        { originContextBindingMac: "0".repeat(64) },
      ];
      for (const change of changes) {
        expect(originBindingIsAuthentic(SECRET, { ...record, ...change })).toBe(false);
      }
    }
  });
});

test("the operator token is a pure function of the secret", () => {
  expect(operatorToken(SECRET)).toBe(operatorToken(Buffer.from(SECRET)));
  expect(operatorToken(SECRET)).not.toBe(operatorToken(Buffer.alloc(32)));
});

describe("canonical JSON", () => {
  test("puts integer-like keys first in numeric order, as the format's example does", () => {
    expect(canonicalJson(JSON.parse('{"b":1,"10":2,"9":3,"a":{}}'))).toBe('{"9":3,"10":2,"a":{},"b":1}');
  });
  test("orders other keys by UTF-16 code unit at every level and keeps array order", () => {
    expect(canonicalJson({ é: 1, z: [{ b: 1, a: 2 }, 1], Z: 0 })).toBe('{"Z":0,"z":[{"a":2,"b":1},1],"é":1}');
  });
  test("writes negative zero as 0 and non-finite numbers as null", () => {
    expect(canonicalJson([-0, Number.NaN, Number.POSITIVE_INFINITY])).toBe("[0,null,null]");
  });
  test("keeps __proto__ as an ordinary key", () => {
    expect(canonicalJson(JSON.parse('{"__proto__":{"x":1},"a":1}'))).toBe('{"__proto__":{"x":1},"a":1}');
  });
  test("treats 4294967295 and leading zeros as ordinary keys", () => {
    expect(canonicalJson({ "4294967295": 1, "4294967294": 2, "01": 3 })).toBe(
      '{"4294967294":2,"01":3,"4294967295":1}',
    );
  });
});
