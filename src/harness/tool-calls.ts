import { McpError } from "../core/errors.ts";
import { TOOL_CALLS_AT_ONCE } from "../core/limits.ts";
import type { ModelMessage, ToolCall } from "../core/ports/model.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";
import type { BoundTool, ToolOutcome, ToolSession } from "../core/ports/tools.ts";
import type { TurnStore } from "../core/ports/turns.ts";
import type { ConversationEvent } from "../core/turn.ts";
import { abortable } from "./abortable.ts";
import { boundedToolText } from "./context.ts";

/**
 * Owns: the tool calls of one answer: their order, their rows, their results.
 *
 * I1. A call begins only after the row that announces it is durable, and its result counts only once its own row is.
 * I2. Calls run one after another, in the model's order: some depend on each other, and nothing tells which. Only calls
 *     that stand side by side and change nothing (`BoundTool.readOnly`) can't, and run together, a few at a time.
 * I3. Results come back in the model's order, one for each call, whether it failed or not.
 * I4. An abort, or a fault of the host in one call, ends those beside it: none outlives its turn.
 */
export interface ToolCallDeps {
  readonly turns: Pick<TurnStore, "openToolCall" | "closeToolCall">;
  readonly clock: Clock;
  readonly logger: Logger;
}

export interface ToolCallInput {
  readonly runId: string;
  readonly turnId: string;
  readonly stepId: string;
  readonly session: ToolSession;
  readonly signal: AbortSignal;
  emit(event: ConversationEvent): void;
}

/** Resolves with what the model reads of each call. Rejects with the signal's reason once it aborts. */
export async function runToolCalls(
  deps: ToolCallDeps,
  input: ToolCallInput,
  toolCalls: readonly ToolCall[],
): Promise<ModelMessage[]> {
  const { runId, turnId, stepId, session, emit } = input;
  const now = () => new Date(deps.clock.now()).toISOString();
  const results: ModelMessage[] = [];
  for (const group of groups(toolCalls.map((call) => ({ call, tool: toolOf(session, call) })))) {
    results.push(...(await together(group)));
  }
  return results;

  async function together(group: readonly Planned[]): Promise<ModelMessage[]> {
    const fault = new AbortController();
    const signal = AbortSignal.any([input.signal, fault.signal]);
    const working = group.map(async (each) => {
      try {
        return await answer(each, signal);
      } catch (error) {
        fault.abort(error);
        throw error;
      }
    });
    // All of them have to end before the turn may: a row that is still being written is one of this run.
    await Promise.allSettled(working);
    input.signal.throwIfAborted();
    fault.signal.throwIfAborted();
    return Promise.all(working);
  }

  async function answer({ call, tool }: Planned, signal: AbortSignal): Promise<ModelMessage> {
    const { callId, name } = call;
    if (tool === undefined) {
      const content = `There is no tool named ${JSON.stringify(name)}.`;
      return { role: "tool", callId, name, content, isError: true };
    }
    const { server, digest } = tool;
    const opened = { runId, stepId, callId, server, tool: tool.tool, bindingDigest: digest };
    await deps.turns.openToolCall({ ...opened, input: call.input, startedAt: now() });
    signal.throwIfAborted();
    emit({ type: "tool", turnId, callId, name, phase: "started" });
    const outcome = await execute(server, call, signal);
    const text = boundedToolText(outcome.text);
    await deps.turns.closeToolCall(runId, callId, { finishedAt: now(), isError: outcome.isError, text });
    emit({ type: "tool", turnId, callId, name, phase: outcome.isError ? "failed" : "finished" });
    const { isError, images = [] } = outcome;
    return { role: "tool", callId, name, content: text, isError, ...(images.length === 0 ? {} : { images }) };
  }

  async function execute(server: string, call: ToolCall, signal: AbortSignal): Promise<ToolOutcome> {
    try {
      return await abortable(session.call(call.name, call.input, signal), signal);
    } catch (error) {
      signal.throwIfAborted();
      if (!(error instanceof McpError)) throw error;
      // The words of such an error are our own, without what the server said.
      const { code, message: reason } = error;
      const fields = { runId, server, tool: call.name, code, reason };
      deps.logger.warn("the outcome of a tool call is unknown", fields);
      const text =
        "The outcome of this call is unknown: it may or may not have taken effect. Do not repeat it as if it had " +
        "failed; check first, or tell the user.";
      return { text, isError: true };
    }
  }
}

interface Planned {
  readonly call: ToolCall;
  /** Undefined: the model made up the name. */
  readonly tool: BoundTool | undefined;
}

function toolOf(session: ToolSession, { name }: ToolCall): BoundTool | undefined {
  return session.tools.find((candidate) => candidate.name === name);
}

/** What may run together, in order: read-only calls side by side, every other call alone. */
function groups(planned: readonly Planned[]): Planned[][] {
  const out: Planned[][] = [];
  let readers: Planned[] | undefined;
  for (const each of planned) {
    if (each.tool?.readOnly === true && readers !== undefined && readers.length < TOOL_CALLS_AT_ONCE) {
      readers.push(each);
      continue;
    }
    const group = [each];
    out.push(group);
    readers = each.tool?.readOnly === true ? group : undefined;
  }
  return out;
}
