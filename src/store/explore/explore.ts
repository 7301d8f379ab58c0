import type { UnsyncedChange } from "../../core/ports/crash-disk.ts";
import {
  createImageCheck,
  type Invariant,
  type OlderReader,
  type Opened,
  type Violation,
} from "./image-check.ts";
import { type CrashState, type RecordOptions, record } from "./recorder.ts";
import { createJudge } from "./verdict.ts";
import type { Workload } from "./workload.ts";

export interface ExploreOptions extends RecordOptions {
  readonly olderReader?: OlderReader;
}

export interface Failure {
  readonly invariant: Invariant;
  readonly message: string;
  readonly workload: Workload;
  /** The cut that shows it; undefined when the running store failed by itself. */
  readonly at: Cut | undefined;
}

export interface Cut extends Pick<CrashState, "operation" | "label" | "survival"> {
  /** What was not synced when the power went, in order, and what became of it. */
  readonly unsynced: readonly UnsyncedEnd[];
}

export interface UnsyncedEnd {
  readonly label: string;
  readonly path: string;
  readonly kind: UnsyncedChange["kind"];
  readonly end: "kept" | "lost" | "torn" | "zeros" | "mixed";
}

export interface Explored {
  /** Operations of the workload, each with a power cut before it. */
  readonly operations: number;
  /** Crash states: an operation and a choice of what survives the cut before it. */
  readonly states: number;
  /** Different disks among them. Each is opened once; what was promised is compared for every state. */
  readonly images: number;
  readonly openings: number;
  readonly failure: Failure | undefined;
}

/** Runs a workload, cuts the power before each of its operations, and checks every state that may be left. */
export async function exploreWorkload(workload: Workload, options: ExploreOptions): Promise<Explored> {
  const recording = await record(workload, options);
  const { check, ...counted } = createWorkloadCheck(workload, options, recording.images);
  let states = 0;
  let failure: Failure | undefined;
  for (const state of recording.states) {
    states += 1;
    const violation = await check(state);
    if (violation === undefined) continue;
    failure = { ...violation, workload, at: cutOf(state) };
    break;
  }
  if (failure === undefined && recording.failure !== undefined) {
    failure = { invariant: "running store", message: recording.failure, workload, at: undefined };
  }
  return {
    operations: recording.operations,
    states,
    images: counted.images(),
    openings: counted.openings(),
    failure,
  };
}

function cutOf({ operation, label, survival, unsynced, survives }: CrashState): Cut {
  const end = (outcome: boolean | "torn" | "zeros" | "mixed"): UnsyncedEnd["end"] =>
    outcome === true ? "kept" : outcome === false ? "lost" : outcome;
  return {
    operation,
    label,
    survival,
    unsynced: unsynced.map((change, index) => ({
      label: change.label,
      path: change.path,
      kind: change.kind,
      end: end(typeof survives === "string" ? survives === "all" : survives(change, index)),
    })),
  };
}

function createWorkloadCheck(
  workload: Workload,
  options: ExploreOptions,
  images: Awaited<ReturnType<typeof record>>["images"],
) {
  const { judge } = createJudge(workload.retention);
  const imageCheck = createImageCheck(workload, options.olderReader);
  const outcomes = new Map<number, Opened | Violation>();

  async function check(state: CrashState): Promise<Violation | undefined> {
    const image = images[state.image];
    if (image === undefined) return undefined;
    let outcome = outcomes.get(state.image);
    if (outcome === undefined) {
      outcome = await imageCheck.check(image);
      outcomes.set(state.image, outcome);
    }
    return "invariant" in outcome ? outcome : judge(outcome, state.promised, image.nowMs);
  }

  return { check, images: () => outcomes.size, openings: () => imageCheck.openings };
}
