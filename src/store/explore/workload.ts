import { HOUR_MS, MINUTE_MS, type RetentionLimits, retentionSchema } from "../../core/limits.ts";
import { type ContinuationMode, MODES } from "../../core/record.ts";
import { CARRY_LIMITS, type CarryLimits } from "../journal.ts";
import { createRandom, type Random } from "./simulated.ts";

/**
 * A workload is a list of steps as plain data, each with the numbers that it needs, so that leaving some out keeps the
 * others what they are. Steps name slots and origin groups by number; a step that finds nothing to do does nothing.
 */

export type Step =
  /** A new claim in a slot that is free or whose continuation has ended; without a group it is detached. */
  | { op: "claim"; slot: number; mode: ContinuationMode; group?: number }
  /** The next command of each slot's continuation, all in one commit; `choice` picks among the possible ones. */
  | { op: "advance"; slots: number[]; choice: number; filler: number }
  | { op: "end"; slot: number; how: "cancel" | "expire" | "abandon_origin" }
  /** Stores the group's snapshot and binds it to its pending members; `orphan` binds none. */
  | { op: "prepare"; group: number; orphan: boolean }
  | { op: "activate"; group: number }
  | { op: "sweep" }
  /** Time passes; timers fire. */
  | { op: "wait"; ms: number }
  /** Waits until all that was asked for is durable. */
  | { op: "settle" }
  /** Lets what is under way go on for a while. */
  | { op: "pause"; turns: number }
  /** A later operation fails with this errno; with `done` although it has taken effect. */
  | { op: "fail"; after: number; errno: string; done?: true }
  /** Closed and opened again; the first opening is killed after so many operations, if it has as many. */
  | { op: "restart"; interrupt?: number }
  /** The process is killed with work under way, now or after so many operations; the disk goes on with what it has. */
  | { op: "kill"; after?: number; interrupt?: number }
  /** The power goes with work under way, and what survives is chosen by `seed`. */
  | { op: "crash"; seed: number };

export interface Workload {
  readonly seed: number;
  readonly retention: RetentionLimits;
  readonly carryLimits: CarryLimits;
  /** Whether the disk can swap names, as only Linux can. */
  readonly swaps: boolean;
  /** The very first opening is killed after so many operations. */
  readonly interrupt?: number;
  readonly steps: readonly Step[];
}

export const SLOTS = 6;
export const GROUPS = 3;
const ERRNOS = ["ENOSPC", "EIO", "EROFS", "EMFILE"] as const;
/** The first opening of a store does so many operations, and its first commit so many. */
const FIRST_OPENING_OPERATIONS = 11;
const FIRST_COMMIT_OPERATIONS = 17;
/** An activation unlinks its marker with the last but one of its operations. */
const UNTIL_UNLINKED = 11;
/** A commit renames its transaction after so many. */
const UNTIL_RENAME = 3;
/** Carried bytes: so few that each commit makes a checkpoint, some commits, many commits, the real ones. */
const CARRIES: readonly [CarryLimits, ...CarryLimits[]] = [
  { startBytes: 1, maxBytes: 2_000, spares: 0 },
  { startBytes: 3_000, maxBytes: 9_000, spares: 2 },
  { startBytes: 8_000, maxBytes: 20_000, spares: 4 },
  CARRY_LIMITS,
];

/** The workload of a seed. */
export function generateWorkload(seed: number): Workload {
  const random = createRandom(seed);
  const retention = retentionSchema.parse({
    terminalMaxRecords: 1 + random.below(6),
    terminalMaxAgeMs: (2 + random.below(60)) * MINUTE_MS,
    capturedTextMaxRecords: random.below(3),
    capturedTextMaxAgeMs: (1 + random.below(30)) * MINUTE_MS,
    deadLetterTextMaxRecords: random.below(3),
    deadLetterTextMaxAgeMs: (1 + random.below(30)) * MINUTE_MS,
  });
  const carryLimits = random.pick(CARRIES);
  // Some workloads hand in one thing at a time, others leave much under way.
  const haste = random.pick([0, 1, 2]);
  const steps: Step[] = [];
  const length = 20 + random.below(50);
  // The first commit makes the guard and the manifest durable before itself.
  if (random.chance(0.3)) {
    const first: Step = { op: "claim", slot: 0, mode: random.pick(MODES) };
    const again: Step = { op: "claim", slot: 1, mode: random.pick(MODES) };
    steps.push(first, { op: "kill", after: random.below(FIRST_COMMIT_OPERATIONS) }, again);
  }
  while (steps.length < length) {
    steps.push(...episode(random));
    // What a killed process leaves unsynced is the hardest to be right about.
    if (random.chance(0.05)) steps.push({ op: "pause", turns: 1 + random.below(60) }, { op: "kill" });
    if (haste === 0 || random.chance(0.15)) steps.push({ op: "settle" });
    else if (haste === 1 || random.chance(0.5)) steps.push({ op: "pause", turns: 1 + random.below(30) });
  }
  return {
    seed,
    retention,
    carryLimits,
    ...(random.chance(0.5) ? { interrupt: 1 + random.below(FIRST_OPENING_OPERATIONS) } : {}),
    swaps: random.chance(0.75),
    steps,
  };
}

function episode(random: Random): Step[] {
  const slot = random.below(SLOTS);
  const group = random.below(GROUPS);
  const mode = random.pick(MODES);
  const advance = (...slots: number[]): Step => ({
    op: "advance",
    slots,
    choice: random.below(12),
    filler: random.chance(0.1) ? 4_000 : 20,
  });
  const between = (): Step[] =>
    random.chance(0.3)
      ? [{ op: "settle" }]
      : random.chance(0.5)
        ? [{ op: "pause", turns: 1 + random.below(30) }]
        : [];
  // What an opening has to make durable first is what a process left that was killed within one activation or commit.
  const killAfter = (operations: number): Step => ({ op: "kill", after: operations });
  const kind = random.below(106);
  if (kind < 12) return [{ op: "claim", slot, mode }];
  if (kind < 18) return [{ op: "claim", slot, mode, group }];
  if (kind < 30) {
    // A whole life, or most of one.
    const length = 2 + random.below(7);
    return [
      { op: "claim", slot, mode },
      ...Array.from({ length }, () => [...between(), advance(slot)]).flat(),
    ];
  }
  if (kind < 36) {
    // A whole origin turn: several claims of one run, its snapshot and its activation.
    const members = [slot, (slot + 1) % SLOTS, (slot + 2) % SLOTS].slice(0, 1 + random.below(3));
    return [
      ...members.map((member): Step => ({ op: "claim", slot: member, mode: random.pick(MODES), group })),
      { op: "prepare", group, orphan: false },
      { op: "settle" },
      ...(random.chance(0.5) ? [advance(slot)] : []),
      { op: "activate", group },
      ...(random.chance(0.5) ? [advance(slot), { op: "end", slot, how: "cancel" } satisfies Step] : []),
    ];
  }
  if (kind < 70) return [advance(slot)];
  if (kind < 75) return [advance(slot, (slot + 1) % SLOTS, (slot + 3) % SLOTS)];
  if (kind < 80) return [{ op: "end", slot, how: random.pick(["cancel", "expire", "abandon_origin"]) }];
  if (kind < 85) return [{ op: "prepare", group, orphan: random.chance(0.2) }];
  if (kind < 90) return [{ op: "activate", group }];
  if (kind < 91) return [{ op: "wait", ms: random.below(20 * MINUTE_MS) }];
  if (kind < 92) {
    return [
      { op: "wait", ms: HOUR_MS },
      { op: "end", slot, how: "expire" },
      { op: "end", slot: (slot + 1) % SLOTS, how: "expire" },
    ];
  }
  if (kind < 94) return [{ op: "sweep" }];
  // Most of what an opening does first is done in its first operations.
  const interrupted = random.chance(0.3) ? { interrupt: 1 + random.below(random.pick([1, 4, 20])) } : {};
  if (kind < 95) return [{ op: "restart", ...interrupted }];
  if (kind < 97) return [{ op: "kill", ...interrupted }];
  if (kind < 99) return [{ op: "crash", seed: random.below(2 ** 31) }];
  if (kind < 103) {
    const members = [slot, (slot + 1) % SLOTS].slice(0, 1 + random.below(2));
    return [
      ...members.map((member): Step => ({ op: "claim", slot: member, mode: random.pick(MODES), group })),
      { op: "prepare", group, orphan: false },
      { op: "settle" },
      { op: "activate", group },
      killAfter(random.chance(0.3) ? UNTIL_UNLINKED : random.below(UNTIL_UNLINKED + 2)),
      // A marker whose unlink was not durable may not come back over a member that has ended since.
      { op: "end", slot, how: "cancel" },
      { op: "settle" },
    ];
  }
  if (kind < 105) {
    // The file before this transaction, if any, carries none of its records: what comes back is not laid over them.
    return [
      { op: "restart" },
      { op: "claim", slot, mode },
      { op: "claim", slot: (slot + 1) % SLOTS, mode: random.pick(MODES) },
      advance((slot + 2) % SLOTS, (slot + 3) % SLOTS),
      killAfter(UNTIL_RENAME + random.below(3)),
    ];
  }
  const done = random.chance(0.5) ? { done: true as const } : {};
  return [{ op: "fail", after: random.below(12), errno: random.pick(ERRNOS), ...done }];
}
