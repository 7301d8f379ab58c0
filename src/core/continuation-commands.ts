import type { ErrorCode, Refusal } from "./errors.ts";
import type { JsonValue } from "./json.ts";
import type { HistoryOutcome } from "./ports/delivery.ts";
import type { ContinuationRecord, ContinuationState, OriginContextRef } from "./record.ts";

/** The commands that change a continuation, and the table of legal moves. `continuation-transition.ts` decides. */

export type Command =
  | { kind: "accept_result"; idempotencyKey: string; payloadHash: string; payload: JsonValue }
  | { kind: "bind_snapshot"; ref: OriginContextRef; fingerprint: string; mac: string }
  | { kind: "abandon_origin" }
  | { kind: "await_origin" }
  | { kind: "defer"; code: string; reason: string }
  | { kind: "begin_synthesis"; owner: string }
  | { kind: "complete_synthesis"; text: string; bindingMac: string }
  | { kind: "fail_synthesis"; code: string; reason: string }
  | { kind: "use_fallback"; text: string; bindingMac: string; code: string; reason: string }
  | { kind: "finish_silent" }
  | { kind: "suppress" }
  | { kind: "reject"; code: string; reason: string }
  | { kind: "begin_delivery"; owner: string }
  | {
      kind: "confirm_delivery";
      parts: readonly { id: string }[];
      channelId?: string;
      history: HistoryOutcome;
    }
  | { kind: "postpone_delivery"; code: string; reason: string; retryAfterMs?: number }
  | { kind: "refuse_delivery"; code: string; reason: string }
  | { kind: "lose_delivery"; code: string; reason: string }
  | { kind: "recover" }
  | { kind: "expire" }
  | { kind: "retry"; allowUnknown: boolean }
  | { kind: "cancel" }
  | { kind: "resolve_delivered"; deliveryId?: string; history: HistoryOutcome }
  | {
      kind: "prove_delivered";
      parts: readonly { id: string }[];
      channelId?: string;
      history: HistoryOutcome;
      proof: { by: string; evidence: string };
    }
  | { kind: "resolve_not_delivered" }
  | { kind: "prove_absent" }
  | { kind: "resolve_dead_lettered" };

export type CommandKind = Command["kind"];

export type Decision =
  | { readonly kind: "changed"; readonly record: ContinuationRecord }
  | { readonly kind: "unchanged"; readonly record: ContinuationRecord }
  /** `record` is present when the refusal itself has to be made durable (an expiry found by a result). */
  | { readonly kind: "refused"; readonly refusal: Refusal; readonly record?: ContinuationRecord };

type Moves = Partial<Record<CommandKind, readonly ContinuationState[]>>;

const deliveryMoves = (state: "ready_to_deliver" | "delivery_retry"): Moves => ({
  defer: [state],
  begin_delivery: [state],
  confirm_delivery: ["delivered"],
  postpone_delivery: ["delivery_retry", "dead_lettered"],
  refuse_delivery: ["dead_lettered"],
  lose_delivery: ["delivery_unknown"],
  prove_delivered: ["delivered"],
  reject: ["dead_lettered"],
  recover: [state, "delivery_unknown"],
  expire: ["expired", "delivery_unknown"],
  cancel: ["cancelled"],
});

/** State × command → the states it may lead to. The diagram in docs/ is printed from this table by a test. */
export const MOVES: Readonly<Record<ContinuationState, Moves>> = {
  claimed: {
    accept_result: ["result_received"],
    bind_snapshot: ["claimed"],
    abandon_origin: ["claimed"],
    recover: ["claimed"],
    expire: ["expired"],
    cancel: ["cancelled"],
  },
  result_received: {
    bind_snapshot: ["result_received"],
    abandon_origin: ["result_received"],
    await_origin: ["result_received"],
    defer: ["result_received"],
    begin_synthesis: ["synthesizing"],
    use_fallback: ["ready_to_deliver", "delivered"],
    finish_silent: ["delivered"],
    suppress: ["delivered"],
    prove_delivered: ["delivered"],
    reject: ["dead_lettered"],
    recover: ["result_received"],
    expire: ["expired"],
    cancel: ["cancelled"],
  },
  synthesizing: {
    complete_synthesis: ["ready_to_deliver", "delivered"],
    fail_synthesis: ["dead_lettered"],
    prove_delivered: ["delivered"],
    recover: ["dead_lettered"],
    expire: ["expired"],
  },
  ready_to_deliver: deliveryMoves("ready_to_deliver"),
  delivery_retry: { ...deliveryMoves("delivery_retry"), retry: ["ready_to_deliver"] },
  delivered: {},
  delivery_unknown: {
    retry: ["ready_to_deliver"],
    resolve_delivered: ["delivered"],
    prove_delivered: ["delivered"],
    resolve_not_delivered: ["ready_to_deliver"],
    prove_absent: ["ready_to_deliver", "dead_lettered"],
    resolve_dead_lettered: ["dead_lettered"],
  },
  expired: {},
  cancelled: {},
  dead_lettered: { retry: ["ready_to_deliver", "result_received"] },
};

/** The record moved on while a worker held an older version of it. */
export function leaseLost(): Decision {
  return refused("lease_lost", "The continuation changed meanwhile.");
}

export function changed(record: ContinuationRecord): Decision {
  return { kind: "changed", record };
}

export function refused(code: ErrorCode, message: string): Extract<Decision, { kind: "refused" }> {
  return { kind: "refused", refusal: { code, message } };
}
