import type { Command } from "../../core/continuation-commands.ts";
import { transition } from "../../core/continuation-transition.ts";
import { assert } from "../../core/errors.ts";
import type { ContinuationStore } from "../../core/ports/store.ts";
import { type ContinuationRecord, isTerminal } from "../../core/record.ts";
import type { Inflicted } from "./inflicted.ts";
import type { Ledger } from "./ledger.ts";
import type { SimulatedClock } from "./simulated.ts";
import { bindCommand, newClaim, nextCommand, originGroup, originSnapshot } from "./subjects.ts";
import { GROUPS, type Step } from "./workload.ts";

/**
 * One open store at work: carries out the steps of a workload through the transitions and the store's port, and takes
 * down in the ledger what was promised. Nothing is waited for but by `settle`.
 */
export interface Life {
  perform(step: Step): void;
  /** Resolves when nothing is under way any more, whatever became of it. */
  settle(): Promise<void>;
}

/** What goes on from one life to the next: which continuation is in which slot, and which run a group is in. */
export interface Cast {
  readonly slots: Map<number, string>;
  readonly runs: number[];
  claims: number;
}

export function createCast(): Cast {
  return { slots: new Map(), runs: Array.from({ length: GROUPS }, (_, group) => group), claims: 0 };
}

export function createLife(deps: {
  store: ContinuationStore;
  ledger: Ledger;
  clock: SimulatedClock;
  cast: Cast;
  inflicted: Inflicted;
  /** Something that no step and no fault explains. */
  failed: (message: string) => void;
}): Life {
  const { store, ledger, clock, cast, inflicted } = deps;
  const underWay = new Set<Promise<void>>();
  let sweeping = false;

  store.onDurable(() => {
    if (!ledger.show(store.durable)) deps.failed("the durable view shows a state that no order explains");
  });

  function excuse(error: unknown): void {
    const surprise = inflicted.rejection(error, store);
    if (surprise !== undefined) deps.failed(surprise);
  }

  function track(work: Promise<void>): void {
    const tracked = work.catch(excuse).finally(() => underWay.delete(tracked));
    underWay.add(tracked);
  }

  async function commit(puts: readonly ContinuationRecord[]): Promise<void> {
    if (puts.length === 0) return;
    // A sweep may have changed head since the last commit.
    ledger.note(store.head);
    for (const put of puts) ledger.know(put.continuationId);
    const durable = store.commit({ puts });
    const state = ledger.note(store.head);
    await durable;
    ledger.acknowledge(state);
  }

  function decided(record: ContinuationRecord, command: Command | undefined): ContinuationRecord[] {
    if (command === undefined) return [];
    const decision = transition(record, command, clock.now());
    if (decision.kind === "changed") return [decision.record];
    return decision.kind === "refused" && decision.record !== undefined ? [decision.record] : [];
  }

  function inSlot(slot: number): ContinuationRecord | undefined {
    const id = cast.slots.get(slot);
    return id === undefined ? undefined : store.head.get(id);
  }

  function claim(step: Extract<Step, { op: "claim" }>): void {
    const occupant = inSlot(step.slot);
    if (occupant !== undefined && !isTerminal(occupant)) return;
    cast.claims += 1;
    const id = `c-${cast.claims}`;
    cast.slots.set(step.slot, id);
    const group = step.group === undefined ? undefined : originGroup(cast.runs[step.group] ?? 0);
    track(commit([newClaim(id, step.mode, group, clock.now(), store.secret)]));
  }

  async function prepare(step: Extract<Step, { op: "prepare" }>): Promise<void> {
    const group = originGroup(cast.runs[step.group] ?? 0);
    const stored = await store.snapshots.put(originSnapshot(group, clock.now()));
    if (!stored.ok) return deps.failed(`the snapshot was refused: ${stored.refusal.message}`);
    const { ref, release } = stored.value;
    try {
      const members = step.orphan ? [] : store.head.members(group);
      await commit(members.flatMap((member) => decided(member, bindCommand(member, ref, store.secret))));
    } finally {
      release();
    }
  }

  /** The run of a group ends with its activation; the next claims of the group belong to another run. */
  async function activate(step: Extract<Step, { op: "activate" }>): Promise<void> {
    const run = cast.runs[step.group] ?? 0;
    const group = originGroup(run);
    const digest = store.head
      .members(group)
      .find((member) => member.originContextState === "pending")?.originContextDigest;
    if (digest === undefined) return;
    cast.runs[step.group] = run + GROUPS;
    const before = ledger.note(store.head);
    const activated = store.activate(group, digest, new Date(clock.now()).toISOString());
    const state = ledger.note(store.head);
    await activated;
    if (state > before) ledger.acknowledge(state);
  }

  async function sweep(): Promise<void> {
    if (sweeping) return;
    sweeping = true;
    try {
      const before = ledger.note(store.head);
      const swept = store.sweep(clock.now());
      const state = ledger.note(store.head);
      await swept;
      // It waits for what it dropped, and for nothing else.
      if (state > before) ledger.acknowledge(state);
    } finally {
      sweeping = false;
    }
  }

  return {
    perform(step) {
      switch (step.op) {
        case "claim":
          return claim(step);
        case "advance": {
          const records = step.slots.flatMap((slot) => inSlot(slot) ?? []);
          return track(
            commit(
              records.flatMap((record) =>
                decided(record, nextCommand(record, step.choice, step.filler, store.secret)),
              ),
            ),
          );
        }
        case "end": {
          const record = inSlot(step.slot);
          return record === undefined ? undefined : track(commit(decided(record, { kind: step.how })));
        }
        case "prepare":
          return track(prepare(step));
        case "activate":
          return track(activate(step));
        case "sweep":
          return track(sweep());
        case "wait":
          return clock.advance(step.ms);
        default:
          assert(false, `${step.op} is a step of the recorder`);
      }
    },
    async settle() {
      while (underWay.size > 0) await Promise.all(underWay);
      if (store.fault() === undefined) await store.whenDurable().catch(excuse);
    },
  };
}
