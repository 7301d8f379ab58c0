import { describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ORIGIN_CONTEXT_UNAVAILABLE_TEXT } from "../../src/continuation/synthesis-job.ts";
import { deliveryKey } from "../../src/core/derive.ts";
import type { Model } from "../../src/core/ports/model.ts";
import { type ContinuationRecord, isTerminal } from "../../src/core/record.ts";
import type { MemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { idle } from "../support/continuation-world.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { calls, createScriptedModel, says } from "../support/harness-fakes.ts";
import { ask, type Host, type HostOptions, ROOM, recordsByTask, startHost } from "../support/two-stores.ts";
import { createMoments, type Moment, restoreDatabase, type Seen } from "./moments.ts";

/**
 * A whole turn with claims, its result and its answer, cut at every moment of both stores; then both are opened again
 * and the start-up decision is made. The commit of the turn decides: with it each bound claim keeps its context and is
 * synthesized from exactly that; without it no claim reaches the model.
 */

interface Workload {
  readonly name: string;
  readonly model: () => Model;
  readonly status: "succeeded" | "failed";
  readonly tools: NonNullable<HostOptions["tools"]>;
  readonly wrapTurns?: HostOptions["wrapTurns"];
  /** Task keys that the turn claims, in order. */
  readonly tasks: readonly string[];
}

const TASKS = ["slow", "early", "beside"] as const;

async function claimAll(host: Host): Promise<string> {
  await Promise.all([host.claim("slow"), host.claim("early", { server: "other" })]);
  await host.claim("beside");
  const early = recordsByTask(host.store).get("early");
  if (early === undefined) throw new Error("the claim is gone");
  await host.submit(early.continuationId);
  return "started";
}

const WORKLOADS: readonly Workload[] = [
  {
    name: "a turn that succeeds",
    model: () => createScriptedModel([calls("start"), says("accepted")]),
    status: "succeeded",
    tools: { start: claimAll },
    tasks: TASKS,
  },
  {
    name: "a turn that fails after its claims",
    model: () =>
      createScriptedModel([
        calls("start"),
        () => {
          throw new Error("the provider is down");
        },
      ]),
    status: "failed",
    tools: { start: claimAll },
    tasks: TASKS,
  },
  {
    name: "a turn with a sibling that is cancelled between finalize and commit, and one while it is activated",
    model: () => createScriptedModel([calls("start"), says("accepted")]),
    status: "succeeded",
    tools: { start: claimAll },
    tasks: TASKS,
    wrapTurns: (turns, host) => ({
      ...turns,
      async commitTurn(commit) {
        const { store, service } = host();
        const cancel = (task: string) =>
          service.operator.cancel(recordsByTask(store).get(task)?.continuationId ?? "");
        await cancel("beside");
        const message = await turns.commitTurn(commit);
        void cancel("slow");
        return message;
      },
    }),
  },
];

const START_MS = Date.UTC(2026, 10, 30, 12);

/** The whole life once, with every moment on the way. */
async function record(workload: Workload): Promise<Moment[]> {
  const folder = mkdtempSync(join(tmpdir(), "mono-both-"));
  const database = join(folder, "host.sqlite");
  let seen: Seen = { synthesized: [], posted: [], claimed: [], succeeded: false };
  let host: Host | undefined;
  const moments = createMoments(database, () => ({
    ...seen,
    synthesized: host?.syntheses.map((request) => request.continuationId) ?? [],
    posted: host?.posts.map((request) => request.deliveryKey) ?? [],
  }));
  try {
    host = await startHost({
      fs: moments.disk,
      database,
      clock: createFakeClock(START_MS),
      seed: "first life",
      model: workload.model(),
      tools: Object.fromEntries(
        Object.entries(workload.tools).map(([name, run]) => [
          name,
          async (it: Host) => {
            const text = await run(it);
            seen = { ...seen, claimed: [...recordsByTask(it.store).keys()] };
            return text;
          },
        ]),
      ),
      wrapTurns(turns, theHost) {
        const watched = moments.watch(turns);
        return workload.wrapTurns?.(watched, theHost) ?? watched;
      },
    });
    moments.begin();
    expect(await ask(host)).toBe(workload.status);
    seen = { ...seen, succeeded: workload.status === "succeeded" };
    await idle();
    for (const record of recordsByTask(host.store).values()) {
      if (record.state === "claimed") await host.submit(record.continuationId);
    }
    await idle();
    for (const record of recordsByTask(host.store).values()) expect(isTerminal(record)).toBe(true);
    await host.close();
    return moments.moments;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

async function shown(host: Host): Promise<string[]> {
  return (await host.turns.feed(ROOM, 0, 1000)).map((row) => `${row.role}: ${row.content}`);
}

/** Opens both stores as the moment left them, lets everything end, and checks the end against the turn's verdict. */
async function check(moment: Moment): Promise<void> {
  const database = restoreDatabase(moment.database);
  const clock = createFakeClock(START_MS + 1000);
  try {
    const host = await startHost({
      fs: moment.disk,
      database: database.path,
      clock,
      seed: "second life",
    });
    const { seen } = moment;
    const found = recordsByTask(host.store);
    for (const task of seen.claimed) expect(found.has(task)).toBe(true);
    const origin = [...found.values()][0]?.originRunId;
    const verdict = origin === undefined ? "unknown" : await host.turns.verdict(origin);
    if (seen.succeeded) expect(verdict).toBe("succeeded");
    const activation = origin === undefined ? undefined : await host.turns.activationOf(origin);

    // The decision is made, and nothing is left open.
    for (const record of found.values()) {
      if (isTerminal(record)) continue;
      const wanted =
        verdict === "succeeded" && record.originContextDigest === activation?.snapshotDigest
          ? "pinned"
          : "abandoned";
      expect([record.taskKey, verdict, record.originContextState]).toEqual([record.taskKey, verdict, wanted]);
    }
    expect(host.service.origins.pending()).toEqual([]);
    expect(await host.turns.openActivations()).toEqual([]);

    for (const record of found.values()) {
      if (record.state === "claimed")
        expect(await host.submit(record.continuationId)).toBe("result_received");
    }
    await idle();
    clock.advance(2000);
    await idle();
    const ends = recordsByTask(host.store);
    for (const record of ends.values()) await checkEnd(host, record, seen, verdict === "succeeded");
    await checkSecondStart(host, moment.disk, database.path, ends);
  } finally {
    database.remove();
  }
}

async function checkEnd(host: Host, record: ContinuationRecord, seen: Seen, succeeded: boolean) {
  const id = record.continuationId;
  const before = seen.synthesized.filter((other) => other === id).length;
  const now = host.syntheses.filter((request) => request.continuationId === id);
  expect([id, before + now.length]).toEqual([id, before === 0 && now.length === 0 ? 0 : 1]);
  for (const request of now) {
    if (request.context.policy !== "pinned") throw new Error("not pinned");
    const { snapshot } = request.context;
    expect(snapshot.messages.map((message) => message.content)).toEqual(["question", "accepted"]);
    expect(snapshot.originRunId).toBe(record.originRunId);
  }
  if (!succeeded) expect(before + now.length).toBe(0);

  const rows = (await host.turns.feed(ROOM, 0, 1000)).filter((row) => row.deliveryKey === deliveryKey(id));
  switch (record.state) {
    case "delivered":
      expect(rows.map((row) => row.content)).toEqual([
        succeeded ? `answer to ${id}` : ORIGIN_CONTEXT_UNAVAILABLE_TEXT,
      ]);
      expect(record.receipt).toMatchObject({ kind: "delivered", historyRecorded: true });
      return;
    case "dead_lettered":
      // Only a model that was being asked when the power went.
      expect([record.lastError?.code, now.length]).toEqual(["synthesis_outcome_unknown", 0]);
      expect(rows).toEqual([]);
      return;
    default:
      expect(record.state).toBe("cancelled");
      expect(rows).toEqual([]);
  }
}

async function checkSecondStart(
  host: Host,
  disk: MemoryFileSystem,
  database: string,
  ends: Map<string, ContinuationRecord>,
) {
  const feed = await shown(host);
  await host.turns.close();
  const again = await startHost({
    fs: disk.takeOver(),
    database,
    clock: createFakeClock(START_MS + 10_000),
    seed: "third life",
  });
  await idle();
  expect(recordsByTask(again.store)).toEqual(ends);
  expect([again.syntheses.length, again.posts.length]).toEqual([0, 0]);
  expect(await shown(again)).toEqual(feed);
  await again.close();
}

describe("a crash at every moment of both stores", () => {
  for (const workload of WORKLOADS) {
    test(workload.name, async () => {
      const moments = await record(workload);
      const labels = new Set(moments.map((moment) => moment.label));
      expect(labels).toContain(workload.status === "succeeded" ? "after commitTurn" : "after endTurn");
      expect(labels).toContain("after appendDelivered");
      const began = performance.now();
      for (const moment of moments) {
        try {
          await check(moment);
        } catch (error) {
          throw new Error(`${moment.label}, survival ${moment.survival}: ${String(error)}`, { cause: error });
        }
      }
      const seconds = ((performance.now() - began) / 1000).toFixed(1);
      console.log(`both stores, ${workload.name}: ${moments.length} crash states, ${seconds} s`);
      expect(moments.length).toBeGreaterThan(90);
    }, 120_000);
  }
});
