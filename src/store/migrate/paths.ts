import { join } from "node:path";
import { recordFileName } from "../../core/record.ts";
import { STORE_ENTRIES } from "../../core/store-files.ts";

/** Where the older formats lie in a state directory. */
export interface LegacyPaths {
  readonly records: string;
  readonly manifest: string;
  readonly transaction: string;
  readonly monolith: string;
  record(continuationId: string): string;
}

export function legacyPaths(stateDir: string): LegacyPaths {
  const records = join(stateDir, STORE_ENTRIES.legacyRecords);
  return {
    records,
    manifest: join(stateDir, STORE_ENTRIES.legacyManifest),
    transaction: join(stateDir, STORE_ENTRIES.legacyTransaction),
    monolith: join(stateDir, STORE_ENTRIES.legacyMonolith),
    record: (continuationId) => join(records, recordFileName(continuationId)),
  };
}
