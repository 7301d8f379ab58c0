import { errorText } from "../core/errors.ts";
import { HISTORY_MAX_MESSAGES } from "../core/limits.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";
import type { RunClaims } from "../core/ports/run-claims.ts";
import type { TurnStore } from "../core/ports/turns.ts";
import { buildSnapshot } from "../core/snapshot.ts";
import type { Message, Run, Turn } from "../core/turn.ts";
import { TurnFailure } from "./failure.ts";

/**
 * Owns: the order in which a completed answer becomes history and its claims become active (host-facts.md §4).
 *
 * I1. finalize → commit → activate. The commit in the ledger decides; the claims follow it.
 * I2. The outbox row is in the same transaction as the history, so a crash after it never loses the activation.
 * I3. After the commit nothing turns success into failure.
 */
export interface SettlementDeps {
  readonly turns: TurnStore;
  readonly clock: Clock;
  readonly logger: Logger;
}

export interface Answered {
  readonly turn: Turn;
  readonly run: Run;
  readonly claims: RunClaims;
  readonly text: string;
  /** The last abort check: throws when the turn was aborted, and from then on refuses to be. */
  enterCommit(): void;
}

/** Commits the answer of a run whose claims are released. Rejects only when nothing was committed or it is in doubt. */
export async function commitAnswer(deps: SettlementDeps, answered: Answered): Promise<Message> {
  const { turns, clock } = deps;
  const { turn, run, claims, text } = answered;
  const now = new Date(clock.now()).toISOString();
  const activation = claims.hasActiveClaims() ? await bindSnapshot(deps, answered, now) : undefined;
  answered.enterCommit();
  const message = await turns.commitTurn({
    turnId: turn.turnId,
    runId: run.runId,
    assistantText: text,
    now,
    ...(activation === undefined ? {} : { activation }),
  });
  if (activation !== undefined) await activate(deps, run.originRunId, claims, activation.snapshotDigest);
  return message;
}

async function bindSnapshot(
  { turns }: SettlementDeps,
  { turn, run, claims, text }: Answered,
  capturedAt: string,
) {
  const snapshot = buildSnapshot({
    conversationId: turn.conversationId,
    originRunId: run.originRunId,
    capturedAt,
    history: await turns.history(turn.conversationId, HISTORY_MAX_MESSAGES, run.originRunId),
    userText: turn.text,
    assistantText: text,
  });
  if (snapshot === undefined) {
    throw new TurnFailure(
      "snapshot_too_large",
      "The question or the answer is too long to be kept for the background task that was started, so the turn was undone.",
    );
  }
  const bound = await claims.finalize(snapshot);
  if (bound.ok) return bound.value;
  throw new TurnFailure(
    bound.refusal.code,
    `The context of the background task could not be stored (${bound.refusal.code}), so the turn was undone.`,
  );
}

/** The outbox row stays open when this fails: the next start activates. */
async function activate(
  deps: SettlementDeps,
  originRunId: string,
  claims: RunClaims,
  digest: string,
): Promise<void> {
  try {
    await claims.activate(digest);
    await deps.turns.closeActivation(originRunId, new Date(deps.clock.now()).toISOString());
  } catch (error) {
    deps.logger.error("activation is due again at the next start", {
      runId: originRunId,
      error: errorText(error),
    });
  }
}
