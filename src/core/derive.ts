import { equalDigests, hmacBase64url, hmacHex, sha256Hex, sha256Joined } from "./digest.ts";
import { canonicalJson, type JsonValue } from "./json.ts";
import type { ContinuationMode, ContinuationRecord, OriginContextRef } from "./record.ts";

/** Derived values of store-format.md §3. All must match other runtimes byte for byte. */

/** What a claim capability is bound to. The fingerprint is a pure function of it, so a re-issued capability matches. */
export interface ClaimBinding {
  readonly serverName: string;
  readonly originRunId: string;
  readonly originConversationId: string;
  readonly replyToConversationId: string | undefined;
  readonly historyBoundary: string;
  readonly mode: ContinuationMode;
}

export function interactiveFingerprint(binding: ClaimBinding): string {
  return sha256Joined(
    "v1",
    binding.serverName,
    binding.originRunId,
    binding.originConversationId,
    binding.replyToConversationId ?? "",
    binding.historyBoundary,
    binding.mode,
  );
}

export function detachedFingerprint(
  serviceName: string,
  routeName: string,
  mode: ContinuationMode,
  conversationId: string | undefined,
): string {
  return sha256Joined("v1-detached", serviceName, routeName, mode, conversationId ?? "");
}

/** Record identity of a detached claim: server name, run id and conversation derived from service, task and route. */
export function detachedIdentity(
  serviceName: string,
  taskKey: string,
  routeName: string,
  conversationId?: string,
) {
  return {
    serverName: `detached:${serviceName}`,
    originRunId: `detached:${serviceName}:${taskKey}`,
    originConversationId: conversationId ?? `continuation-route:${routeName}`,
  };
}

/** The claim fingerprint as the fields of a record give it. */
function fingerprintOf(record: ContinuationRecord): string {
  if (record.routeName === undefined) {
    return interactiveFingerprint({
      serverName: record.serverName,
      originRunId: record.originRunId,
      originConversationId: record.originConversationId,
      replyToConversationId: record.replyToConversationId,
      historyBoundary: record.historyBoundary ?? "",
      mode: record.mode,
    });
  }
  return detachedFingerprint(serviceOf(record), record.routeName, record.mode, record.replyToConversationId);
}

const serviceOf = (record: ContinuationRecord) => record.serverName.slice("detached:".length);

/**
 * Whether what the claim was bound to is unchanged: the fields give its fingerprint, and for a detached claim also the
 * identity that is derived from them. Holds for every record, in every state.
 */
export function claimIsAuthentic(record: ContinuationRecord): boolean {
  if (record.claimFingerprint !== fingerprintOf(record)) return false;
  if (record.routeName === undefined) return true;
  const { taskKey, routeName, replyToConversationId } = record;
  const identity = detachedIdentity(serviceOf(record), taskKey, routeName, replyToConversationId);
  return (
    record.serverName === identity.serverName &&
    record.originRunId === identity.originRunId &&
    record.originConversationId === identity.originConversationId
  );
}

export function resultToken(secret: Uint8Array, continuationId: string, taskHash: string): string {
  return hmacBase64url(secret, `continuation-result\0${continuationId}\0${taskHash}`);
}

export function operatorToken(secret: Uint8Array): string {
  return hmacBase64url(secret, "mono-agent-continuation-operator-v1");
}

export function payloadHash(payload: JsonValue): string {
  return sha256Hex(canonicalJson(payload));
}

export function originContextFingerprint(claimFingerprint: string, snapshotDigest: string): string {
  return sha256Joined("mono-agent-origin-context-binding-v2", claimFingerprint, snapshotDigest);
}

/** MAC that binds a snapshot to the immutable metadata of one claim. */
export function originContextBindingMac(
  secret: Uint8Array,
  record: ContinuationRecord,
  ref: Pick<OriginContextRef, "digest" | "bytes" | "messageCount">,
): string {
  return hmacHex(
    secret,
    canonicalJson({
      version: 2,
      continuationId: record.continuationId,
      claimFingerprint: record.claimFingerprint,
      serverName: record.serverName,
      originRunId: record.originRunId,
      originConversationId: record.originConversationId,
      replyToConversationId: record.replyToConversationId ?? null,
      historyBoundary: record.historyBoundary ?? null,
      mode: record.mode,
      routeName: record.routeName ?? null,
      taskKey: record.taskKey,
      taskHash: record.taskHash,
      resultTokenHash: record.resultTokenHash,
      createdAt: record.createdAt,
      deadline: record.deadline,
      originContextDigest: ref.digest,
      originContextBytes: ref.bytes,
      originContextMessageCount: ref.messageCount,
    }),
  );
}

/** Whether the snapshot binding of a record is authentic. False also when a part of it is missing. */
export function originBindingIsAuthentic(secret: Uint8Array, record: ContinuationRecord): boolean {
  const ref = record.originContextRef;
  if (ref === undefined || record.originContextBindingMac === undefined) return false;
  if (record.originContextDigest !== ref.digest) return false;
  if (record.originContextMessageCount !== ref.messageCount) return false;
  if (record.originContextFingerprint !== originContextFingerprint(record.claimFingerprint, ref.digest))
    return false;
  return equalDigests(originContextBindingMac(secret, record, ref), record.originContextBindingMac);
}

/**
 * Whether claim and context may be used together, before a synthesis: the claim is as it was bound, a pinned one also to
 * its snapshot, and the latest history belongs only to a claim without a boundary in one.
 */
export function claimContextIsAuthentic(secret: Uint8Array, record: ContinuationRecord): boolean {
  if (!claimIsAuthentic(record)) return false;
  if (record.originContextState === "pinned") return originBindingIsAuthentic(secret, record);
  return record.originContextState !== "detached_latest" || record.historyBoundary === undefined;
}

/** MAC that binds the synthesized text to its destination (store-format.md §10), checked right before a post. */
export function deliveryBindingMac(secret: Uint8Array, record: ContinuationRecord, text: string): string {
  return hmacHex(
    secret,
    canonicalJson({
      version: 1,
      continuationId: record.continuationId,
      claimFingerprint: record.claimFingerprint,
      mode: record.mode,
      routeName: record.routeName ?? null,
      replyToConversationId: record.replyToConversationId ?? null,
      originConversationId: record.originConversationId,
      textSha256: sha256Hex(text),
    }),
  );
}

export interface OriginGroup {
  readonly originRunId: string;
  readonly originConversationId: string;
  readonly historyBoundary: string;
}

export function groupKey(group: OriginGroup): string {
  return sha256Joined(
    "mono-agent-origin-context-group-v1",
    canonicalJson({
      originRunId: group.originRunId,
      originConversationId: group.originConversationId,
      historyBoundary: group.historyBoundary,
    }),
  );
}

export function memberSetDigest(continuationIds: readonly string[]): string {
  return sha256Joined("mono-agent-origin-context-members-v1", canonicalJson([...continuationIds].sort()));
}

export function deliveryKey(continuationId: string): string {
  return `continuation:${continuationId}`;
}

/** `slack:C:T#2026-11-30` → `slack:C:T`: the conversation without its daily rollover bucket. */
export function baseConversationId(conversationId: string): string {
  const cut = conversationId.indexOf("#");
  return cut < 0 ? conversationId : conversationId.slice(0, cut);
}
