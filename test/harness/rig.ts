import type { Model } from "../../src/core/ports/model.ts";
import type { TurnStore } from "../../src/core/ports/turns.ts";
import type { ConversationEvent, Turn } from "../../src/core/turn.ts";
import { failInterruptedTurns } from "../../src/harness/recovery.ts";
import {
  createTurnEngine,
  type RunningTurnEngine,
  type TurnEngineDeps,
} from "../../src/harness/turn-engine.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { createFakeIds } from "../support/fake-ids.ts";
import {
  createFakeClaims,
  createFakeTools,
  createScriptedModel,
  says,
  type Trace,
} from "../support/harness-fakes.ts";
import { createLedgerFolder, createRecordingLogger } from "../support/turns-fixture.ts";

export const HERE = "terminal:a";

export type Rig = Awaited<ReturnType<typeof createRig>>;

/** An engine over a real ledger in a temporary folder, with fakes around it. */
export async function createRig() {
  const folder = createLedgerFolder();
  const store = await folder.open();
  const clock = createFakeClock();
  const logger = createRecordingLogger();
  const trace: Trace = [];
  let requests = 0;
  let seeds = 0;

  /** What a start does first with what a crash interrupted. */
  const failInterrupted = (turns: TurnStore = store) => failInterruptedTurns({ turns, clock, logger });

  /** An engine that has not recovered yet. */
  function newEngine(overrides: Partial<TurnEngineDeps> = {}): RunningTurnEngine {
    return createTurnEngine({
      turns: store,
      model: createScriptedModel([says("answer")], trace),
      tools: createFakeTools({}, trace),
      claims: createFakeClaims(trace),
      clock,
      ids: createFakeIds(`engine ${seeds++}`),
      logger,
      systemPrompt: "You are a test agent.",
      limits: { maxSteps: 5, queue: 100, maxConcurrentRuns: 4 },
      ...overrides,
    });
  }

  /** An engine after a start. */
  async function engine(overrides: Partial<TurnEngineDeps> = {}): Promise<RunningTurnEngine> {
    await failInterrupted(overrides.turns);
    const made = newEngine(overrides);
    await made.recover();
    return made;
  }

  return {
    folder,
    store,
    clock,
    logger,
    trace,
    failInterrupted,
    newEngine,
    engine,
    input: (
      text: string,
      overrides: { conversationId?: string; thread?: string; requestId?: string } = {},
    ) => ({
      requestId: `request ${requests++}`,
      conversationId: HERE,
      text,
      replyTo: HERE,
      ...overrides,
    }),
    async remove() {
      await store.close();
      folder.remove();
    },
  };
}

/** Every event of a base conversation from now on, and a wait for a status of a turn. */
export function watch(engine: RunningTurnEngine, baseId = HERE) {
  const events: ConversationEvent[] = [];
  const waiting: { matches(event: ConversationEvent): boolean; resolve(): void }[] = [];
  engine.observe(baseId, (event) => {
    events.push(event);
    for (const entry of waiting) if (entry.matches(event)) entry.resolve();
  });
  const until = (matches: (event: ConversationEvent) => boolean) =>
    new Promise<void>((resolve) => {
      if (events.some(matches)) resolve();
      else waiting.push({ matches, resolve });
    });
  const ended = (turnId: string) =>
    until(
      (event) =>
        event.type === "turn" &&
        event.turnId === turnId &&
        ["succeeded", "failed", "cancelled"].includes(event.status),
    );
  return { events, until, ended };
}

/** Submits one turn, waits until the engine has nothing to do, and gives the turn as the ledger has it. */
export async function runOne(
  rig: Rig,
  overrides: Partial<TurnEngineDeps> & { model?: Model; turns?: TurnStore } = {},
  text = "question",
): Promise<Turn> {
  const engine = await rig.engine(overrides);
  const admitted = await engine.submit(rig.input(text));
  if (!admitted.ok) throw new Error(`not admitted: ${admitted.refusal.code}`);
  await engine.stop();
  const turn = await rig.store.getTurn(admitted.value.turnId);
  if (turn === undefined) throw new Error("the turn is gone");
  return turn;
}

export async function texts(rig: Rig, baseId = HERE): Promise<string[]> {
  return (await rig.store.feed(baseId, 0, 1000)).map((row) => `${row.role}: ${row.content}`);
}
