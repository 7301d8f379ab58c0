import type { RetentionLimits } from "../../core/limits.ts";
import type { ContinuationStore, RecordView } from "../../core/ports/store.ts";
import { type ContinuationRecord, isSettled } from "../../core/record.ts";

/**
 * What a store has promised so far: the states that its mutations made, in order, and how far they were acknowledged.
 *
 * I1. `states[floor]` was acknowledged, or shown by the durable view: nothing before it may come back.
 * I2. The last state holds everything that was asked for: nothing beyond it may appear.
 */

export type Records = ReadonlyMap<string, ContinuationRecord>;

/** What an open store shows as durable. */
export function recordsOf(store: ContinuationStore): Records {
  const { records } = store.durable.page(Number.MAX_SAFE_INTEGER);
  return new Map(records.map((found) => [found.continuationId, found]));
}

export interface Ledger {
  readonly states: readonly Records[];
  readonly floor: number;
  /** Ids that may be there; head is asked for these. */
  know(continuationId: string): void;
  /** Head changed: takes its state down. Returns the number of that state, for `acknowledge`. */
  note(head: RecordView): number;
  acknowledge(state: number): void;
  /** The durable view shows something new; false when no state from the floor on explains it. */
  show(durable: RecordView): boolean;
}

export function createLedger(base: Records): Ledger {
  const states: Records[] = [base];
  const known = new Set(base.keys());
  let floor = 0;

  function seen(view: RecordView): Records {
    const records = new Map<string, ContinuationRecord>();
    for (const id of known) {
      const record = view.get(id);
      if (record !== undefined) records.set(id, record);
    }
    return records;
  }

  return {
    states,
    get floor() {
      return floor;
    },
    know: (id) => known.add(id),
    note(head) {
      const state = seen(head);
      if (recordsKey(state) !== recordsKey(states.at(-1) ?? base)) states.push(state);
      return states.length - 1;
    },
    acknowledge(state) {
      floor = Math.max(floor, state);
    },
    show(durable) {
      const key = recordsKey(seen(durable));
      for (let state = floor; state < states.length; state += 1) {
        if (recordsKey(states[state] ?? base) !== key) continue;
        floor = state;
        return true;
      }
      return false;
    },
  };
}

const texts = new WeakMap<ContinuationRecord, string>();
const keys = new WeakMap<Records, string>();

function recordText(record: ContinuationRecord): string {
  let text = texts.get(record);
  if (text === undefined) {
    text = JSON.stringify(record);
    texts.set(record, text);
  }
  return text;
}

/** Equal for two sets of records exactly when they hold the same versions. */
export function recordsKey(records: Records): string {
  let key = keys.get(records);
  if (key === undefined) {
    key = [...records.keys()]
      .sort()
      .map((id) => recordText(records.get(id) as ContinuationRecord))
      .join("\n");
    keys.set(records, key);
  }
  return key;
}

/** The records as opening leaves them at `nowMs`: store-format.md §8, said again without the store's index. */
export function retained(records: Records, limits: RetentionLimits, nowMs: number): Records {
  const kept = new Map(records);
  const newest = (list: ContinuationRecord[]) =>
    list.sort(
      (a, b) =>
        Date.parse(b.updatedAt) - Date.parse(a.updatedAt) || (a.continuationId < b.continuationId ? 1 : -1),
    );
  const beyond = (list: ContinuationRecord[], maxRecords: number, maxAgeMs: number) =>
    newest(list).filter(
      (record, rank) => rank >= maxRecords || nowMs - Date.parse(record.updatedAt) > maxAgeMs,
    );
  const settled = () => [...kept.values()].filter(isSettled);

  for (const { continuationId } of beyond(settled(), limits.terminalMaxRecords, limits.terminalMaxAgeMs)) {
    kept.delete(continuationId);
  }
  const holdsText = settled().filter((record) => record.synthesizedText !== undefined);
  const dead = holdsText.filter((record) => record.state === "dead_lettered");
  const captured = holdsText.filter((record) => record.mode === "capture" && !dead.includes(record));
  for (const record of [
    ...beyond(captured, limits.capturedTextMaxRecords, limits.capturedTextMaxAgeMs),
    ...beyond(dead, limits.deadLetterTextMaxRecords, limits.deadLetterTextMaxAgeMs),
  ]) {
    const { synthesizedText: _dropped, ...without } = record;
    kept.set(record.continuationId, without);
  }
  return kept;
}
