import { createHash } from "node:crypto";
import type { FileSystem } from "../../src/core/ports/platform.ts";
import type { ContinuationRecord } from "../../src/core/record.ts";

/**
 * A second reader of the state directory, written from store-format.md alone and sharing no code with the store: the
 * records that the older v3 runtime would have after replaying the transaction, loading, and applying the markers. It
 * throws wherever that runtime would refuse to open.
 */

type Json = Record<string, unknown>;

const TERMINAL = ["delivered", "delivery_unknown", "expired", "cancelled", "dead_lettered"];
const GUARD = "This state directory uses continuation records v3. Older runtimes must not open records-v2.\n";
const TEXTS =
  "continuationId serverName originRunId originConversationId mode taskKey taskHash claimFingerprint resultTokenHash createdAt updatedAt deadline state originContextState";
const COUNTS = "synthesisAttempts deliveryAttempts synthesisDeferrals";

const sha256 = (text: string) => createHash("sha256").update(text).digest("hex");

export function readAsOlderRuntime(fs: FileSystem, stateDir: string): Map<string, ContinuationRecord> {
  const secret = read(fs, `${stateDir}/continuation-secret`, 4096);
  const manifest = json(read(fs, `${stateDir}/continuation-store-v3.json`, 1 << 20));
  const guard = read(fs, `${stateDir}/records-v2/UPGRADED-TO-RECORDS-V3`, 4096);
  const required = manifest !== undefined && manifest.rollbackGuardRequired !== false;
  if (required && guard !== GUARD) throw new Error("the manifest requires the guard");
  if (guard !== undefined && guard !== GUARD) throw new Error("the guard has another content");

  const transaction = json(read(fs, `${stateDir}/continuation-transaction-v3.json`, 16 << 20));
  const writes = new Map<string, Json>();
  const deletes = new Set<string>();
  if (transaction !== undefined) {
    if (transaction.schemaVersion !== 3) throw new Error("the transaction has another version");
    for (const value of transaction.writes as unknown[]) {
      const record = checked(value);
      if (writes.has(id(record))) throw new Error("the transaction writes an id twice");
      writes.set(id(record), record);
    }
    for (const name of transaction.deletes as string[]) {
      if (writes.has(name) || deletes.has(name)) throw new Error("the transaction names an id twice");
      deletes.add(name);
    }
  }

  // Replaying replaces and unlinks files, whatever they hold; only then is the folder read.
  const replaced = new Set([...writes.keys(), ...deletes].map((name) => `${sha256(name)}.json`));
  const records = new Map(writes);
  for (const name of names(fs, `${stateDir}/records-v3`)) {
    if (!/^[0-9a-f]{64}\.json$/.test(name)) throw new Error(`records-v3 holds ${name}`);
    if (replaced.has(name)) continue;
    const record = checked(json(read(fs, `${stateDir}/records-v3/${name}`, 2 << 20)));
    if (`${sha256(id(record))}.json` !== name) throw new Error(`${name} holds the record of another name`);
    if (records.has(id(record))) throw new Error(`${id(record)} is there twice`);
    records.set(id(record), record);
  }
  for (const name of names(fs, `${stateDir}/origin-context-groups-v1`)) {
    const marker = json(read(fs, `${stateDir}/origin-context-groups-v1/${name}`, 64 << 10));
    if (marker === undefined || name !== `${String(marker.groupKey)}.json`) {
      throw new Error(`the marker ${name} has another name than its group`);
    }
    apply(marker, records);
  }
  if (records.size > 0 && (secret === undefined || Buffer.from(secret.trim(), "base64url").length !== 32)) {
    throw new Error("there are records without a secret");
  }
  return records as Map<string, unknown> as Map<string, ContinuationRecord>;
}

/** §5: the members must be exactly those of the marker; each becomes pinned, and its waiting ends. */
function apply(marker: Json, records: Map<string, Json>): void {
  const members = [...records.values()].filter(
    (record) =>
      record.originRunId === marker.originRunId &&
      record.originConversationId === marker.originConversationId &&
      record.historyBoundary === marker.historyBoundary &&
      !TERMINAL.includes(String(record.state)),
  );
  const ids = members.map(id).sort();
  const digest = sha256(`mono-agent-origin-context-members-v1\0${JSON.stringify(ids)}`);
  if (ids.length !== marker.memberCount || digest !== marker.memberSetDigest) {
    throw new Error("the marker has another member set than the records");
  }
  for (const member of members) {
    const ref = member.originContextRef as Json | undefined;
    if (member.originContextDigest !== marker.snapshotDigest || ref?.digest !== marker.snapshotDigest) {
      throw new Error(`${id(member)} is not bound to the snapshot of the marker`);
    }
    if (member.originContextState !== "pending" && member.originContextState !== "pinned") {
      throw new Error(`${id(member)} is ${String(member.originContextState)} under a marker`);
    }
    const pinned: Json = { ...member, originContextState: "pinned", updatedAt: marker.activatedAt };
    delete pinned.nextAttemptAt;
    if ((pinned.lastError as Json | undefined)?.code === "origin_context_pending") delete pinned.lastError;
    records.set(id(member), pinned);
  }
}

function id(record: Json): string {
  return String(record.continuationId);
}

/** §2, as far as it needs no schema: what must be there is there and of its kind. */
function checked(value: unknown): Json {
  const record = value as Json;
  for (const key of TEXTS.split(" ")) {
    if (typeof record[key] !== "string" || record[key] === "") throw new Error(`a record has no ${key}`);
  }
  for (const key of COUNTS.split(" ")) {
    if (!Number.isInteger(record[key])) throw new Error(`a record has no ${key}`);
  }
  return record;
}

function json(text: string | undefined): Json | undefined {
  return text === undefined ? undefined : (JSON.parse(text) as Json);
}

/** §1: temporaries are no evidence. */
function names(fs: FileSystem, folder: string): string[] {
  return (fs.list(folder, "older") ?? []).filter((name) => !/^\..+\.tmp$/.test(name)).sort();
}

/** §9 as far as a disk in memory goes: a regular file, owner-only and within its size. */
function read(fs: FileSystem, path: string, maxBytes: number): string | undefined {
  const stat = fs.lstat(path, "older");
  if (stat === undefined) return undefined;
  if (stat.kind !== "file" || stat.mode !== 0o600 || stat.size > maxBytes)
    throw new Error(`${path} is unsafe`);
  const handle = fs.open(path, "older");
  return handle === undefined ? undefined : Buffer.from(handle.read(stat.size)).toString("utf8");
}
