import { baseConversationId } from "../core/derive.ts";
import { errorText, TurnError } from "../core/errors.ts";
import { HISTORY_MAX_MESSAGES, STOP_TIMEOUT_MS } from "../core/limits.ts";
import type { TurnEngine } from "../core/ports/channel.ts";
import type { RunClaims, RunClaimsIssuer } from "../core/ports/run-claims.ts";
import type { ToolHost, ToolSession } from "../core/ports/tools.ts";
import type { ConversationEvent, Message, Run, Turn } from "../core/turn.ts";
import { abortable } from "./abortable.ts";
import { modelHistory } from "./context.ts";
import { failureOf, TurnFailure } from "./failure.ts";
import { commitAnswer } from "./settlement.ts";
import { runSteps, type StepDeps } from "./step-loop.ts";

/**
 * Owns: one turn from its start to its commit or its visible end (DESIGN.md, Harness: one turn).
 *
 * I1. Tool clients are closed and capabilities drained before the turn is settled, on every path.
 * I2. Before the commit every failure and every cancel ends the turn with a notice, then abandons its claims: the
 *     ledger speaks first, and claims whose turn the ledger can't end stay pending for the next start.
 * I3. A commit in doubt is neither success nor failure: nothing is abandoned, the next start decides.
 */
export interface RunnerDeps extends StepDeps {
  readonly tools: ToolHost;
  readonly claims: RunClaimsIssuer;
  readonly maxSteps: number;
  readonly publish: TurnEngine["publish"];
}

export interface TurnControl {
  readonly abort: AbortController;
  /** Set right before the commit: from then on a cancel is too late. */
  committing: boolean;
}

/** Runs one queued turn. Never rejects: the outcome is in the ledger and with the observers. */
export async function runTurn(deps: RunnerDeps, turn: Turn, control: TurnControl): Promise<void> {
  const { turns, clock, ids, logger, publish } = deps;
  const { turnId, conversationId } = turn;
  const { signal } = control.abort;
  const now = () => new Date(clock.now()).toISOString();
  const emit = (event: ConversationEvent) => publish(baseConversationId(conversationId), event);
  const emitRows = (rows: readonly Message[]) => {
    for (const message of rows) emit({ type: "message", message });
  };

  let claims: RunClaims | undefined;
  // After an abort no tool may claim any more, although its client still has to be closed.
  const releaseEarly = () => void release();
  signal.addEventListener("abort", releaseEarly);
  try {
    const { run, userMessage } = await turns.startRun(turnId, ids.runId(clock.now()), now());
    if (userMessage !== undefined) emitRows([userMessage]);
    emit({ type: "turn", turnId, status: "running" });
    signal.throwIfAborted();
    claims = deps.claims.issue({ originRunId: run.originRunId, conversationId, replyTo: turn.replyTo });
    const message = await answer(run, claims);
    emitRows([message]);
    emit({ type: "turn", turnId, status: "succeeded" });
  } catch (error) {
    await fail(error);
  } finally {
    signal.removeEventListener("abort", releaseEarly);
  }

  async function answer(run: Run, runClaims: RunClaims): Promise<Message> {
    const text = (await work(run, runClaims)).toWellFormed();
    await runClaims.release();
    if (text.trim() === "") throw new TurnFailure("empty_response", "The model gave an empty answer.");
    return commitAnswer(deps, {
      turn,
      run,
      claims: runClaims,
      text,
      enterCommit() {
        signal.throwIfAborted();
        control.committing = true;
      },
    });
  }

  /** The tools are open exactly as long as the steps run. */
  async function work(run: Run, { capabilities }: RunClaims): Promise<string> {
    const history = await turns.history(conversationId, HISTORY_MAX_MESSAGES, run.originRunId);
    const attachments = await turns.attachments(turnId);
    const question = { role: "user" as const, content: turn.text };
    const session = await openTools(run.runId, capabilities);
    try {
      for (const { server, code, message } of session.warnings) {
        logger.warn("a tool server is missing in this run", {
          runId: run.runId,
          server,
          code,
          reason: message,
        });
      }
      return await runSteps(deps, {
        runId: run.runId,
        turnId,
        messages: [
          ...modelHistory(history),
          attachments.length === 0 ? question : { ...question, attachments },
        ],
        session,
        maxSteps: deps.maxSteps,
        signal,
        emit,
      });
    } finally {
      await closeTools(session);
    }
  }

  async function openTools(runId: string, capabilities: RunClaims["capabilities"]): Promise<ToolSession> {
    const opening = deps.tools.open({ runId, conversationId, capabilities, signal });
    try {
      return await abortable(opening, signal);
    } catch (error) {
      // A session that opens after the abort has nobody else to close it.
      void opening.then(closeTools, () => {});
      throw error;
    }
  }

  /** A client that never closes must hold up neither the turn nor the stop. */
  async function closeTools(session: ToolSession): Promise<void> {
    const late = Promise.withResolvers<void>();
    const cancel = clock.timer(STOP_TIMEOUT_MS, late.resolve);
    try {
      await Promise.race([session.close(), late.promise]);
    } catch (error) {
      logger.warn("closing the tools of a run failed", { turnId, error: errorText(error) });
    } finally {
      cancel();
    }
  }

  async function release(): Promise<void> {
    try {
      await claims?.release();
    } catch (error) {
      logger.error("releasing the capabilities of a run failed", { turnId, error: errorText(error) });
    }
  }

  async function fail(error: unknown): Promise<void> {
    await release();
    if (error instanceof TurnError && error.code === "commit_in_doubt") {
      logger.error("a turn's commit is in doubt; its claims stay pending until the next start", { turnId });
      return;
    }
    const failure = failureOf(signal.aborted && !control.committing ? signal.reason : error);
    const { status, code } = failure;
    logger.info("a turn ended without an answer", { turnId, status, code, error: errorText(error) });
    let rows: readonly Message[];
    try {
      rows = await turns.endTurn(turnId, { status, code, message: failure.message, now: now() });
    } catch (fault) {
      logger.error("a turn could not be ended; the next start ends it", { turnId, error: errorText(fault) });
      return;
    }
    // The ledger had ended it already, perhaps as succeeded: then its claims are not ours to abandon.
    if (rows.length === 0) return;
    emitRows(rows);
    emit({ type: "turn", turnId, status });
    try {
      await claims?.abandon();
    } catch (fault) {
      logger.error("claims could not be abandoned; the next start does it", {
        turnId,
        error: errorText(fault),
      });
    }
  }
}
