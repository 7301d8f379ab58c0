import { expect } from "bun:test";
import { ORIGIN_CONTEXT_UNAVAILABLE_TEXT } from "../../src/continuation/synthesis-job.ts";
import { deliveryKey } from "../../src/core/derive.ts";
import { isSettled } from "../../src/core/record.ts";
import type { TurnAccepted } from "../../src/core/terminal.ts";
import type { Message } from "../../src/core/turn.ts";
import { type ContinuationStatus, resultAnswerSchema, statusSchema } from "../../src/core/wire.ts";
import { serveHttp } from "../../src/mcp/example/serve.ts";
import type { Work, WorkFiles } from "../../src/mcp/example/work-files.ts";
import { createClock } from "../../src/platform/clock.ts";
import type { AgentFolder } from "./binary.ts";
import type { KilledLoad } from "./killed-host.ts";

/**
 * Turns that delegate work, for a host that is killed: the built-in demo model calls the work-control service, which
 * runs here and outlives the host, so what the host acknowledged to it is known. Each turn has a room of its own.
 */

/** A person would not look more often. */
const LOOK_MS = 5;

interface Task {
  readonly name: string;
  /** The result is submitted as soon as the work is accepted, before the turn has ended. */
  readonly early: boolean;
  turnId?: string;
  /** How the turn ended: its answer or the notice that it failed. */
  outcome?: Message;
  claim?: NonNullable<Work["claim"]>;
  taskKey?: string;
  resultAcknowledged?: true;
  status?: ContinuationStatus;
}

export interface KilledTurns extends KilledLoad<Task> {
  /** Answers from the exact context of their turn, and fixed ones for turns that were interrupted. */
  answers(): { pinned: number; abandoned: number };
  stop(): Promise<void>;
}

/** The work-control service without files: this process is not killed. */
function workInMemory(): WorkFiles {
  const works = new Map<string, Work>();
  const keyOf = (fingerprint: string, taskKey: string) => `${fingerprint} ${taskKey}`;
  return {
    find: (fingerprint, taskKey) => works.get(keyOf(fingerprint, taskKey)),
    list: () => [...works.values()].reverse(),
    save: (work) => void works.set(keyOf(work.fingerprint, work.taskKey), work),
  };
}

export async function killedTurns(
  folder: AgentFolder,
  random: (bound: number) => number,
): Promise<KilledTurns> {
  const files = workInMemory();
  const stopped = new AbortController();
  const listening = Promise.withResolvers<string>();
  const served = serveHttp(
    0,
    { files, clock: createClock(), pause: (delayMs) => Bun.sleep(delayMs) },
    stopped.signal,
    listening.resolve,
  );
  folder.write("mcp.json", { mcpServers: { "work-control": { url: await listening.promise } } });
  const tasks: Task[] = [];

  async function answer(response: Response, status: number): Promise<unknown> {
    const text = await response.text();
    if (response.status !== status) throw new Error(`expected ${status}, got ${response.status}: ${text}`);
    return JSON.parse(text);
  }

  async function ask({ name }: Task): Promise<TurnAccepted> {
    const body = { requestId: `request-${name}`, text: `delegate_work {"task": "${name}"}` };
    const sent = folder.terminal(`/conversations/${name}/turns`, {
      method: "POST",
      body: JSON.stringify(body),
    });
    return (await answer(await sent, 202)) as TurnAccepted;
  }

  async function rows({ name }: Task): Promise<Message[]> {
    const got = await answer(await folder.terminal(`/conversations/${name}/messages`), 200);
    return (got as { messages: Message[] }).messages;
  }

  const outcomeIn = (messages: readonly Message[], { turnId }: Task) =>
    messages.find((row) => row.turnId === turnId && row.role !== "user");
  const deliveriesIn = (messages: readonly Message[]) =>
    messages.filter((row) => row.deliveryKey !== undefined);

  function noteClaim(task: Task): void {
    const work = files.list().find((found) => found.task === task.name);
    task.claim ??= work?.claim;
    task.taskKey ??= work?.taskKey;
  }

  async function statusOf({ statusUrl, token }: NonNullable<Work["claim"]>): Promise<ContinuationStatus> {
    const headers = { authorization: `Bearer ${token}` };
    return statusSchema.parse(await answer(await fetch(statusUrl, { headers }), 200));
  }

  async function submit(task: Task, { resultUrl, token }: NonNullable<Work["claim"]>): Promise<void> {
    const response = await fetch(resultUrl, {
      method: "PUT",
      headers: { authorization: `Bearer ${token}` },
      body: JSON.stringify({
        idempotencyKey: `result-${task.name}`,
        payload: { summary: `done ${task.name}` },
      }),
    });
    resultAnswerSchema.parse(await answer(response, 202));
    task.resultAcknowledged = true;
  }

  /** The end of a continuation: what it says, and what stands in the room. */
  async function requireEnd(task: Task, status: ContinuationStatus): Promise<void> {
    const { claim } = task;
    const messages = await rows(task);
    const deliveries = deliveriesIn(messages);
    if (status.state === "dead_lettered") {
      // Killed while the model was asked: nobody knows whether it answered.
      expect([task.name, status.lastError?.code, status.attempts.synthesis, deliveries]).toEqual([
        task.name,
        "synthesis_outcome_unknown",
        1,
        [],
      ]);
      return;
    }
    const pinned = outcomeIn(messages, task)?.role === "assistant";
    expect([task.name, status.state, status.completionKind, status.attempts.synthesis]).toEqual([
      task.name,
      "delivered",
      pinned ? "synthesized" : "origin_context_unavailable",
      pinned ? 1 : 0,
    ]);
    expect(deliveries.map((row) => [row.deliveryKey, row.content])).toEqual([
      [
        deliveryKey(claim?.continuationId ?? ""),
        pinned ? `done ${task.name}` : ORIGIN_CONTEXT_UNAVAILABLE_TEXT,
      ],
    ]);
  }

  const isDone = ({ status, outcome, claim }: Task) =>
    status === undefined ? outcome?.role === "notice" && claim === undefined : isSettled(status);

  return {
    next() {
      const task: Task = { name: `work-${tasks.length + 1}`, early: random(4) === 0 };
      tasks.push(task);
      return task;
    },
    isDone,
    async advance(task, acknowledged) {
      if (task.turnId === undefined) {
        task.turnId = (await ask(task)).turnId;
        acknowledged();
      }
      while (task.outcome === undefined) {
        noteClaim(task);
        if (task.early && task.claim !== undefined && task.resultAcknowledged === undefined) {
          await submit(task, task.claim);
          acknowledged();
        }
        const found = outcomeIn(await rows(task), task);
        if (found === undefined) await Bun.sleep(LOOK_MS);
        else task.outcome = found;
      }
      acknowledged();
      noteClaim(task);
      if (task.claim === undefined) {
        expect([task.name, task.outcome.role]).toEqual([task.name, "notice"]);
        return;
      }
      if (task.resultAcknowledged === undefined) {
        await submit(task, task.claim);
        acknowledged();
      }
      while (task.status === undefined || !isSettled(task.status)) {
        if (task.status !== undefined) await Bun.sleep(LOOK_MS);
        task.status = await statusOf(task.claim);
        acknowledged();
      }
      await requireEnd(task, task.status);
    },
    killed: noteClaim,
    async verify(task) {
      if (task.turnId === undefined) return;
      expect(await ask(task)).toEqual({ turnId: task.turnId, replayed: true });
      const messages = await rows(task);
      if (task.outcome !== undefined) expect(outcomeIn(messages, task)).toEqual(task.outcome);
      const { claim, status: before } = task;
      if (claim === undefined) return;
      const now = await statusOf(claim);
      expect(now.taskKey).toBe(task.taskKey ?? "");
      // The start has decided about every claim of a turn that was running.
      expect([task.name, now.originContext.state]).not.toEqual([task.name, "pending"]);
      if (task.outcome?.role === "assistant")
        expect([task.name, now.originContext.state]).not.toEqual([task.name, "abandoned"]);
      if (task.resultAcknowledged === true)
        expect([task.name, now.state]).not.toEqual([task.name, "claimed"]);
      if (before !== undefined && isSettled(before)) expect(now).toEqual(before);
      expect(now.attempts.synthesis).toBeGreaterThanOrEqual(before?.attempts.synthesis ?? 0);
      expect(now.attempts.synthesis).toBeLessThanOrEqual(1);
      expect(deliveriesIn(messages).length).toBeLessThanOrEqual(1);
      task.status = now;
      if (isSettled(now)) await requireEnd(task, now);
    },
    isClaimed: (task) => task.claim !== undefined,
    isResultAcknowledged: (task) => task.resultAcknowledged === true,
    answers() {
      const delivered = tasks.filter(({ status }) => status?.state === "delivered");
      const pinned = delivered.filter(({ status }) => status?.completionKind === "synthesized").length;
      return { pinned, abandoned: delivered.length - pinned };
    },
    async stop() {
      stopped.abort();
      await served;
    },
  };
}
