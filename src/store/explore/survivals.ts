import type { Survival, UnsyncedChange } from "../../core/ports/crash-disk.ts";
import type { Random } from "./simulated.ts";

/** Which of the unsynced changes a power cut may leave: all, none, each alone, and others by chance. */

export interface NamedSurvival {
  readonly name: string;
  readonly survival: "all" | "none" | Survival;
}

/** Subsets by chance at each boundary. */
const RANDOM_SUBSETS = 4;

export function survivals(changes: readonly UnsyncedChange[], random: Random): NamedSurvival[] {
  const chosen: NamedSurvival[] = [{ name: "all", survival: "all" }];
  const count = changes.length;
  if (count === 0) return chosen;
  chosen.push({ name: "none", survival: "none" });
  if (changes.some((change) => change.kind === "data")) {
    for (const damage of ["torn", "zeros", "mixed"] as const) {
      chosen.push({
        name: `all names, data ${damage}`,
        survival: (change) => (change.kind === "data" ? damage : true),
      });
    }
  }
  if (count === 1) return chosen;
  for (let only = 0; only < count; only += 1) {
    chosen.push({ name: `only change ${only + 1} of ${count}`, survival: (_, index) => index === only });
  }
  const missing = random.below(count);
  chosen.push({
    name: `all but change ${missing + 1} of ${count}`,
    survival: (_, index) => index !== missing,
  });
  const first = 1 + random.below(count);
  chosen.push({ name: `the first ${first} of ${count}`, survival: (_, index) => index < first });
  for (let subset = 0; subset < RANDOM_SUBSETS; subset += 1) chosen.push(randomSurvival(changes, random));
  return chosen;
}

export function randomSurvival(changes: readonly UnsyncedChange[], random: Random): NamedSurvival {
  const density = random.pick([0.2, 0.5, 0.8]);
  const kept = changes.map(({ kind }) => {
    if (!random.chance(density)) return false;
    if (kind !== "data" || random.chance(0.6)) return true;
    return random.pick(["torn", "zeros", "mixed"] as const);
  });
  const name = kept
    .map((outcome) => (outcome === true ? "1" : outcome === false ? "0" : outcome[0]))
    .join("");
  return { name: `subset ${name}`, survival: (_, index) => kept[index] ?? false };
}
