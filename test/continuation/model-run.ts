import type { JsonValue } from "../../src/core/json.ts";
import { type ContinuationRecord, claimIdentity } from "../../src/core/record.ts";
import { buildSnapshot, snapshotDigest, snapshotJson } from "../../src/core/snapshot.ts";
import { createReferenceModel } from "../support/reference-model.ts";
import type { ClaimCase, Owed } from "../support/reference-terms.ts";
import { RUNS, type Sequence, SLOTS, type Step } from "./model-sequences.ts";
import {
  createSystem,
  outcome,
  type Process,
  quiet,
  ROUTES,
  START_MS,
  type Survivors,
} from "./model-system.ts";

/** Runs one command sequence against the service and the reference model at once. */

/** What is stored of a record and what the model says of it, in one shape. */
type View = Record<string, string | number | boolean | undefined>;

const deadlineOf = (index: number) => START_MS + (SLOTS[index]?.minutes ?? 1) * 60_000;
const payloadOf = (as: string): JsonValue =>
  as === "not_actionable" ? { status: " Nothing_To_Report " } : { found: as === "other_payload" ? 2 : 1 };

export interface Tally {
  commands: number;
  kills: number;
  cuts: number;
  /** Commands after which something due waited for a slot, and records that retention dropped. */
  waits: number;
  drops: number;
  states: Map<string, number>;
}

/** Runs a sequence; throws at the first difference, saying after which command. */
export async function runSequence({ weather: initial, setup, steps }: Sequence, tally: Tally): Promise<void> {
  const model = createReferenceModel(START_MS, initial, RUNS, setup);
  const system = createSystem(() => model.weather, setup);
  const digests = new Map<number, string>();
  let process = await system.boot();
  let at = -1;

  const differ = (what: string): never => {
    throw new Error(`after command ${at} (${JSON.stringify(steps[at] ?? "the end")}): ${what}`);
  };
  const expectAnswer = (wanted: string, got: string) => {
    if (wanted !== got && !system.disk.isOff) differ(`answered ${got} instead of ${wanted}`);
  };
  const claimCase = (index: number, as = "same"): ClaimCase => {
    const made = SLOTS[index] as (typeof SLOTS)[number];
    const deadline = {
      other_deadline: deadlineOf(index) + 1,
      past: model.now,
      too_far: model.now + 30 * 86_400_000 + 1,
    }[as];
    return {
      mode: "route" in made ? ROUTES[made.route].mode : made.mode,
      run: "run" in made ? made.run : undefined,
      origin: "run" in made ? `run ${made.run}` : made.route,
      taskHash: as === "other_hash" ? "another" : "hash",
      deadline: deadline ?? deadlineOf(index),
    };
  };
  const recordOf = (index: number): ContinuationRecord | undefined => {
    const made = SLOTS[index] as (typeof SLOTS)[number];
    const identity =
      "run" in made
        ? { serverName: "work-control", originRunId: `run-${made.run}`, taskKey: `task-${index}` }
        : { serverName: "detached:svc", originRunId: `detached:svc:task-${index}`, taskKey: `task-${index}` };
    return process.store.durable.byClaim(claimIdentity(identity));
  };
  const said = async (call: Promise<{ ok: boolean; refusal?: { code: string } }>) => {
    const result = await outcome(call);
    if (typeof result === "string") return result;
    return result.ok ? "ok" : (result.refusal?.code ?? "?");
  };

  // Each command, on both sides.

  async function claim(index: number, as: string) {
    const wanted = claimCase(index, as);
    const body = {
      taskKey: `task-${index}`,
      taskHash: wanted.taskHash,
      deadline: new Date(wanted.deadline).toISOString(),
    };
    const made = SLOTS[index] as (typeof SLOTS)[number];
    let entry: ReturnType<Process["service"]["claims"]["authenticate"]>;
    if ("route" in made) {
      const detached = process.service.claims.authenticateDetached("svc", "a-token-of-a-service");
      entry = detached.ok
        ? { ok: true, value: { claim: (it) => detached.value.claim({ ...it, route: made.route }) } }
        : detached;
    } else {
      const theRun = model.runs[made.run];
      if (theRun === undefined || (theRun.over && !theRun.issued)) return;
      if (!theRun.issued) Object.assign(theRun, { issued: true, open: true });
      const token = process.issue(made.run).capabilities.get("work-control")?.token ?? "";
      entry = process.service.claims.authenticate(token);
    }
    const expected = model.claim(index, wanted);
    let got: string = entry.ok ? "" : entry.refusal.code;
    if (entry.ok) {
      const result = await outcome(entry.value.claim(body));
      got =
        typeof result === "string"
          ? result
          : result.ok
            ? result.value.replayed
              ? "replayed"
              : "ok"
            : result.refusal.code;
    }
    expectAnswer(expected, got);
    const owed = model.owed.get(index);
    if (owed !== undefined) owed.id = recordOf(index)?.continuationId ?? "";
  }

  async function submit(index: number, as: string) {
    const owed = model.owed.get(index);
    const record = recordOf(index);
    if (owed === undefined || record === undefined) return claim(index, "same");
    const key = as === "other_key" ? "another-key" : "key";
    const payload = payloadOf(as);
    const expected = model.submit(owed, key, JSON.stringify(payload), as !== "not_actionable");
    const entry = process.service.results.authenticate(record.continuationId, process.tokenFor(record));
    if (!entry.ok) return differ(`the result token is refused: ${entry.refusal.code}`);
    const result = await outcome(entry.value.submit({ idempotencyKey: key, payload }));
    const got = typeof result === "string" ? result : result.ok ? result.value.state : result.refusal.code;
    expectAnswer(expected, got);
    model.workAll();
  }

  function snapshotOf(theRun: number, number: number) {
    const text = `answer of finalize ${number}`;
    const snapshot = buildSnapshot({
      conversationId: "test:room",
      originRunId: `run-${theRun}`,
      capturedAt: new Date(START_MS).toISOString(),
      history: [],
      userText: "please",
      assistantText: text,
    });
    if (snapshot === undefined) throw new Error("the snapshot does not fit");
    const digest = snapshotDigest(snapshotJson(snapshot));
    digests.set(number, digest);
    system.textOfDigest.set(digest, text);
    return snapshot;
  }

  async function finalize(index: number) {
    if (model.runs[index]?.over) return;
    const claims = process.issue(index);
    await outcome(claims.release());
    const expected = model.finalize(index);
    if (claims.hasActiveClaims() !== (expected !== undefined)) differ("the active claims of the run differ");
    if (expected === undefined) return;
    const bound = await outcome(claims.finalize(snapshotOf(index, expected)));
    const got =
      typeof bound === "string" ? bound : bound.ok ? bound.value.snapshotDigest : bound.refusal.code;
    expectAnswer(digests.get(expected) ?? "", got);
  }

  const groupOf = (index: number) => ({
    originRunId: `run-${index}`,
    originConversationId: "test:room",
    historyBoundary: `run-${index}`,
  });

  async function commit(index: number) {
    const theRun = model.runs[index];
    if (theRun === undefined || theRun.over || theRun.finalized === undefined) return;
    const digest = digests.get(theRun.finalized) ?? "";
    await outcome(process.issue(index).release());
    theRun.issued = true;
    model.commitRun(index);
    await outcome(process.service.origins.activate(groupOf(index), digest));
    await outcome(process.service.origins.abandon(groupOf(index)));
    model.workAll();
  }

  async function abandon(index: number) {
    const theRun = model.runs[index];
    if (theRun === undefined || theRun.over) return;
    const claims = process.issue(index);
    theRun.issued = true;
    await outcome(claims.release());
    model.abandonRun(index);
    await outcome(claims.abandon());
    model.workAll();
  }

  async function advance(ms: number) {
    const until = model.now + ms;
    await system.time.advance(until, () => system.disk.isOff);
    model.advance(until);
  }

  async function startWorker() {
    void outcome(process.service.startWorker());
    await quiet();
    model.start();
  }

  async function reopen(cutWhileOpening: number | undefined, survives: Survivors) {
    // What the clock of a cut process did not reach has passed meanwhile.
    await system.time.advance(model.now);
    if (cutWhileOpening !== undefined) {
      system.disk.cutAt(cutWhileOpening);
      const opened = await outcome(system.boot());
      system.powerCut(typeof opened === "string" ? {} : opened.owner, survives);
    }
    process = await system.boot();
  }

  /** After a power cut in the middle of a command each record is one of the versions that the command goes through. */
  function adopt() {
    for (const [index, owed] of [...model.owed, ...model.gone]) {
      const record = recordOf(index);
      const found = record === undefined ? undefined : viewOfRecord(record);
      const version = owed.trail.findLast((past) =>
        past === undefined ? found === undefined : Bun.deepEquals(viewOfModel(past, digests), found),
      );
      const mayBeGone = owed.trail.some((past) => past === undefined || model.isAged(past));
      if (version === undefined && found === undefined && mayBeGone) {
        model.owed.delete(index);
      } else if (version === undefined) {
        differ(
          `slot ${index} is in no state of the command: ${JSON.stringify(found)} of ${JSON.stringify(owed.trail.map((past) => past && viewOfModel(past, digests)))}`,
        );
      } else {
        Object.assign(owed, { ...NOTHING, ...version, id: record?.continuationId, trail: [] });
        model.owed.set(index, owed);
      }
    }
  }

  async function kill(survives: Survivors, cutWhileOpening?: number) {
    tally.kills += 1;
    system.powerCut(process.owner, survives);
    await reopen(cutWhileOpening, survives);
    model.die();
  }

  async function restart() {
    let stopped = false;
    const ending = process.service
      .stop()
      .then(() => process.store.close())
      .finally(() => {
        stopped = true;
      });
    ending.catch(() => {});
    model.working = false;
    await quiet();
    await system.time.advance(model.now + 10_000, () => stopped || system.disk.isOff);
    await quiet();
    if (!stopped && !system.disk.isOff) differ("the stop takes longer than its time-out");
    model.advance(system.disk.isOff ? model.now + 10_000 : system.time.now(), true);
    model.die();
    if (system.disk.isOff) return;
    system.handOver(process.owner);
    process = await system.boot();
  }

  async function carryOut(step: Step) {
    switch (step.do) {
      case "claim":
        return claim(step.slot, step.as);
      case "submit":
        return submit(step.slot, step.as);
      case "finalize":
        return finalize(step.run);
      case "commit":
        return commit(step.run);
      case "settle":
        await finalize(step.run);
        return commit(step.run);
      case "abandon":
        return abandon(step.run);
      case "weather":
        model.weather = { ...model.weather, ...step.change };
        return;
      case "answer": {
        const owed = model.owed.get(step.slot);
        const answer = process.hung.get(recordOf(step.slot)?.continuationId ?? "");
        if (owed?.call === undefined || answer === undefined) return;
        const how = owed.call.kind === "synthesis" ? step.synthesis : step.delivery;
        answer(how);
        await quiet();
        model.answer(owed, step.synthesis, step.delivery);
        return model.workAll();
      }
      case "wait":
        return advance(step.ms);
      case "wait_for_deadline":
        return advance(Math.max(0, deadlineOf(step.slot) - model.now));
      case "work": {
        const count = process.service.processDue(16);
        void outcome(count);
        await quiet();
        model.workOnce();
        return model.workAll();
      }
      case "start":
        return startWorker();
      case "announce":
        process.announce();
        await quiet();
        model.announce();
        return model.workAll();
      case "restart":
        await restart();
        if (step.start && !system.disk.isOff) await startWorker();
        return;
      case "kill":
        await kill(step.survival, step.cutWhileOpening);
        if (step.start) await startWorker();
        return;
      default:
        return operate(step);
    }
  }

  async function operate(step: Extract<Step, { do: "retry" | "resolve" | "cancel" | "prove" }>) {
    const owed = model.owed.get(step.slot);
    const id = recordOf(step.slot)?.continuationId;
    if (owed === undefined || id === undefined) return claim(step.slot, "same");
    const { operator } = process.service;
    const known = system.outside(id);
    let expected: string;
    let call: Promise<{ ok: boolean; refusal?: { code: string } }>;
    const doubtful = known.doubtful;
    if (step.do === "retry" || (step.do === "resolve" && step.kind === "not_delivered")) known.doubtful = 0;
    if (step.do === "retry") {
      expected = model.retry(owed, step.allowUnknown);
      if (expected !== "ok") known.doubtful = doubtful;
      call = operator.retry(id, { allowUnknown: step.allowUnknown });
    } else if (step.do === "resolve") {
      expected = model.resolve(owed, step.kind);
      if (expected !== "ok") known.doubtful = doubtful;
      call = operator.resolve(id, { kind: step.kind });
    } else if (step.do === "cancel") {
      expected = model.cancel(owed);
      call = operator.cancel(id);
    } else {
      expected = model.prove(owed);
      call = operator.prove(id);
    }
    expectAnswer(expected, await said(call));
    model.workAll();
  }

  function check() {
    const violation = system.violation();
    if (violation !== undefined) differ(violation);
    for (const [index, owed] of model.owed) {
      const record = recordOf(index);
      const found = record === undefined ? "nothing" : JSON.stringify(viewOfRecord(record));
      const wanted = JSON.stringify(viewOfModel(owed, digests));
      if (found !== wanted) differ(`slot ${index}\n  stored ${found}\n  wanted ${wanted}`);
    }
    const health = process.service.operator.health();
    const counted = Object.values(health.counts).reduce((sum, count) => sum + count, 0);
    if (counted !== model.owed.size) differ(`${counted} records instead of ${model.owed.size}`);
    if (health.pending !== model.active().length) differ(`pending ${health.pending}`);
    if (health.due !== model.all().filter(model.isDue).length) differ(`due ${health.due}`);
    if (model.working && health.due > 0) tally.waits += 1;
    tally.drops += model.gone.size;
    for (const { state } of model.all()) tally.states.set(state, (tally.states.get(state) ?? 0) + 1);
  }

  for (const step of [...steps, undefined]) {
    at += 1;
    model.beginCommand();
    tally.commands += 1;
    if (step === undefined) {
      // Whatever the weather, each promise has ended visibly when all deadlines have passed.
      if (!model.working) await startWorker();
      await advance(Math.max(0, START_MS + 61 * 60_000 - model.now));
      await advance(310_000);
      for (const owed of model.all()) {
        if (!model.isTerminal(owed)) differ(`a promise is still ${owed.state} after its deadline`);
      }
    } else {
      if (step.cut !== undefined) system.disk.cutAt(system.disk.counts.operations + step.cut.after);
      await carryOut(step);
      if (step.cut !== undefined) {
        if (system.disk.isOff) {
          tally.cuts += 1;
          await quiet();
          system.powerCut(process.owner, step.cut.survival);
          await reopen(undefined, step.cut.survival);
          adopt();
          model.die();
          if (step.cut.start) await startWorker();
        } else system.disk.cutAt(Number.POSITIVE_INFINITY);
      }
    }
    check();
  }

  system.time.forget(process.owner);
}

const NOTHING: Partial<Owed> = {
  bound: undefined,
  result: undefined,
  text: undefined,
  due: undefined,
  error: undefined,
  begun: undefined,
  receipt: undefined,
  call: undefined,
  look: undefined,
  lookAgain: undefined,
};

function viewOfModel(owed: Owed, digests: ReadonlyMap<number, string>): View {
  return {
    state: owed.state,
    updatedAt: owed.updatedAt,
    context: owed.context,
    digest: owed.bound === undefined ? undefined : digests.get(owed.bound),
    result: owed.result?.key,
    syntheses: owed.syntheses,
    posts: owed.posts,
    deferrals: owed.deferrals,
    hasText: owed.hasText,
    completion: owed.text,
    due: owed.due,
    begun: owed.state === "delivered" ? undefined : owed.begun,
    error: owed.error,
    receipt: owed.receipt?.kind,
    recorded: owed.receipt?.recorded,
    proved: owed.receipt?.proved,
  };
}

function viewOfRecord(record: ContinuationRecord): View {
  const time = (iso: string | undefined) => (iso === undefined ? undefined : Date.parse(iso));
  return {
    state: record.state,
    updatedAt: time(record.updatedAt),
    context: record.originContextState,
    digest: record.originContextDigest,
    result: record.resultIdempotencyKey,
    syntheses: record.synthesisAttempts,
    posts: record.deliveryAttempts,
    deferrals: record.synthesisDeferrals,
    hasText: record.synthesizedText !== undefined,
    completion: record.completionKind,
    due: time(record.nextAttemptAt),
    begun: time(record.deliveryStartedAt),
    error: record.lastError?.code,
    receipt: record.receipt?.kind,
    recorded: record.receipt?.historyRecorded,
    proved: record.receipt?.proof === undefined ? undefined : true,
  };
}
