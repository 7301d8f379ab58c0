import type { OriginGroup } from "../core/derive.ts";
import { type ContinuationRecord, isTerminal, originKey } from "../core/record.ts";

/** Non-terminal records by origin group and by the origin that limits them, kept up one change at a time. */
export interface ActiveIndex {
  change(previous: ContinuationRecord | undefined, next: ContinuationRecord | undefined): void;
  members(group: OriginGroup): string[];
  total(): number;
  ofOrigin(key: string): number;
}

/** Undefined for a record that belongs to no origin group: detached claims have no history boundary. */
function groupOf(record: ContinuationRecord): string | undefined {
  return record.historyBoundary === undefined
    ? undefined
    : joined({ ...record, historyBoundary: record.historyBoundary });
}

function joined(group: OriginGroup): string {
  return `${group.originRunId}\0${group.originConversationId}\0${group.historyBoundary}`;
}

/** Both are counted, and in the same place. */
function sameGroup(a: ContinuationRecord, b: ContinuationRecord): boolean {
  return (
    !isTerminal(a) &&
    !isTerminal(b) &&
    a.originRunId === b.originRunId &&
    a.originConversationId === b.originConversationId &&
    a.historyBoundary === b.historyBoundary &&
    originKey(a) === originKey(b)
  );
}

export function createActiveIndex(): ActiveIndex {
  const groups = new Map<string, Set<string>>();
  const origins = new Map<string, number>();
  let total = 0;

  function count(record: ContinuationRecord, step: 1 | -1): void {
    total += step;
    const origin = originKey(record);
    const left = (origins.get(origin) ?? 0) + step;
    if (left === 0) origins.delete(origin);
    else origins.set(origin, left);
    const group = groupOf(record);
    if (group === undefined) return;
    const ids = groups.get(group) ?? new Set<string>();
    if (step === 1) groups.set(group, ids.add(record.continuationId));
    else {
      ids.delete(record.continuationId);
      if (ids.size === 0) groups.delete(group);
    }
  }

  return {
    change(previous, next) {
      if (previous !== undefined && next !== undefined && sameGroup(previous, next)) return;
      if (previous !== undefined && !isTerminal(previous)) count(previous, -1);
      if (next !== undefined && !isTerminal(next)) count(next, 1);
    },
    members: (group) => [...(groups.get(joined(group)) ?? [])],
    total: () => total,
    ofOrigin: (key) => origins.get(key) ?? 0,
  };
}
