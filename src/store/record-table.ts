import type { StoreCapture } from "../core/ports/store.ts";
import { type ContinuationRecord, isSettled } from "../core/record.ts";
import { settleRecord } from "../core/retention.ts";
import { createFrozenRecords } from "./frozen-records.ts";

/**
 * Records by id. A settled one is kept as bytes (frozen-records.ts): nothing works on it any more.
 *
 * I1. What `get` and the iterations give equals what was put, whichever way it is kept.
 * I2. While files are read, a settled record never outlives its own reading as an object: only its facts do, until the
 *     indexes are built from them.
 */
export interface RecordTable {
  readonly size: number;
  get(id: string): ContinuationRecord | undefined;
  keys(): IterableIterator<string>;
  /** As read from a file. A record with nothing left to reduce becomes bytes at once. */
  read(record: ContinuationRecord): void;
  /** As committed. A settled record becomes bytes with the next `freeze`. */
  put(record: ContinuationRecord): void;
  delete(id: string): void;
  freeze(): void;
  /** The records that are kept as objects: all that are not settled, and all that something is left to do for. */
  live(): Iterable<ContinuationRecord>;
  /** Every record. Change nothing meanwhile. */
  all(): Iterable<ContinuationRecord>;
  /** Every record of this moment, whatever changes until `release`. */
  capture(): StoreCapture;
  /** What indexes are built from, of every record; until `forgetFacts`. */
  facts(): Iterable<RecordFacts>;
  forgetFacts(): void;
}

/** What the indexes and counts need of a settled record. A whole record is its own facts. */
export type RecordFacts = Pick<
  ContinuationRecord,
  | "continuationId"
  | "state"
  | "mode"
  | "createdAt"
  | "updatedAt"
  | "deadline"
  | "compactedAt"
  | "serverName"
  | "originRunId"
  | "taskKey"
  | "synthesizedText"
  | "receipt"
>;

export function createRecordTable(): RecordTable {
  const held = new Map<string, ContinuationRecord | number>();
  const frozen = createFrozenRecords();
  const frozenFacts: RecordFacts[] = [];
  const freezing: ContinuationRecord[] = [];
  /** What was dropped while somebody reads a capture. */
  const dropped: number[] = [];
  let captures = 0;
  const thawed = (it: ContinuationRecord | number) => (typeof it === "number" ? frozen.read(it) : it);

  function set(id: string, next: ContinuationRecord | number | undefined): void {
    const previous = held.get(id);
    if (typeof previous === "number") {
      if (captures > 0) dropped.push(previous);
      else frozen.remove(previous);
    }
    if (next === undefined) held.delete(id);
    else held.set(id, next);
  }

  return {
    get size() {
      return held.size;
    },
    get(id) {
      const found = held.get(id);
      return found === undefined ? undefined : thawed(found);
    },
    keys: () => held.keys(),
    read(record) {
      const done = isSettled(record) && settleRecord(record, "", { keepText: true }) === record;
      const handle = done ? frozen.add(record) : undefined;
      set(record.continuationId, handle ?? record);
      if (handle !== undefined) frozenFacts.push(factsOf(record));
    },
    put(record) {
      set(record.continuationId, record);
      if (isSettled(record)) freezing.push(record);
    },
    delete: (id) => set(id, undefined),
    freeze() {
      for (const record of freezing.splice(0)) {
        const { continuationId: id } = record;
        if (held.get(id) === record) held.set(id, frozen.add(record) ?? record);
      }
    },
    *live() {
      for (const it of held.values()) if (typeof it !== "number") yield it;
    },
    *all() {
      for (const it of held.values()) yield thawed(it);
    },
    capture() {
      const now = [...held.values()];
      captures += 1;
      let open = true;
      return {
        records: {
          *[Symbol.iterator]() {
            for (const it of now) yield thawed(it);
          },
        },
        release() {
          if (!open) return;
          open = false;
          captures -= 1;
          if (captures === 0) for (const handle of dropped.splice(0)) frozen.remove(handle);
        },
      };
    },
    *facts() {
      yield* frozenFacts;
      for (const it of held.values()) if (typeof it !== "number") yield it;
    },
    forgetFacts() {
      frozenFacts.length = 0;
    },
  };
}

function factsOf(record: ContinuationRecord): RecordFacts {
  const { continuationId, state, mode, createdAt, updatedAt, deadline, serverName, originRunId, taskKey } =
    record;
  const { compactedAt, synthesizedText, receipt } = record;
  return {
    continuationId,
    state,
    mode,
    createdAt,
    updatedAt,
    deadline,
    serverName,
    originRunId,
    taskKey,
    ...(compactedAt === undefined ? {} : { compactedAt }),
    ...(synthesizedText === undefined ? {} : { synthesizedText }),
    ...(receipt === undefined ? {} : { receipt }),
  };
}
