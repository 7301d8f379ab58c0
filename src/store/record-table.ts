import { KIB } from "../core/limits.ts";
import { type ContinuationRecord, isSettled } from "../core/record.ts";
import { settleRecord } from "../core/retention.ts";
import { thawRecord } from "./codec.ts";

/**
 * Records by id. A settled one is kept as its text where there is one: nothing works on it any more, and of thousands of
 * objects each garbage collection would walk every member. (They take about the same memory.)
 *
 * I1. What `get` and the iterations give equals what was put, whichever way it is kept.
 * I2. While files are read, a settled record never outlives its own reading as an object: only its facts do, until the
 *     indexes are built from them.
 */
export interface RecordTable {
  readonly size: number;
  get(id: string): ContinuationRecord | undefined;
  keys(): IterableIterator<string>;
  /** As read from a file with this text. A record with nothing left to reduce becomes its text at once. */
  read(record: ContinuationRecord, text: string): void;
  /** As committed. With a text, a settled record becomes that with the next `freeze`. */
  put(record: ContinuationRecord, text?: string): void;
  delete(id: string): void;
  freeze(): void;
  /** The records that are kept as objects: all that are not settled, and all that something is left to do for. */
  live(): Iterable<ContinuationRecord>;
  /** Every record of this moment, whatever changes while they are read. */
  all(): Iterable<ContinuationRecord>;
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

/** Longer texts stay objects, as the whole text would be read at each look at the record. */
const FROZEN_MAX_CHARS = 8 * KIB;

export function createRecordTable(records: Iterable<ContinuationRecord> = []): RecordTable {
  const held = new Map<string, ContinuationRecord | string>();
  const frozenFacts: RecordFacts[] = [];
  const freezing: { readonly record: ContinuationRecord; readonly text: string }[] = [];
  const thawed = (it: ContinuationRecord | string) => (typeof it === "string" ? thawRecord(it) : it);
  const freezable = (record: ContinuationRecord, text: string) =>
    text.length <= FROZEN_MAX_CHARS && isSettled(record);
  for (const record of records) held.set(record.continuationId, record);

  return {
    get size() {
      return held.size;
    },
    get(id) {
      const found = held.get(id);
      return found === undefined ? undefined : thawed(found);
    },
    keys: () => held.keys(),
    read(record, text) {
      const done = freezable(record, text) && settleRecord(record, "", { keepText: true }) === record;
      held.set(record.continuationId, done ? text : record);
      if (done) frozenFacts.push(factsOf(record));
    },
    put(record, text) {
      held.set(record.continuationId, record);
      if (text !== undefined && freezable(record, text)) freezing.push({ record, text });
    },
    delete: (id) => void held.delete(id),
    freeze() {
      for (const { record, text } of freezing.splice(0)) {
        if (held.get(record.continuationId) === record) held.set(record.continuationId, text);
      }
    },
    *live() {
      for (const it of held.values()) if (typeof it !== "string") yield it;
    },
    all() {
      const now = [...held.values()];
      return {
        *[Symbol.iterator]() {
          for (const it of now) yield thawed(it);
        },
      };
    },
    *facts() {
      yield* frozenFacts;
      for (const it of held.values()) if (typeof it !== "string") yield it;
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
