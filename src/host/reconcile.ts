import type { OriginSettlement } from "../continuation/api.ts";
import { errorText } from "../core/errors.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";
import type { TurnStore } from "../core/ports/turns.ts";

export interface ReconcileDeps {
  readonly origins: OriginSettlement;
  readonly turns: TurnStore;
  readonly clock: Clock;
  readonly logger: Logger;
}

/**
 * The start-up decision on claims that a crash left pending (DESIGN.md, The idea in one picture).
 *
 * I1. It decides from the run row, never from the outbox alone: succeeded → activate the members whose snapshot is
 *     the one that the commit named; unfinished → leave them pending; failed, cancelled or unknown → abandon.
 * I2. An outbox row is closed only when no pending member of its group is left.
 * I3. An unreadable ledger decides nothing: the claims stay pending, and the error is reported.
 */
export async function reconcileOrigins(deps: ReconcileDeps): Promise<void> {
  const { origins, turns, logger } = deps;
  for (const group of origins.pending()) {
    try {
      const verdict = await turns.verdict(group.originRunId);
      if (verdict === "unfinished") continue;
      if (verdict === "succeeded") {
        const activation = await turns.activationOf(group.originRunId);
        if (activation !== undefined) await origins.activate(group, activation.snapshotDigest);
      }
      // What is still pending was not part of the commit, or its run never committed.
      await origins.abandon(group);
    } catch (error) {
      logger.error("claims stay pending because their origin run could not be settled", {
        originRunId: group.originRunId,
        error: errorText(error),
      });
    }
  }
  try {
    await closeSettled(deps);
  } catch (error) {
    logger.error("activations stay open because the ledger can't be read", { error: errorText(error) });
  }
}

async function closeSettled({ origins, turns, clock, logger }: ReconcileDeps): Promise<void> {
  const stillPending = new Set(origins.pending().map((group) => group.originRunId));
  for (const row of await turns.openActivations()) {
    if (stillPending.has(row.originRunId)) continue;
    if (!origins.knows(row.originRunId)) {
      logger.warn(
        "the claims of a committed turn are not in the continuation store: it is new, or an older copy",
        {
          originRunId: row.originRunId,
        },
      );
    }
    await turns.closeActivation(row.originRunId, new Date(clock.now()).toISOString());
  }
}
