import { type Cut, type Explored, type ExploreOptions, exploreWorkload, type Failure } from "./explore.ts";
import { shrink } from "./shrink.ts";
import { generateWorkload, type Step } from "./workload.ts";

/** Explores generated workloads one after the other until it is enough, or one fails. */

export interface TortureFigures {
  readonly workloads: number;
  readonly operations: number;
  /** Crash states: an operation of a workload and a choice of what survives a power cut before it. */
  readonly states: number;
  /** Different disks among the states of each workload. */
  readonly images: number;
  /** How often the store was opened to check them. */
  readonly openings: number;
}

export interface TortureReport extends TortureFigures {
  /** The smallest history found that still fails. */
  readonly failure: Failure | undefined;
}

export interface TortureOptions extends ExploreOptions {
  /** Seed of the first workload; the next ones count up from it. */
  readonly seed: number;
  /** Asked after each workload; true ends the exploration. It may wait, to let others run. */
  readonly enough: (figures: TortureFigures) => boolean | Promise<boolean>;
}

export async function torture(options: TortureOptions): Promise<TortureReport> {
  let figures: TortureFigures = { workloads: 0, operations: 0, states: 0, images: 0, openings: 0 };
  for (let seed = options.seed; ; seed += 1) {
    const explored = await exploreWorkload(generateWorkload(seed), options);
    figures = sum(figures, explored);
    if (explored.failure !== undefined) {
      const explore = async (workload: Failure["workload"]) =>
        (await exploreWorkload(workload, options)).failure;
      return { ...figures, failure: await shrink(explored.failure, explore) };
    }
    if (await options.enough(figures)) return { ...figures, failure: undefined };
  }
}

function sum(figures: TortureFigures, explored: Explored): TortureFigures {
  return {
    workloads: figures.workloads + 1,
    operations: figures.operations + explored.operations,
    states: figures.states + explored.states,
    images: figures.images + explored.images,
    openings: figures.openings + explored.openings,
  };
}

/** The failure as a person reads it: what is wrong, the seed, and the history that shows it. */
export function failureText({ invariant, message, workload, at }: Failure): string {
  const opening =
    workload.interrupt === undefined
      ? "open"
      : `open, killed after ${workload.interrupt} operations, and open again`;
  return [
    `${invariant}: ${message}`,
    `seed ${workload.seed}; to see it again: torture --seed ${workload.seed} --states 1; a checkpoint starts at ${workload.carryLimits.startBytes} carried bytes; at most ${workload.retention.terminalMaxRecords} settled records are kept; the disk ${workload.swaps ? "can" : "can't"} swap names`,
    `  1. ${opening}`,
    ...workload.steps.map((step, index) => `  ${index + 2}. ${stepText(step)}`),
    ...(at === undefined ? ["  → no power cut is needed"] : cutLines(at)),
    "",
  ].join("\n");
}

const LOST = { data: "the data of", names: "the name of", mode: "the mode of" } as const;

function cutLines({ operation, label, survival, unsynced }: Cut): string[] {
  const changes =
    unsynced.length === 0 ? "all was synced" : `of what was not synced, this survives: ${survival}`;
  return [
    `  → power cut before operation ${operation} (${label}); ${changes}`,
    ...unsynced.map(
      ({ kind, path, label, end }, index) => `      ${index + 1}. ${end}: ${LOST[kind]} ${path} (${label})`,
    ),
  ];
}

function stepText(step: Step): string {
  const again = (interrupt: number | undefined) =>
    interrupt === undefined
      ? "open again"
      : `open again, killed after ${interrupt} operations, and open once more`;
  switch (step.op) {
    case "claim":
      return `claim in slot ${step.slot}, ${step.mode}, ${step.group === undefined ? "detached" : `origin group ${step.group}`}`;
    case "advance":
      return `next command in slot ${step.slots.join(" and ")} (choice ${step.choice})`;
    case "end":
      return `${step.how} in slot ${step.slot}`;
    case "prepare":
      return `store the snapshot of group ${step.group}${step.orphan ? " for nobody" : " and bind its pending members"}`;
    case "activate":
      return `activate group ${step.group}`;
    case "wait":
      return `${step.ms} ms pass`;
    case "pause":
      return `the work under way goes on for ${step.turns} turns`;
    case "settle":
      return "wait until all is durable";
    case "fail":
      return `operation ${step.after + 1} from here fails with ${step.errno}${step.done === true ? " although it is done" : ""}`;
    case "restart":
      return `close and ${again(step.interrupt)}`;
    case "kill":
      return `kill the process${step.after === undefined ? "" : ` after ${step.after} more operations`} and ${again(step.interrupt)}`;
    case "crash":
      return `power cut (survival by seed ${step.seed}) and open again`;
    case "sweep":
      return "sweep by age";
  }
}
