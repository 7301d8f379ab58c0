import {
  claimIsAuthentic,
  deliveryBindingMac,
  originContextBindingMac,
  originContextFingerprint,
  payloadHash,
  resultToken,
} from "../core/derive.ts";
import { equalDigests, sha256Hex } from "../core/digest.ts";
import type { FileSystem } from "../core/ports/platform.ts";
import { type ContinuationRecord, recordFileName } from "../core/record.ts";
import { readRecordFile, readTransaction } from "./inspect.ts";
import { liveReads } from "./live-reads.ts";
import { storePaths } from "./paths.ts";
import { readSecret } from "./secret.ts";
import { readSnapshot } from "./snapshots.ts";

/**
 * Recomputes from the disk, read-only, everything that binds one continuation together (store-format.md §3, §10):
 * what a person looks at before they trust a record. Works while a host runs: the transaction overlays the record
 * file, and it is read again when it changed meanwhile.
 */

export type Match = "yes" | "no" | "absent" | "unreadable";

export interface Verification {
  readonly continuationId: string;
  readonly state: ContinuationRecord["state"];
  readonly checks: readonly { readonly what: string; readonly matches: Match; readonly detail?: string }[];
  /** No check said no or unreadable. */
  readonly ok: boolean;
}

/** Undefined for an unknown id. Throws `StoreError` when the secret, the transaction or the record can't be read. */
export function verifyContinuation(options: {
  fs: FileSystem;
  stateDir: string;
  continuationId: string;
}): Verification | undefined {
  const paths = storePaths(options.stateDir);
  const fs = liveReads(options.fs, paths);
  const record = currentRecord(fs, options.stateDir, options.continuationId);
  if (record === undefined) return undefined;
  const secretFile = readSecret(fs, paths);
  const secret = secretFile.kind === "valid" ? secretFile.secret : undefined;

  const withSecret = (check: (secret: Uint8Array) => boolean): Match =>
    secret === undefined ? "unreadable" : check(secret) ? "yes" : "no";
  const checks: { what: string; matches: Match; detail?: string }[] = [
    {
      what: "result token",
      matches: withSecret((key) =>
        equalDigests(
          sha256Hex(resultToken(key, record.continuationId, record.taskHash)),
          record.resultTokenHash,
        ),
      ),
    },
    { what: "claim fingerprint", matches: yesNo(claimIsAuthentic(record)) },
    ...snapshotChecks(fs, options.stateDir, record, withSecret),
    {
      what: "payload hash",
      matches:
        record.resultPayload === undefined
          ? "absent"
          : yesNo(payloadHash(record.resultPayload) === record.resultPayloadHash),
    },
    {
      what: "delivery binding",
      matches:
        record.deliveryBindingMac === undefined || record.synthesizedText === undefined
          ? "absent"
          : withSecret((key) =>
              equalDigests(
                deliveryBindingMac(key, record, record.synthesizedText ?? ""),
                record.deliveryBindingMac ?? "",
              ),
            ),
    },
  ];
  return {
    continuationId: record.continuationId,
    state: record.state,
    checks,
    ok: checks.every(({ matches }) => matches === "yes" || matches === "absent"),
  };
}

/** The newest committed version: a record in the transaction is newer than its file. */
function currentRecord(
  fs: FileSystem,
  stateDir: string,
  continuationId: string,
): ContinuationRecord | undefined {
  const paths = storePaths(stateDir);
  for (;;) {
    const before = readTransaction(fs, paths);
    const name = recordFileName(continuationId);
    const written = before?.writes.find((record) => record.continuationId === continuationId);
    const deleted = before?.deletes.includes(continuationId) === true;
    const path = paths.record(continuationId);
    let file: ContinuationRecord | undefined;
    let damage: unknown;
    try {
      if (fs.lstat(path, "record.look") !== undefined) file = readRecordFile(fs, path, name);
    } catch (error) {
      // A new file is not whole before the transaction lets go of it.
      damage = error;
    }
    const after = readTransaction(fs, paths);
    if (!sameBytes(before?.data, after?.data)) continue;
    if (deleted) return undefined;
    if (written === undefined && damage !== undefined) throw damage;
    return written ?? file;
  }
}

function sameBytes(a: Uint8Array | undefined, b: Uint8Array | undefined): boolean {
  return a === undefined || b === undefined ? a === b : Buffer.from(a).equals(b);
}

function snapshotChecks(
  fs: FileSystem,
  stateDir: string,
  record: ContinuationRecord,
  withSecret: (check: (secret: Uint8Array) => boolean) => Match,
) {
  const ref = record.originContextRef;
  const digest = record.originContextDigest;
  const binding = {
    what: "snapshot fingerprint",
    matches:
      digest === undefined || record.originContextFingerprint === undefined
        ? ("absent" as const)
        : yesNo(
            record.originContextFingerprint === originContextFingerprint(record.claimFingerprint, digest),
          ),
  };
  if (ref === undefined) {
    // After the end only digest and count are kept: the MAC covers the size of the blob too, and can't be redone.
    const gone = { matches: "absent" as const, detail: `context is ${record.originContextState}` };
    return [{ what: "snapshot digest", ...gone }, binding, { what: "snapshot binding", ...gone }];
  }
  const read = readSnapshot(fs, storePaths(stateDir), ref);
  return [
    read.ok
      ? { what: "snapshot digest", matches: yesNo(ref.digest === digest) }
      : { what: "snapshot digest", matches: "unreadable" as const, detail: `the blob is ${read.damage}` },
    binding,
    {
      what: "snapshot binding",
      matches: withSecret((key) =>
        equalDigests(originContextBindingMac(key, record, ref), record.originContextBindingMac ?? ""),
      ),
    },
  ];
}

function yesNo(matches: boolean): Match {
  return matches ? "yes" : "no";
}
