import { errorText } from "../core/errors.ts";
import type { TurnEngine } from "../core/ports/channel.ts";
import type { Logger } from "../core/ports/platform.ts";
import type { ConversationEvent } from "../core/turn.ts";

type Listener = (event: ConversationEvent) => void;

/** Who watches which base conversation. A listener that throws is logged and harms nobody else. */
export function createObservers(logger: Logger): Pick<TurnEngine, "observe" | "publish"> {
  const watching = new Map<string, Set<{ readonly listener: Listener }>>();
  return {
    observe(baseId, listener) {
      const entry = { listener };
      const entries = watching.get(baseId) ?? new Set();
      entries.add(entry);
      watching.set(baseId, entries);
      return () => {
        entries.delete(entry);
        if (entries.size === 0 && watching.get(baseId) === entries) watching.delete(baseId);
      };
    },
    publish(baseId, event) {
      for (const { listener } of [...(watching.get(baseId) ?? [])]) {
        try {
          listener(event);
        } catch (error) {
          logger.warn("an observer of a conversation failed", { error: errorText(error) });
        }
      }
    },
  };
}
