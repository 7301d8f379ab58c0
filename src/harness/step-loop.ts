import type { Model, ModelMessage, ModelResult } from "../core/ports/model.ts";
import type { Clock, Ids, Logger } from "../core/ports/platform.ts";
import type { ToolSession } from "../core/ports/tools.ts";
import type { TurnStore } from "../core/ports/turns.ts";
import type { ConversationEvent } from "../core/turn.ts";
import { abortable } from "./abortable.ts";
import { answerNotes, isCutShort } from "./answer-notes.ts";
import { systemText, withNewestImages } from "./context.ts";
import { TurnFailure } from "./failure.ts";
import { runToolCalls } from "./tool-calls.ts";

/**
 * Owns: the loop of one run: a model call, its tool calls, the next model call. Does not own: how the calls of one
 * answer run (`tool-calls.ts`).
 *
 * I1. A model call begins only after the row that announces it is durable.
 * I2. No tool runs whose result no model call could see: at the step limit the turn fails before the tools run. None
 *     runs of an answer that was cut short either: its calls may not be whole.
 * I3. A model's own record of its answer (reasoning, signatures) goes to the journal and back to it, nowhere else.
 */
export interface StepDeps {
  readonly turns: TurnStore;
  readonly model: Model;
  readonly clock: Clock;
  readonly ids: Ids;
  readonly logger: Logger;
  /** Identity text of the agent. */
  readonly systemPrompt: string;
}

export interface StepInput {
  readonly runId: string;
  readonly turnId: string;
  readonly messages: readonly ModelMessage[];
  readonly session: ToolSession;
  readonly maxSteps: number;
  readonly signal: AbortSignal;
  emit(event: ConversationEvent): void;
}

/** Resolves with the text of the last model call and what the person should know about it. Rejects with the signal's reason once it aborts. */
export async function runSteps(deps: StepDeps, input: StepInput): Promise<string> {
  const { turns, model, ids } = deps;
  const { runId, turnId, session, maxSteps, signal, emit } = input;
  const now = () => new Date(deps.clock.now()).toISOString();
  let messages = [...input.messages];
  const callIds = new Set<string>();
  const notices = new Set<string>();
  let before: ModelResult | undefined;

  for (let index = 0; index < maxSteps; index++) {
    const stepId = ids.uuid();
    await turns.openStep({ stepId, runId, index, model: model.name, startedAt: now() });
    signal.throwIfAborted();
    const result = await abortable(
      model.call({
        system: systemText(deps.systemPrompt),
        messages: [...messages],
        tools: session.tools.map(({ name, description, inputSchema }) => ({
          name,
          description,
          inputSchema,
        })),
        signal,
        onText: preview,
        ...(before?.answeredBy === undefined ? {} : { startWith: before.answeredBy }),
        ...(before?.measured === undefined ? {} : { measured: before.measured }),
      }),
      signal,
    );
    before = result;
    for (const notice of result.notices ?? []) notices.add(notice);
    const toolCalls = result.toolCalls.map((call) => ({ ...call, callId: ownCallId(call.callId) }));
    await turns.closeStep(stepId, {
      finishedAt: now(),
      text: result.text,
      toolCalls,
      stopReason: result.stopReason,
      ...(result.inputTokens === undefined ? {} : { inputTokens: result.inputTokens }),
      ...(result.outputTokens === undefined ? {} : { outputTokens: result.outputTokens }),
      ...(result.usageComplete === undefined ? {} : { usageComplete: result.usageComplete }),
      ...(result.answeredBy === undefined ? {} : { answeredBy: result.answeredBy }),
      ...(result.reply === undefined ? {} : { parts: result.reply.parts }),
    });
    if (toolCalls.length === 0 || isCutShort(result.stopReason)) {
      const notes = answerNotes(result, notices);
      if (notes !== "") preview(notes);
      return result.text + notes;
    }
    if (index + 1 === maxSteps) break;
    const { text, reply } = result;
    const said = { role: "assistant" as const, content: text, toolCalls };
    const results = await runToolCalls(deps, { runId, turnId, stepId, session, signal, emit }, toolCalls);
    messages = withNewestImages([...messages, reply === undefined ? said : { ...said, reply }, ...results]);
  }
  throw new TurnFailure("step_limit", `The agent needed more than ${maxSteps} steps and was stopped.`);

  function preview(text: string): void {
    if (!signal.aborted) emit({ type: "delta", turnId, text });
  }

  /** Some providers number calls anew in each step or leave the id empty; the journal needs one name per call. */
  function ownCallId(callId: string): string {
    const own = callId === "" || callIds.has(callId) ? `call-${ids.uuid()}` : callId;
    callIds.add(own);
    return own;
  }
}
