import type { OriginGroup } from "../derive.ts";
import type { Result } from "../errors.ts";
import type { ContinuationRecord, OriginContextRef } from "../record.ts";
import type { OriginSnapshot } from "../snapshot.ts";
import type { StoreStats } from "../store-files.ts";

/** Whole new record versions, applied together. Only retention deletes. */
export interface StoreChange {
  readonly puts: readonly ContinuationRecord[];
}

export interface Page {
  readonly records: ContinuationRecord[];
  /** `[createdAt, continuationId]` of the last row when more follow. */
  readonly next?: readonly [createdAt: string, continuationId: string];
}

export interface StoreFault {
  /** The errno or code of the first failed commit. */
  readonly code: string;
  readonly since: string;
}

/**
 * Records as one reader sees them. The store has two views: `head`, the newest state in memory, on which
 * mutations are decided; and `durable`, what is committed, which is all that anybody may see or act on.
 */
export interface RecordView {
  get(continuationId: string): ContinuationRecord | undefined;
  /** By server name, origin run id and task key (`claimIdentity`). */
  byClaim(identity: string): ContinuationRecord | undefined;
  /** Non-terminal records of the origin group. */
  members(group: OriginGroup): ContinuationRecord[];
  /** Number of non-terminal records, in all and for one origin (`originKey` of core/record.ts). */
  active(): number;
  activeOfOrigin(originKey: string): number;
}

export interface DurableView extends RecordView {
  /**
   * Work that may start at `nowMs`: `result_received`, `ready_to_deliver` and `delivery_retry` whose
   * `nextAttemptAt` has passed, which no live lease holds and whose post has not begun; oldest `updatedAt` first, at most `limit`.
   */
  due(nowMs: number, limit: number): ContinuationRecord[];
  /** How many records `due` would give without a limit. */
  dueCount(nowMs: number): number;
  /** Oldest `createdAt` of the non-terminal records. */
  oldestActiveAt(): string | undefined;
  /** The next time after `afterMs` at which work becomes due, or a deadline passes; undefined for never. */
  nextDueAt(afterMs: number): number | undefined;
  nextDeadlineAt(afterMs: number): number | undefined;
  /** Non-terminal records whose deadline is at or before `nowMs`, at most `limit`. */
  overdue(nowMs: number, limit: number): ContinuationRecord[];
  /**
   * Dead letters that hold their text still, for an operator's retry, with a deadline after `nowMs`; nearest first. None of
   * them is read. Change nothing meanwhile.
   */
  retryable(nowMs: number): Iterable<TimeKey>;
  /** Every record in one of the given states (start-up recovery, `owed`). Settled ones are many, and slow to read. */
  inStates(states: readonly ContinuationRecord["state"][]): ContinuationRecord[];
  /** Whether there is a record of this run. Looks at the claim of each record: for start-up. */
  knowsRun(originRunId: string): boolean;
  /** Newest `createdAt` first, then id descending, strictly after `after`. */
  page(limit: number, after?: readonly [string, string], state?: ContinuationRecord["state"]): Page;
  counts(): Record<ContinuationRecord["state"], number>;
  stats(): StoreStats;
}

/** A time and the record that has it. */
export interface TimeKey {
  readonly at: number;
  readonly id: string;
}

/** Why a referenced snapshot could not be used. It harms only its own continuation. */
export type SnapshotDamage = "missing" | "unreadable" | "corrupt";

export interface SnapshotStore {
  /**
   * Makes the snapshot durable and pins it against the sweep until `release` is called; by then a durable
   * record must refer to it. Refuses with `snapshot_quota` when all blobs together would pass 256 MiB.
   */
  put(snapshot: OriginSnapshot): Promise<Result<{ ref: OriginContextRef; release: () => void }>>;
  read(ref: OriginContextRef): { ok: true; snapshot: OriginSnapshot } | { ok: false; damage: SnapshotDamage };
}

/** What was committed at one instant, for a copy of the state. */
export interface StoreCapture {
  readonly records: Iterable<ContinuationRecord>;
  /** Lets the store drop snapshots again that nothing refers to any more. */
  release(): void;
}

/**
 * The per-record-v3 store. A mutation is decided synchronously on `head` and handed to `commit`, with no await in
 * between; that is what makes read-decide-write atomic.
 *
 * Retention (store-format.md §8) is part of the store: each commit also drops what it pushes beyond the limits.
 */
export interface ContinuationStore {
  readonly secret: Uint8Array;
  readonly head: RecordView;
  readonly durable: DurableView;
  readonly snapshots: SnapshotStore;
  /**
   * Applies the change to `head` at once; resolves when it is durable. Rejects with a `StoreError` when a commit
   * failed: the store then refuses every later mutation (`store_poisoned`) until a restart.
   * Throws synchronously, changing nothing, when a record would pass 2 MiB (`record_too_large`) or the store is
   * poisoned or closed.
   */
  commit(change: StoreChange): Promise<void>;
  /** Resolves when what `head` shows now, of this record or of all, is durable; rejects as `commit` does. */
  whenDurable(continuationId?: string): Promise<void>;
  /**
   * Group activation (store-format.md §5), a barrier in the journal: flush; read the members from durable state;
   * publish the marker; commit every member as `pinned`; unlink the marker durably; only then other changes to
   * members go on. Resolves with the ids activated: the pending members whose `originContextDigest` is
   * `snapshotDigest`. Idempotent: without such members it does nothing and resolves with none.
   */
  activate(group: OriginGroup, snapshotDigest: string, activatedAt: string): Promise<string[]>;
  /**
   * Age-based retention without a commit. The service asks for it each hour; a host that uses the store by itself has to.
   * Resolves when what it drops is durable.
   */
  sweep(nowMs: number): Promise<void>;
  /** Called after each durable commit with the changed ids. Returns an unsubscribe function. */
  onDurable(listener: (changed: readonly string[]) => void): () => void;
  /**
   * The committed records of this instant, decided without waiting, so that what the caller captures of another store
   * in the same turn of the event loop belongs to the same instant. Snapshots that they refer to stay until `release`.
   */
  capture(): StoreCapture;
  fault(): StoreFault | undefined;
  /** Flushes, writes the manifest and gives up ownership. Idempotent. */
  close(): Promise<void>;
}
