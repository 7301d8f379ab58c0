import { deliveryKey } from "../core/derive.ts";
import { errorText } from "../core/errors.ts";
import type { ContinuationRecord } from "../core/record.ts";
import { bounded } from "./bounded.ts";
import { deliveryIsBound, recordHistory } from "./delivery-job.ts";
import type { ContinuationDeps } from "./deps.ts";
import type { Ledger } from "./ledger.ts";

/**
 * Asks the channel whether the post of a `delivery_unknown` record happened. A proof settles it, with its evidence
 * in the receipt; anything else leaves it unknown for the operator. Never posts.
 */
export function createProver(deps: ContinuationDeps, ledger: Ledger) {
  const { clock, limits, logger } = deps;

  return async (record: ContinuationRecord, stop: AbortSignal): Promise<boolean> => {
    const id = record.continuationId;
    const destination = record.replyToConversationId;
    // An altered record must not steer where a text is looked for or which text is put into history.
    if (destination === undefined || !deliveryIsBound(deps.store.secret, record)) return false;
    const found = await bounded(clock, limits.deliveryTimeoutMs, stop, (signal) =>
      deps.delivery.find(destination, deliveryKey(id), record.deliveryStartedAt ?? record.updatedAt, signal),
    );
    if (found.kind === "threw") {
      logger.warn("delivery look-up failed", { continuationId: id, error: errorText(found.error) });
    }
    if (found.kind !== "value" || found.value.kind !== "delivered") return false;
    const { parts, channelId, evidence } = found.value;
    const history = await recordHistory(deps, record, stop);
    const deliveryId = parts.at(-1)?.id;
    const resolved = await ledger.apply(id, {
      kind: "resolve_delivered",
      ...(deliveryId === undefined ? {} : { deliveryId }),
      ...(channelId === undefined ? {} : { channelId }),
      history,
      proof: { by: "channel", evidence },
    });
    return resolved.ok;
  };
}
