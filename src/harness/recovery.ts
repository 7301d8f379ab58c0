import type { Clock, Logger } from "../core/ports/platform.ts";
import type { TurnStore } from "../core/ports/turns.ts";
import { interruptedTurn } from "./failure.ts";

export interface RecoveryDeps {
  readonly turns: TurnStore;
  readonly clock: Clock;
  readonly logger: Logger;
}

/**
 * Ends every turn that was running when the process died: FAILED, with a notice in its conversation. Call it before
 * the start-up decision about pending claims, which then finds the verdict `failed` and abandons them, and before
 * anybody can watch: nobody is told. Idempotent.
 */
export async function failInterruptedTurns(deps: RecoveryDeps): Promise<void> {
  const { code, message } = interruptedTurn();
  for (const turn of await deps.turns.unfinishedTurns()) {
    if (turn.status !== "running") continue;
    const now = new Date(deps.clock.now()).toISOString();
    await deps.turns.endTurn(turn.turnId, { status: "failed", code, message, now });
    deps.logger.warn("a turn was interrupted by the end of the process", { turnId: turn.turnId });
  }
}
