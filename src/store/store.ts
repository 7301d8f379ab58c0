import type { OriginGroup } from "../core/derive.ts";
import { assert, errorText, StoreError } from "../core/errors.ts";
import { type RetentionLimits, TRANSACTION_MAX_BYTES } from "../core/limits.ts";
import type { Clock, FileSystem, Ids, Logger, OwnershipLock } from "../core/ports/platform.ts";
import type { ContinuationStore, StoreChange } from "../core/ports/store.ts";
import type { ContinuationRecord } from "../core/record.ts";
import { fitsRecord } from "../core/record-check.ts";
import { settleRecord } from "../core/retention.ts";
import { activationMarker, isPendingFor, projectPinned, publishMarker, removeMarker } from "./activation.ts";
import { createCarry } from "./checkpoint.ts";
import { createDurableView } from "./durable-view.ts";
import { guardSteps, guardSyncSteps } from "./guard.ts";
import { createHeadView } from "./head-view.ts";
import type { Inspection } from "./inspect.ts";
import { type CarryLimits, createJournal, type Mutation } from "./journal.ts";
import { createManifestWriter } from "./manifest.ts";
import type { StorePaths } from "./paths.ts";
import { createRetentionIndex } from "./retention-index.ts";
import { createSnapshots } from "./snapshots.ts";
import { deleteEntry, type Entry, putEntry } from "./transaction.ts";

/**
 * Owns: the two views, what a mutation does to them, retention with each commit, the activation barrier.
 * Does not own: opening (open.ts), the order of writes (journal.ts).
 *
 * I1. `head` changes in the same call as the queue of the journal, so both have the same order.
 * I2. `durable` changes only after the transaction that carries the change is durable.
 * I3. An activation changes head when it is asked for: mutations decided later build on pinned members and wait
 *     behind the barrier, so no version from before it can come after it.
 */

/** Records that one commit drops at most beyond those it adds: deletes come gently (many at once slow folders down). */
const RETENTION_EXTRA = 16;
const SWEEP_BATCH = 256;

export interface StoreDeps {
  readonly fs: FileSystem;
  readonly paths: StorePaths;
  readonly clock: Clock;
  readonly ids: Ids;
  readonly logger: Logger;
  readonly retention: RetentionLimits;
  readonly lock: OwnershipLock;
  readonly secret: Uint8Array;
  readonly inspection: Inspection;
  readonly carryLimits: CarryLimits;
}

/** What opening needs beside the port. */
export interface OpenedStore {
  readonly store: ContinuationStore;
  /** Commits as a barrier of its own. */
  enqueueBarrier(puts: readonly ContinuationRecord[], after: () => Promise<void>): Promise<void>;
  /** Makes the guard and then `rollbackGuardRequired: true` durable. Free when both are. */
  requireGuard(): Promise<void>;
  drain(): Promise<void>;
  sweepSnapshots(): Promise<void>;
  /** Gives up ownership and writes nothing more: opening failed half way, and the next one goes on from here. */
  abandon(): Promise<void>;
}

export function createStore({ inspection, ...deps }: StoreDeps): OpenedStore {
  const { fs, paths, clock, logger } = deps;
  const { records } = inspection;
  const durable = createDurableView(records, deps.retention);
  const head = createHeadView(durable, records.live());
  const retention = createRetentionIndex(records.facts(), deps.retention);
  records.forgetFacts();
  const snapshots = createSnapshots({
    fs,
    paths,
    logger,
    found: inspection.blobs,
    records: records.live(),
    requireUsable,
  });
  const manifest = createManifestWriter({
    fs,
    paths,
    clock,
    ids: deps.ids,
    logger,
    stats: () => durable.stats(),
    found: inspection.manifest,
  });
  const deleted = inspection.transaction?.deletes ?? [];
  const carry = createCarry({
    fs,
    paths,
    spares: deps.carryLimits.spares,
    carried: [...(inspection.transaction?.writes ?? []).map(putEntry), ...deleted.map(deleteEntry)],
    filed: [...records.keys(), ...deleted],
  });
  let guardInstalled = inspection.guard;
  const listeners = new Set<(changed: readonly string[]) => void>();
  const promises = new WeakMap<object, Promise<void>>();
  let closing: Promise<void> | undefined;

  async function requireGuard(): Promise<void> {
    if (!guardInstalled) await fs.run(guardSteps(paths));
    // A guard found without the manifest is from a process that may have been killed before it could sync it.
    else if (!manifest.guardRequired) await fs.run(guardSyncSteps(paths));
    guardInstalled = true;
    if (!manifest.guardRequired) await manifest.requireGuard();
  }

  const journal = createJournal({
    fs,
    paths,
    clock,
    ids: deps.ids,
    carry,
    carryLimits: deps.carryLimits,
    transactionExists: inspection.transaction !== undefined,
    guard: requireGuard,
    committed(entries) {
      for (const entry of entries) {
        const previous = durable.apply(entry.id, entry.record);
        head.committed(entry.id, entry);
        snapshots.refer(previous, entry.record);
      }
      manifest.touch();
      const changed = entries.map((entry) => entry.id);
      for (const listener of listeners) {
        try {
          listener(changed);
        } catch (error) {
          logger.error("a listener for durable changes failed", { reason: errorText(error) });
        }
      }
      durable.freeze();
    },
    poisoned(error, fault) {
      snapshots.stop();
      void manifest.stop();
      logger.error(error.message, { errno: fault.code });
    },
  });

  function requireUsable(): void {
    const fault = journal.fault();
    if (fault !== undefined) {
      throw new StoreError(
        "store_poisoned",
        `the continuation store needs a restart since ${fault.since} (${fault.code}); nothing acknowledged is lost`,
      );
    }
    if (closing !== undefined) throw new StoreError("service_stopping", "the continuation store is closed");
  }

  function show(entry: Entry): void {
    retention.change(head.apply(entry.id, entry.record, entry), entry.record);
  }

  /** Shows what retention drops now and adds it to the entries of the commit. */
  function retain(nowMs: number, budget: number, entries: Map<string, Entry>): void {
    const { deletes, texts } = retention.beyond(nowMs, budget);
    const nowIso = new Date(nowMs).toISOString();
    const drop = (entry: Entry) => {
      show(entry);
      entries.set(entry.id, entry);
    };
    for (const id of deletes) drop(deleteEntry(id));
    for (const id of texts) {
      const record = head.get(id);
      if (record === undefined) continue;
      const reduced = settleRecord(record, nowIso, { keepText: false });
      const entry = entryUnlessTooLarge(reduced);
      if (entry !== undefined) drop(entry);
    }
  }

  function enqueue(entries: readonly Entry[], barrier: Omit<Mutation, "entries"> = {}): Promise<void> {
    const promise = journal.enqueue({ ...barrier, entries });
    for (const entry of entries) promises.set(entry, promise);
    return promise;
  }

  function commit(change: StoreChange): Promise<void> {
    requireUsable();
    const nowMs = clock.now();
    const nowIso = new Date(nowMs).toISOString();
    const entries = new Map<string, Entry>();
    // Everything that can be refused is refused before head changes.
    for (const put of change.puts) {
      assert(!entries.has(put.continuationId), "a change names each continuation once");
      const record = settleRecord(put, nowIso, { keepText: true });
      // What the next start would refuse must not become durable: one such record stops them all.
      assert(fitsRecord(record), "a record that is committed is one by its schema");
      entries.set(record.continuationId, putEntry(record));
    }
    const budget = entries.size + RETENTION_EXTRA;
    for (const entry of entries.values()) show(entry);
    retain(nowMs, budget, entries);
    return enqueue([...entries.values()]);
  }

  async function whenDurable(continuationId?: string): Promise<void> {
    if (continuationId === undefined) return journal.enqueue({ entries: [] });
    const change = head.pendingChange(continuationId);
    if (change === undefined) return;
    const committing = promises.get(change);
    assert(committing !== undefined, "what head shows and is not durable is being committed");
    await committing;
  }

  async function activate(group: OriginGroup, digest: string, activatedAt: string): Promise<string[]> {
    requireUsable();
    const members = head.members(group);
    const pending = members.filter((member) => isPendingFor(member, digest));
    if (pending.length === 0) {
      await Promise.all(members.map((member) => whenDurable(member.continuationId)));
      return [];
    }
    const entries = pending.map((member) => {
      const pinned = projectPinned(member, activatedAt);
      return putEntry(pinned);
    });
    const ids = pending.map((member) => member.continuationId);
    if (pending.length < members.length) {
      // A marker covers every non-terminal member, and the older runtime pins them all. With an abandoned or foreign
      // sibling that would be wrong, so these are pinned without one: by a single transaction, which is atomic too.
      if (entries.reduce((sum, entry) => sum + entry.bytes, carry.bytes) > TRANSACTION_MAX_BYTES / 2) {
        throw new StoreError(
          "store_corrupt",
          `origin run ${group.originRunId} has members that are not bound to its snapshot, and too much beside them to activate at once`,
        );
      }
      for (const entry of entries) show(entry);
      await enqueue(entries);
      return ids;
    }
    const marker = activationMarker(group, digest, ids, activatedAt);
    for (const entry of entries) show(entry);
    await enqueue(entries, {
      async before() {
        const now = durable.members(group);
        const same =
          now.length === ids.length &&
          now.every((member) => ids.includes(member.continuationId) && isPendingFor(member, digest));
        assert(same, "the durable members at the barrier are those that head showed when it was asked for");
        await publishMarker(fs, paths, marker);
      },
      after: () => removeMarker(fs, paths, marker),
    });
    return ids;
  }

  async function sweep(nowMs: number): Promise<void> {
    for (;;) {
      requireUsable();
      const entries = new Map<string, Entry>();
      retain(nowMs, SWEEP_BATCH, entries);
      if (entries.size === 0) return;
      await enqueue([...entries.values()]);
    }
  }

  async function finish(): Promise<void> {
    try {
      if (journal.fault() === undefined) {
        await journal.drain();
        await snapshots.idle();
        await manifest.close();
      }
    } catch (error) {
      // Nothing is lost: what was acknowledged is in the transaction file or the record files.
      logger.error("the continuation store could not be closed in order", { reason: errorText(error) });
    } finally {
      await giveUp();
    }
  }

  async function giveUp(): Promise<void> {
    snapshots.stop();
    journal.stop();
    // Whoever owns the directory next must find nothing of ours still on its way.
    await Promise.all([journal.idle(), snapshots.idle(), manifest.stop()]);
    deps.lock.release();
  }

  return {
    store: {
      secret: deps.secret,
      head,
      durable,
      snapshots,
      commit,
      whenDurable,
      activate,
      sweep,
      onDurable(listener) {
        listeners.add(listener);
        return () => listeners.delete(listener);
      },
      capture() {
        const { records, release } = durable.capture();
        const releaseSnapshots = snapshots.keepAll();
        return {
          records,
          release() {
            release();
            releaseSnapshots();
          },
        };
      },
      fault: () => journal.fault(),
      close() {
        closing ??= finish();
        return closing;
      },
    },
    enqueueBarrier(puts, after) {
      const entries = puts.map(putEntry);
      for (const entry of entries) show(entry);
      return enqueue(entries, { before: async () => {}, after });
    },
    requireGuard,
    drain: () => journal.drain(),
    sweepSnapshots: () => snapshots.sweepAll(),
    abandon() {
      closing ??= giveUp();
      return closing;
    },
  };
}

/** Undefined for a record at the very limit of its size, which the date of its reduction would push over it. */
function entryUnlessTooLarge(record: ContinuationRecord): Entry | undefined {
  try {
    return putEntry(record);
  } catch (error) {
    if (error instanceof StoreError && error.code === "record_too_large") return undefined;
    throw error;
  }
}
