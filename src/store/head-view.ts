import type { RecordView } from "../core/ports/store.ts";
import { type ContinuationRecord, claimIdentity } from "../core/record.ts";
import { type ActiveIndex, createActiveIndex } from "./active-index.ts";

/**
 * The newest state in memory: the durable records with everything not yet committed laid over them. It costs memory
 * only for what is on its way to the disk.
 */
export interface HeadView extends RecordView {
  /** Shows this version from now on; gives the one before. `change` identifies it for `committed`. */
  apply(id: string, next: ContinuationRecord | undefined, change: object): ContinuationRecord | undefined;
  /** The version of this change is durable; forgets it here unless a newer one lies over it. */
  committed(id: string, change: object): void;
  /** The change that made the newest version of a record, while that is not durable. */
  pendingChange(id: string): object | undefined;
}

interface Pending {
  readonly record: ContinuationRecord | undefined;
  readonly change: object;
}

export function createHeadView(durable: RecordView, live: Iterable<ContinuationRecord>): HeadView {
  const pending = new Map<string, Pending>();
  const pendingClaims = new Map<string, string>();
  const active: ActiveIndex = createActiveIndex();
  for (const record of live) active.change(undefined, record);

  function get(id: string): ContinuationRecord | undefined {
    const newest = pending.get(id);
    return newest === undefined ? durable.get(id) : newest.record;
  }

  return {
    get,
    byClaim(identity) {
      const id = pendingClaims.get(identity) ?? durable.byClaim(identity)?.continuationId;
      return id === undefined ? undefined : get(id);
    },
    members: (group) => active.members(group).flatMap((id) => get(id) ?? []),
    active: () => active.total(),
    activeOfOrigin: (key) => active.ofOrigin(key),
    apply(id, next, change) {
      const previous = get(id);
      active.change(previous, next);
      pending.set(id, { record: next, change });
      if (next !== undefined) pendingClaims.set(claimIdentity(next), id);
      else if (previous !== undefined && pendingClaims.get(claimIdentity(previous)) === id) {
        pendingClaims.delete(claimIdentity(previous));
      }
      return previous;
    },
    committed(id, change) {
      const newest = pending.get(id);
      if (newest?.change !== change) return;
      pending.delete(id);
      if (newest.record === undefined) return;
      const identity = claimIdentity(newest.record);
      if (pendingClaims.get(identity) === id) pendingClaims.delete(identity);
    },
    pendingChange: (id) => pending.get(id)?.change,
  };
}
