import type { Command } from "../../core/continuation-commands.ts";
import {
  deliveryBindingMac,
  detachedFingerprint,
  detachedIdentity,
  interactiveFingerprint,
  type OriginGroup,
  originContextBindingMac,
  originContextFingerprint,
  payloadHash,
  resultToken,
} from "../../core/derive.ts";
import { sha256Hex } from "../../core/digest.ts";
import { HOUR_MS } from "../../core/limits.ts";
import type { ContinuationMode, ContinuationRecord, OriginContextRef } from "../../core/record.ts";
import { buildSnapshot, type OriginSnapshot } from "../../core/snapshot.ts";

/** Claims, origin groups and the next command of a continuation, as the continuation service would make them. */

const CONVERSATION = "terminal:main";

export function originGroup(run: number): OriginGroup {
  return { originRunId: `run-${run}`, originConversationId: CONVERSATION, historyBoundary: `run-${run}` };
}

export function newClaim(
  id: string,
  mode: ContinuationMode,
  group: OriginGroup | undefined,
  nowMs: number,
  secret: Uint8Array,
): ContinuationRecord {
  const taskKey = `task-${id}`;
  const taskHash = sha256Hex(id).slice(0, 16);
  const at = new Date(nowMs).toISOString();
  const origin =
    group === undefined
      ? {
          ...detachedIdentity("explorer", taskKey, "named", mode === "silent" ? undefined : CONVERSATION),
          routeName: "named",
          originContextState: "detached_latest" as const,
          claimFingerprint: detachedFingerprint("explorer", "named", mode, CONVERSATION),
        }
      : {
          serverName: "work-control",
          ...group,
          replyToConversationId: CONVERSATION,
          originContextState: "pending" as const,
          claimFingerprint: interactiveFingerprint({
            serverName: "work-control",
            ...group,
            replyToConversationId: CONVERSATION,
            mode,
          }),
        };
  return {
    continuationId: id,
    ...origin,
    mode,
    taskKey,
    taskHash,
    resultTokenHash: sha256Hex(resultToken(secret, id, taskHash)),
    createdAt: at,
    updatedAt: at,
    deadline: new Date(nowMs + HOUR_MS).toISOString(),
    state: "claimed",
    synthesisAttempts: 0,
    synthesisDeferrals: 0,
    deliveryAttempts: 0,
  };
}

export function originSnapshot(group: OriginGroup, nowMs: number): OriginSnapshot {
  const snapshot = buildSnapshot({
    conversationId: group.originConversationId,
    originRunId: group.originRunId,
    capturedAt: new Date(nowMs).toISOString(),
    history: [],
    userText: "the question",
    assistantText: "accepted",
  });
  if (snapshot === undefined) throw new Error("the snapshot of the explorer does not fit");
  return snapshot;
}

export function bindCommand(
  record: ContinuationRecord,
  ref: OriginContextRef,
  secret: Uint8Array,
): Extract<Command, { kind: "bind_snapshot" }> {
  return {
    kind: "bind_snapshot",
    ref,
    fingerprint: originContextFingerprint(record.claimFingerprint, ref.digest),
    mac: originContextBindingMac(secret, record, ref),
  };
}

/** What could come next for the continuation; undefined when nothing is left to do. */
export function nextCommand(
  record: ContinuationRecord,
  choice: number,
  filler: number,
  secret: Uint8Array,
): Command | undefined {
  const text = `answer ${choice} ${"t".repeat(filler)}`;
  const withText = () => ({ text, bindingMac: deliveryBindingMac(secret, record, text) });
  const error = { code: "explored_error", reason: "chosen by the explorer" };
  switch (record.state) {
    case "claimed": {
      const payload = { choice, data: "d".repeat(filler) };
      return {
        kind: "accept_result",
        idempotencyKey: `key-${record.continuationId}`,
        payloadHash: payloadHash(payload),
        payload,
      };
    }
    case "result_received":
      if (record.originContextState === "pending") return { kind: "await_origin" };
      if (record.mode === "silent") return { kind: "finish_silent" };
      if (choice === 0) return { kind: "reject", ...error };
      if (choice === 1) return { kind: "defer", ...error };
      if (choice === 2) return { kind: "use_fallback", ...withText(), ...error };
      if (choice <= 4 && record.mode === "notify_if_actionable") return { kind: "suppress" };
      return { kind: "begin_synthesis", owner: "explorer" };
    case "synthesizing":
      return choice < 2
        ? { kind: "fail_synthesis", ...error }
        : { kind: "complete_synthesis", ...withText() };
    case "ready_to_deliver":
    case "delivery_retry":
      if (record.deliveryStartedAt === undefined) return { kind: "begin_delivery", owner: "explorer" };
      if (choice <= 2) return { kind: "postpone_delivery", ...error };
      if (choice === 3) return { kind: "refuse_delivery", ...error };
      if (choice <= 5) return { kind: "lose_delivery", ...error };
      return { kind: "confirm_delivery", parts: [{ id: "part-1" }], history: { recorded: true } };
    case "delivery_unknown":
      if (choice < 4) return { kind: "resolve_not_delivered" };
      if (choice < 8) return { kind: "resolve_dead_lettered" };
      return { kind: "resolve_delivered", history: { recorded: false, code: "not_recorded" } };
    case "dead_lettered":
      return choice < 6 ? { kind: "retry", allowUnknown: choice < 3 } : undefined;
    default:
      return undefined;
  }
}
