import { diskRemedy } from "../core/disk-remedy.ts";
import { errorText, StoreError } from "../core/errors.ts";
import { KIB, MIB, TRANSACTION_MAX_BYTES } from "../core/limits.ts";
import { type Clock, FileFault, type FileSystem, type Ids } from "../core/ports/platform.ts";
import type { StoreFault } from "../core/ports/store.ts";
import { type Carry, SPARES_MAX } from "./checkpoint.ts";
import type { StorePaths } from "./paths.ts";
import type { Entry } from "./transaction.ts";
import { createTransactionSlot } from "./transaction-slot.ts";

/**
 * Owns: the order of commits; group commit; the poison flag.
 * Does not own: what a mutation means (store.ts), the transaction file (transaction-slot.ts), record files
 * (checkpoint.ts), markers (activation.ts).
 *
 * I1. One loop writes. Mutations become durable in the order in which they came; all that wait at the start of a
 *     turn share one transaction file, made durable by two fsyncs.
 * I2. The file carries every committed version that is not durable in its own file, and the new ones.
 * I3. A mutation with `before` is alone: everything earlier is durable before it, everything later waits for `after`.
 * I4. After the first failure nothing is written any more and every waiter, now or later, is refused.
 */

/** Carried bytes at which the checkpoint starts in the background; until then a commit rewrites them (DESIGN.md). */
export const CHECKPOINT_START_BYTES = 128 * KIB;
/** Carried bytes at which commits wait for the checkpoint. */
export const CARRY_MAX_BYTES = 1 * MIB;
/** How much the transaction file carries; the explorer uses small ones, so that little work makes many checkpoints. */
export interface CarryLimits {
  readonly startBytes: number;
  readonly maxBytes: number;
  /** Files that are kept to be written again. */
  readonly spares: number;
}
export const CARRY_LIMITS: CarryLimits = {
  startBytes: CHECKPOINT_START_BYTES,
  maxBytes: CARRY_MAX_BYTES,
  spares: SPARES_MAX,
};
/** Room for the frame of the transaction file: keys, generation, date. */
const FRAME_BYTES = 1 * KIB;
/** Without a commit for this long, the spares are removed: what was dropped from the store must not lie about. */
export const QUIET_MS = 1_000;

export interface Mutation {
  readonly entries: readonly Entry[];
  /** Makes the mutation a barrier: runs alone, before its entries are committed. */
  readonly before?: () => Promise<void>;
  /** Runs after its entries are committed and before anything else is. */
  readonly after?: () => Promise<void>;
}

export interface Journal {
  /** Resolves when the entries are durable; rejects with a `StoreError` when the store is poisoned first. */
  enqueue(mutation: Mutation): Promise<void>;
  fault(): StoreFault | undefined;
  /** A barrier after which every record is in its own file and the transaction file is durably gone. */
  drain(): Promise<void>;
  /** Resolves when nothing is being written, also after a failure. Nothing may be enqueued meanwhile. */
  idle(): Promise<void>;
  /** From now on nothing is written but what is enqueued. */
  stop(): void;
}

interface Waiting extends Mutation {
  readonly bytes: number;
  readonly resolve: () => void;
  readonly reject: (error: StoreError) => void;
}

export interface JournalDeps {
  readonly fs: FileSystem;
  readonly paths: StorePaths;
  readonly clock: Clock;
  readonly ids: Ids;
  readonly carry: Carry;
  /** Runs before anything is made durable: the rollback guard. Called once a turn; cheap after the first time. */
  readonly guard: () => Promise<void>;
  /** Told after a transaction is durable, before its waiters are. */
  readonly committed: (entries: readonly Entry[]) => void;
  /** Told once, when the store is poisoned. */
  readonly poisoned: (error: StoreError, fault: StoreFault) => void;
  readonly carryLimits: CarryLimits;
  /** Whether a transaction file is there at the start. */
  readonly transactionExists: boolean;
}

export function createJournal(deps: JournalDeps): Journal {
  const { fs, paths, carry, carryLimits } = deps;
  const queue: Waiting[] = [];
  let running: Promise<void> | undefined;
  const slot = createTransactionSlot(fs, paths, deps.transactionExists);
  let lastCommitMs = 0;
  let stopQuietTimer: (() => void) | undefined;
  let failure: { fault: StoreFault; error: StoreError } | undefined;

  function poison(cause: unknown): StoreError {
    if (failure === undefined) {
      const code = cause instanceof FileFault ? cause.errno : "EUNKNOWN";
      const fault = { code, since: new Date(deps.clock.now()).toISOString() };
      const remedy = diskRemedy(code);
      const first = remedy === undefined ? "" : `${remedy} first; `;
      const error = new StoreError(
        "store_write_failed",
        `a write of the continuation store failed (${errorText(cause)}); ${first}it needs a restart, and nothing acknowledged is lost`,
        { cause },
      );
      failure = { fault, error };
      stop();
      deps.poisoned(error, fault);
    }
    for (const waiting of queue.splice(0)) waiting.reject(failure.error);
    return failure.error;
  }

  /** A checkpoint in the background may have failed since the last step. */
  function requireWritable(): void {
    if (failure !== undefined) throw failure.error;
  }

  async function commitEntries(entries: readonly Entry[]): Promise<void> {
    await deps.guard();
    const generation = deps.ids.uuid();
    const createdAt = new Date(deps.clock.now()).toISOString();
    await slot.replace((length) => carry.content(entries, { generation, createdAt, length }));
    lastCommitMs = deps.clock.now();
    watchForQuiet(QUIET_MS);
    carry.commit(entries);
    deps.committed(entries);
  }

  function watchForQuiet(delayMs: number): void {
    if (stopQuietTimer !== undefined) return;
    stopQuietTimer = deps.clock.timer(delayMs, () => {
      stopQuietTimer = undefined;
      if (failure !== undefined) return;
      const quietForMs = deps.clock.now() - lastCommitMs;
      // Set back, the clock no longer tells how long it was.
      if (quietForMs >= 0 && quietForMs < QUIET_MS) watchForQuiet(QUIET_MS - quietForMs);
      else void enqueue({ entries: [], before: removeSpares });
    });
  }

  function stop(): void {
    stopQuietTimer?.();
    stopQuietTimer = undefined;
  }

  /** What remains after a failure is a temporary as any other: the next opening removes it. */
  async function removeSpares(): Promise<void> {
    await carry.idle();
    requireWritable();
    const steps = [...carry.forgetSpares(), ...slot.forgetSpare()];
    if (steps.length > 0) await fs.run(steps).catch(() => {});
  }

  async function drainCarry(): Promise<void> {
    while (carry.size > 0) {
      requireWritable();
      await carry.checkpoint();
    }
  }

  /** Takes the mutations of one transaction from the queue: as many as fit beside what is carried, at least one. */
  function takeBatch(): Waiting[] {
    const batch: Waiting[] = [];
    let bytes = carry.bytes;
    for (let next = queue[0]; next !== undefined; next = queue[0]) {
      const alone = next.before !== undefined;
      if (batch.length > 0 && (alone || bytes + next.bytes > carryLimits.maxBytes)) break;
      bytes += next.bytes;
      batch.push(next);
      queue.shift();
      if (alone) break;
    }
    return batch;
  }

  /** The newest entry of each record, split so that no transaction passes 16 MiB. */
  function parts(batch: readonly Waiting[]): Entry[][] {
    const newest = new Map<string, Entry>();
    for (const waiting of batch) for (const entry of waiting.entries) newest.set(entry.id, entry);
    const split: Entry[][] = [];
    let room = 0;
    for (const entry of newest.values()) {
      if (split.length === 0 || entry.bytes > room) {
        split.push([]);
        room = TRANSACTION_MAX_BYTES - FRAME_BYTES - (split.length === 1 ? carry.bytes : 0);
      }
      split.at(-1)?.push(entry);
      room -= entry.bytes;
    }
    return split;
  }

  async function turn(batch: readonly Waiting[]): Promise<void> {
    const first = batch[0];
    if (first?.before !== undefined) await first.before();
    const transactions = parts(batch);
    for (const [index, entries] of transactions.entries()) {
      // A mutation above 16 MiB is either idempotent or covered by a marker, so its parts may be seen one by one.
      if (index > 0) await drainCarry();
      requireWritable();
      await commitEntries(entries);
    }
    if (first?.after !== undefined) await first.after();
  }

  async function loop(): Promise<void> {
    while (failure === undefined) {
      const next = queue[0];
      if (next === undefined) {
        if (!slot.exists || carry.size > 0) return;
        // Without this the file would only repeat what the record files say. Lost in a crash, it does just that.
        await slot.remove({ durable: false });
        continue;
      }
      if (carry.size > 0 && carry.bytes + next.bytes > carryLimits.maxBytes) {
        await carry.checkpoint();
        continue;
      }
      const batch = takeBatch();
      try {
        await turn(batch);
      } catch (error) {
        const refusal = poison(error);
        for (const waiting of batch) waiting.reject(refusal);
        return;
      }
      for (const waiting of batch) waiting.resolve();
      if (failure === undefined && carry.bytes > carryLimits.startBytes && !carry.checkpointing) {
        carry.checkpoint().then(wake, poison);
      }
    }
  }

  function wake(): void {
    if (running !== undefined) return;
    // The first mutation waits one microtask, so that all that are made in the same turn of the event loop join it.
    running = Promise.resolve()
      .then(loop)
      .catch((error: unknown) => void poison(error))
      .finally(() => {
        running = undefined;
        if (failure === undefined && queue.length > 0) wake();
      });
  }

  async function removeTransaction(): Promise<void> {
    await drainCarry();
    await removeSpares();
    if (slot.exists) await slot.remove({ durable: true });
  }

  function enqueue(mutation: Mutation): Promise<void> {
    if (failure !== undefined) return Promise.reject(failure.error);
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    // Callers that only care for others' commits must not turn a poisoned store into an unhandled rejection.
    promise.catch(() => {});
    const bytes = mutation.entries.reduce((sum, entry) => sum + entry.bytes, 0);
    queue.push({ ...mutation, bytes, resolve, reject });
    wake();
    return promise;
  }

  return {
    enqueue,
    fault: () => failure?.fault,
    drain: () => enqueue({ entries: [], before: removeTransaction }),
    stop,
    async idle() {
      do {
        await running;
        // The end of a checkpoint may start the loop again.
        await carry.idle();
      } while (running !== undefined);
    },
  };
}
