import { join } from "node:path";
import { recordFileName } from "../core/record.ts";
import { GUARD_FILE, STORE_ENTRIES } from "../core/store-files.ts";

/** Every path of a state directory (store-format.md §1), and names for temporaries. */
export interface StorePaths {
  readonly stateDir: string;
  readonly secret: string;
  readonly owner: string;
  readonly records: string;
  readonly transaction: string;
  readonly manifest: string;
  readonly snapshots: string;
  readonly markers: string;
  readonly legacyRecords: string;
  readonly guard: string;
  record(continuationId: string): string;
  snapshot(digest: string): string;
  marker(groupKey: string): string;
  /** A name beside `target` that no earlier step of this process used; leftovers are removed when the store opens. */
  temporary(target: string): string;
  /** A temporary that is there and can't be removed: no later name is the same. */
  avoidTemporary(path: string): void;
}

const OWN_TEMPORARY = /\.(\d{1,15})\.tmp$/;

export function storePaths(stateDir: string): StorePaths {
  const at = (name: string) => join(stateDir, name);
  const records = at(STORE_ENTRIES.records);
  const snapshots = at(STORE_ENTRIES.snapshots);
  const markers = at(STORE_ENTRIES.markers);
  const legacyRecords = at(STORE_ENTRIES.legacyRecords);
  let temporaries = 0;
  return {
    stateDir,
    secret: at(STORE_ENTRIES.secret),
    owner: at(STORE_ENTRIES.owner),
    records,
    transaction: at(STORE_ENTRIES.transaction),
    manifest: at(STORE_ENTRIES.manifest),
    snapshots,
    markers,
    legacyRecords,
    guard: join(legacyRecords, GUARD_FILE),
    record: (continuationId) => join(records, recordFileName(continuationId)),
    snapshot: (digest) => join(snapshots, `${digest}.json`),
    marker: (groupKey) => join(markers, `${groupKey}.json`),
    temporary(target) {
      temporaries += 1;
      const cut = Math.max(target.lastIndexOf("/"), target.lastIndexOf("\\")) + 1;
      return `${target.slice(0, cut)}.${target.slice(cut)}.${temporaries}.tmp`;
    },
    avoidTemporary(path) {
      temporaries = Math.max(temporaries, Number(OWN_TEMPORARY.exec(path)?.[1] ?? 0));
    },
  };
}
