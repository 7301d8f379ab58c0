import { claimContextIsAuthentic, deliveryBindingMac } from "../core/derive.ts";
import { errorName } from "../core/errors.ts";
import { isJsonObject, type JsonValue } from "../core/json.ts";
import { SYNTHESIS_TEXT_MAX_CHARS } from "../core/limits.ts";
import type { SynthesisRequest } from "../core/ports/synthesis.ts";
import type { ContinuationRecord } from "../core/record.ts";
import { bounded } from "./bounded.ts";
import type { ContinuationDeps } from "./deps.ts";
import { destinationBlocks } from "./destination.ts";
import type { Ledger } from "./ledger.ts";
import { synthesisBlocks } from "./readiness.ts";

/** The fixed answer when the origin context can't be restored (seed-000, Synthesis and delivery). */
export const ORIGIN_CONTEXT_UNAVAILABLE_TEXT =
  "The background task finished, but I could not safely restore the original conversation context. Please ask me to check the result again.";

/**
 * Whether a payload asks for a post in mode notify_if_actionable (protocol.md): not when it is an object with
 * `actionable: false`, or with a `status` of nothing_to_report or not_applicable (trimmed, any case).
 */
export function isActionable(payload: JsonValue): boolean {
  if (!isJsonObject(payload)) return true;
  if (payload.actionable === false) return false;
  if (typeof payload.status !== "string") return true;
  const status = payload.status.trim().toLowerCase();
  return status !== "nothing_to_report" && status !== "not_applicable";
}

/**
 * One `result_received` record, in the decision order of protocol.md: context pending → defer; binding wrong →
 * dead letter; silent and not actionable need no model; snapshot lost → fixed text; destination or model not
 * ready → defer; else exactly one synthesis, counted durably before the model is called.
 */
export function createSynthesisJob(deps: ContinuationDeps, ledger: Ledger, owner: string) {
  const { store, clock, limits, logger } = deps;

  return async (record: ContinuationRecord, stop: AbortSignal): Promise<void> => {
    const id = record.continuationId;
    if (record.originContextState === "pending") {
      await ledger.apply(id, { kind: "await_origin" });
      return;
    }
    if (!claimContextIsAuthentic(store.secret, record)) {
      await ledger.apply(id, {
        kind: "reject",
        code: "origin_context_binding_invalid",
        reason: "The claim was altered after it was bound.",
      });
      return;
    }
    if (record.mode === "silent") {
      await ledger.apply(id, { kind: "finish_silent" });
      return;
    }
    const payload = record.resultPayload ?? null;
    if (record.mode === "notify_if_actionable" && !isActionable(payload)) {
      await ledger.apply(id, { kind: "suppress" });
      return;
    }
    const context = contextOf(record);
    if (!context.ok) {
      await ledger.apply(id, {
        kind: "use_fallback",
        text: ORIGIN_CONTEXT_UNAVAILABLE_TEXT,
        bindingMac: deliveryBindingMac(store.secret, record, ORIGIN_CONTEXT_UNAVAILABLE_TEXT),
        code: context.code,
        reason: "The origin snapshot is not available; the model is not called.",
      });
      return;
    }
    if (record.mode !== "capture" && (await destinationBlocks(record, deps, ledger))) return;
    if (await synthesisBlocks(record, deps, ledger)) return;
    const begun = await ledger.apply(id, { kind: "begin_synthesis", owner });
    if (!begun.ok) return;
    const request: Omit<SynthesisRequest, "signal"> = {
      continuationId: id,
      originRunId: record.originRunId,
      conversationId: record.originConversationId,
      mode: record.mode,
      payload,
      context: context.context,
    };
    const untilDeadlineMs = Math.max(0, Date.parse(record.deadline) - clock.now());
    const outcome = await bounded(
      clock,
      Math.min(limits.synthesisTimeoutMs, untilDeadlineMs),
      stop,
      (signal) => deps.synthesis.synthesize({ ...request, signal }),
    );
    await storeOutcome(record, outcome);
  };

  async function storeOutcome(
    record: ContinuationRecord,
    outcome: Awaited<ReturnType<typeof bounded<string>>>,
  ) {
    const id = record.continuationId;
    switch (outcome.kind) {
      case "stopped":
        // The record stays `synthesizing`; the next start ends it, because the model must not be asked twice.
        return;
      case "timed_out": {
        if (clock.now() >= Date.parse(record.deadline)) {
          await ledger.apply(id, { kind: "expire" });
          return;
        }
        await ledger.apply(id, {
          kind: "fail_synthesis",
          code: "synthesis_timeout_outcome_unknown",
          reason: `The model did not answer within ${limits.synthesisTimeoutMs} ms.`,
        });
        return;
      }
      case "threw":
        logger.warn("synthesis failed", { continuationId: id, error: errorName(outcome.error) });
        await ledger.apply(id, {
          kind: "fail_synthesis",
          code: "synthesis_failed",
          reason: "The model call failed.",
        });
        return;
      case "value": {
        // A lone surrogate has no UTF-8: history would hold another text than the one that is bound.
        const text = typeof outcome.value === "string" ? outcome.value.toWellFormed().trim() : "";
        if (text === "" || text.length > SYNTHESIS_TEXT_MAX_CHARS) {
          await ledger.apply(id, {
            kind: "fail_synthesis",
            code: "synthesis_failed",
            reason:
              text === ""
                ? "The model gave no text."
                : `The text passes ${SYNTHESIS_TEXT_MAX_CHARS} characters.`,
          });
          return;
        }
        const bindingMac = deliveryBindingMac(store.secret, record, text);
        await ledger.apply(id, { kind: "complete_synthesis", text, bindingMac });
      }
    }
  }

  function contextOf(
    record: ContinuationRecord,
  ): { ok: true; context: SynthesisRequest["context"] } | { ok: false; code: string } {
    if (record.originContextState === "detached_latest") {
      return { ok: true, context: { policy: "detached_latest" } };
    }
    if (record.originContextState !== "pinned" || record.originContextRef === undefined) {
      return { ok: false, code: "origin_context_unavailable" };
    }
    const read = store.snapshots.read(record.originContextRef);
    if (!read.ok) {
      return {
        ok: false,
        code:
          read.damage === "unreadable" ? "origin_context_unreadable" : "origin_context_missing_or_corrupt",
      };
    }
    const { snapshot } = read;
    const matches =
      snapshot.originRunId === record.originRunId && snapshot.conversationId === record.originConversationId;
    return matches
      ? { ok: true, context: { policy: "pinned", snapshot } }
      : { ok: false, code: "origin_context_missing_or_corrupt" };
  }
}
