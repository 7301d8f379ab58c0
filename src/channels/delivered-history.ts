import { currentConversationId, type SessionRollover } from "../core/buckets.ts";
import { baseConversationId } from "../core/derive.ts";
import { errorText } from "../core/errors.ts";
import type { TurnEngine } from "../core/ports/channel.ts";
import type { DeliveredHistory, HistoryOutcome } from "../core/ports/delivery.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";
import type { TurnStore } from "../core/ports/turns.ts";

export interface DeliveredHistoryDeps {
  readonly turns: TurnStore;
  readonly session: SessionRollover;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly publish: TurnEngine["publish"];
}

const FAILED = { recorded: false, code: "history_record_failed" } as const satisfies HistoryOutcome;

/**
 * Writes a delivered answer into history: the exact origin conversation and the conversation in which its route
 * continues now, so that a follow-up next day knows it. All or `history_record_failed`; repeating it is harmless.
 *
 * Below one base conversation only the first row shows in the feed (the terminal's post is such a row already); the
 * others are mirrors, for the model's history alone.
 */
export function createDeliveredHistory(deps: DeliveredHistoryDeps): DeliveredHistory {
  const append = async (
    conversationId: string,
    entry: { deliveryKey: string; text: string; at: string },
  ): Promise<boolean> => {
    const baseId = baseConversationId(conversationId);
    const first = await deps.turns.findDelivered(baseId, entry.deliveryKey);
    if (first !== undefined && first.content !== entry.text) return false;
    const mirror = first !== undefined;
    const appended = await deps.turns.appendDelivered({
      conversationId,
      baseId,
      deliveryKey: entry.deliveryKey,
      text: entry.text,
      now: entry.at,
      mirror,
    });
    if (!appended.ok) return false;
    const { message } = appended.value;
    if (appended.value.appended && !mirror) deps.publish(baseId, { type: "message", message });
    return true;
  };

  return {
    record: async (entry) => {
      const now = currentConversationId(entry.destination, deps.session, deps.clock.now());
      const targets = new Set([entry.originConversationId, now]);
      try {
        for (const conversationId of targets) {
          if (await append(conversationId, entry)) continue;
          deps.logger.warn("a delivered answer conflicts with history", { code: FAILED.code });
          return FAILED;
        }
        return { recorded: true };
      } catch (error) {
        deps.logger.error("recording a delivered answer failed", { error: errorText(error) });
        return FAILED;
      }
    },
  };
}
