import type { RetentionLimits } from "../core/limits.ts";
import { type ContinuationRecord, isSettled } from "../core/record.ts";
import { heldText } from "../core/retention.ts";
import type { RecordFacts } from "./record-table.ts";
import { compareText, createSorted, type Sorted } from "./sorted.ts";

/**
 * Which settled records lie beyond the limits of store-format.md §8. Three orders (all settled, captured texts,
 * dead-letter texts), each oldest first, follow every change of head; asking costs what is found.
 */
export interface RetentionIndex {
  change(previous: ContinuationRecord | undefined, next: ContinuationRecord | undefined): void;
  /** Ids beyond a limit now, at most `budget` of each kind: records to delete, and records that lose their text. */
  beyond(nowMs: number, budget: number): { deletes: string[]; texts: string[] };
}

interface Aged {
  readonly at: number;
  readonly id: string;
}

const oldestFirst = (a: Aged, b: Aged) => a.at - b.at || compareText(a.id, b.id);
const aged = (record: RecordFacts): Aged => ({
  at: Date.parse(record.updatedAt),
  id: record.continuationId,
});

export function createRetentionIndex(
  initial: Iterable<RecordFacts>,
  limits: RetentionLimits,
): RetentionIndex {
  const first = { settled: [] as Aged[], captured: [] as Aged[], dead_letter: [] as Aged[] };
  for (const facts of initial) {
    if (isSettled(facts)) first.settled.push(aged(facts));
    const held = heldText(facts);
    if (held !== undefined) first[held].push(aged(facts));
  }
  const settled = createSorted(oldestFirst, first.settled);
  const texts = {
    captured: createSorted(oldestFirst, first.captured),
    dead_letter: createSorted(oldestFirst, first.dead_letter),
  };

  function oldest(list: Sorted<Aged>, keep: number, maxAgeMs: number, nowMs: number, budget: number) {
    const found: string[] = [];
    for (const { at, id } of list.from()) {
      const surplus = list.size - found.length > keep;
      if (found.length >= budget || !(surplus || nowMs - at > maxAgeMs)) break;
      found.push(id);
    }
    return found;
  }

  return {
    change(previous, next) {
      if (previous !== undefined && isSettled(previous)) settled.remove(aged(previous));
      if (next !== undefined && isSettled(next)) settled.add(aged(next));
      const before = previous === undefined ? undefined : heldText(previous);
      const after = next === undefined ? undefined : heldText(next);
      if (previous !== undefined && before !== undefined) texts[before].remove(aged(previous));
      if (next !== undefined && after !== undefined) texts[after].add(aged(next));
    },
    beyond: (nowMs, budget) => ({
      deletes: oldest(settled, limits.terminalMaxRecords, limits.terminalMaxAgeMs, nowMs, budget),
      texts: [
        ...oldest(texts.captured, limits.capturedTextMaxRecords, limits.capturedTextMaxAgeMs, nowMs, budget),
        ...oldest(
          texts.dead_letter,
          limits.deadLetterTextMaxRecords,
          limits.deadLetterTextMaxAgeMs,
          nowMs,
          budget,
        ),
      ],
    }),
  };
}
