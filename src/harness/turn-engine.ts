import { baseConversationId } from "../core/derive.ts";
import { assert, ok, refuse } from "../core/errors.ts";
import { utf8Bytes } from "../core/json.ts";
import { SNAPSHOT_CONVERSATION_ID_MAX_BYTES, STOP_TIMEOUT_MS, TURN_TEXT_MAX_BYTES } from "../core/limits.ts";
import type { TurnEngine, TurnInput } from "../core/ports/channel.ts";
import type { Model } from "../core/ports/model.ts";
import type { Clock, Ids, Logger } from "../core/ports/platform.ts";
import type { RunClaimsIssuer } from "../core/ports/run-claims.ts";
import type { ToolHost } from "../core/ports/tools.ts";
import type { TurnStore } from "../core/ports/turns.ts";
import type { Turn } from "../core/turn.ts";
import { invalidAttachments, notedText } from "./attachments.ts";
import { cancelledTurn, interruptedTurn } from "./failure.ts";
import { createObservers } from "./observers.ts";
import { createThreadScheduler } from "./thread-scheduler.ts";
import { runTurn, type TurnControl } from "./turn-runner.ts";

/**
 * Owns: admission, order, cancel, start and stop of turns.
 * Does not own: what one turn does (turn-runner), the turns that a crash interrupted and their claims (recovery, host).
 *
 * I1. A turn is durable before `submit` answers; it runs at most once in this process.
 * I2. Turns of one thread run one at a time in admission order, over restarts too; other threads run beside them.
 */
export interface TurnEngineDeps {
  readonly turns: TurnStore;
  readonly model: Model;
  readonly tools: ToolHost;
  readonly claims: RunClaimsIssuer;
  readonly clock: Clock;
  readonly ids: Ids;
  readonly logger: Logger;
  /** Identity text of the agent. */
  readonly systemPrompt: string;
  readonly limits: {
    /** Model calls of one turn (`DEFAULT_MAX_STEPS`). */
    readonly maxSteps: number;
    /** Turns that may wait in one thread (`THREAD_QUEUE_MAX`). */
    readonly queue: number;
    /** Threads that run at the same time (`DEFAULT_MAX_CONCURRENT_RUNS`). */
    readonly maxConcurrentRuns: number;
  };
}

export interface RunningTurnEngine extends TurnEngine {
  /**
   * Once, at start, when the claim address is up and what a crash interrupted was ended (`failInterruptedTurns`): queues
   * what waited, in admission order. Until then submitted turns are only admitted, so none overtakes an older one of
   * its thread.
   */
  recover(): Promise<void>;
  /**
   * Takes no turn any more and starts none; running turns get `STOP_TIMEOUT_MS` to finish, then they end as
   * interrupted. Waiting turns stay queued for the next start.
   */
  stop(): Promise<void>;
}

const FINISHED = refuse("turn_finished", "this turn has ended, or is being committed");

export function createTurnEngine(deps: TurnEngineDeps): RunningTurnEngine {
  const { turns, clock, ids, logger, limits } = deps;
  const { observe, publish } = createObservers(logger);
  const scheduler = createThreadScheduler(limits.maxConcurrentRuns, logger);
  const running = new Map<string, TurnControl>();
  const runner = { ...deps, maxSteps: limits.maxSteps, publish };
  /** Waiting or running here. */
  const taken = new Set<string>();
  const early: Turn[] = [];
  let phase: "new" | "recovering" | "running" = "new";
  let stopping = false;
  const now = () => new Date(clock.now()).toISOString();

  function enqueue(turn: Turn): void {
    if (taken.has(turn.turnId)) return;
    taken.add(turn.turnId);
    const thread = JSON.stringify([baseConversationId(turn.conversationId), turn.thread]);
    scheduler.add(thread, turn.turnId, async () => {
      const control: TurnControl = { abort: new AbortController(), committing: false };
      running.set(turn.turnId, control);
      await runTurn(runner, turn, control);
      running.delete(turn.turnId);
      taken.delete(turn.turnId);
    });
  }

  return {
    observe,
    publish,

    async submit(input) {
      if (stopping) return refuse("service_stopping", "the host is stopping");
      const invalid = invalidInput(input);
      if (invalid !== undefined) return invalid;
      const baseId = baseConversationId(input.conversationId);
      const admitted = await turns.admit({
        turnId: ids.uuid(),
        requestId: input.requestId,
        conversationId: input.conversationId,
        baseId,
        thread: input.thread ?? "main",
        // A lone surrogate has no UTF-8: the stored text would differ from the one that a retry brings.
        text: notedText(input.text.toWellFormed(), input.attachments),
        ...(input.attachments === undefined ? {} : { attachments: input.attachments }),
        replyTo: input.replyTo,
        now: now(),
        maxQueued: limits.queue,
      });
      if (!admitted.ok) return admitted;
      const { turn, replayed } = admitted.value;
      if (!replayed) publish(baseId, { type: "turn", turnId: turn.turnId, status: "queued" });
      // A replay too: its first admission may have been durable without an answer, and then nobody queued it.
      if (turn.status === "queued") {
        if (phase === "running") enqueue(turn);
        else early.push(turn);
      }
      return ok({ turnId: turn.turnId, replayed });
    },

    async cancel(turnId) {
      const turn = await turns.getTurn(turnId);
      if (turn === undefined) return refuse("not_found", "there is no such turn");
      const failure = cancelledTurn();
      const control = running.get(turnId);
      if (control !== undefined) {
        if (control.committing) return FINISHED;
        control.abort.abort(failure);
        return ok(undefined);
      }
      const waits = scheduler.remove(turnId) || (phase !== "running" && turn.status === "queued");
      if (!waits) return FINISHED;
      taken.delete(turnId);
      const { code, message } = failure;
      const rows = await turns.endTurn(turnId, { status: "cancelled", code, message, now: now() });
      const baseId = baseConversationId(turn.conversationId);
      for (const row of rows) publish(baseId, { type: "message", message: row });
      publish(baseId, { type: "turn", turnId, status: "cancelled" });
      return ok(undefined);
    },

    async recover() {
      assert(phase === "new", "an engine recovers once");
      phase = "recovering";
      const unfinished = await turns.unfinishedTurns();
      // Its tools may have been called: to run it again is what must never happen.
      assert(
        unfinished.every((turn) => turn.status === "queued"),
        "what a crash interrupted is ended before the engine takes up what waited",
      );
      phase = "running";
      for (const turn of [...unfinished, ...early.splice(0)]) enqueue(turn);
    },

    async stop() {
      stopping = true;
      const giveUp = clock.timer(STOP_TIMEOUT_MS, () => {
        for (const { abort, committing } of running.values()) if (!committing) abort.abort(interruptedTurn());
      });
      await scheduler.stop();
      giveUp();
    },
  };
}

/** The bounds that a snapshot of the turn must keep (store-format.md §4), checked before anything is durable. */
function invalidInput({ text, conversationId, requestId, attachments }: TurnInput) {
  if (text.trim() === "" || utf8Bytes(notedText(text, attachments)) > TURN_TEXT_MAX_BYTES) {
    return refuse("invalid_text", `a turn needs a text of at most ${TURN_TEXT_MAX_BYTES} bytes of UTF-8`);
  }
  if (utf8Bytes(conversationId) > SNAPSHOT_CONVERSATION_ID_MAX_BYTES) {
    return refuse(
      "invalid_conversationId",
      `a conversation id has at most ${SNAPSHOT_CONVERSATION_ID_MAX_BYTES} bytes`,
    );
  }
  // The ledger keeps every lone surrogate as U+FFFD: two requests would become one.
  if (!requestId.isWellFormed()) {
    return refuse("invalid_requestId", "a request id must be well-formed Unicode");
  }
  return attachments === undefined ? undefined : invalidAttachments(attachments);
}
