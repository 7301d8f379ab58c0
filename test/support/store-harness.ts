import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  groupKey,
  type OriginGroup,
  originContextBindingMac,
  originContextFingerprint,
} from "../../src/core/derive.ts";
import { type RetentionLimits, retentionSchema } from "../../src/core/limits.ts";
import type { FileSystem, Logger } from "../../src/core/ports/platform.ts";
import type { ContinuationStore } from "../../src/core/ports/store.ts";
import type { ContinuationRecord, OriginContextRef } from "../../src/core/record.ts";
import { buildSnapshot, type OriginSnapshot } from "../../src/core/snapshot.ts";
import { openContinuationStore } from "../../src/store/open.ts";
import { createRecordTable, type RecordTable } from "../../src/store/record-table.ts";
import { createFakeClock, type FakeClock } from "./fake-clock.ts";
import { createFakeIds } from "./fake-ids.ts";
import { claimedRecord, NOW_MS } from "./records.ts";
import { silentLogger } from "./silent-logger.ts";

/** Opening stores in tests, and records and snapshots that belong together. */

export const STATE_DIR = "/state";

export interface OpenForTest {
  fs: FileSystem;
  stateDir?: string;
  clock?: FakeClock;
  retention?: Partial<RetentionLimits>;
  logger?: Logger;
  /** Fixes the ids and the secret of a new directory. */
  seed?: string;
}

let opened = 0;

/** Opens a store without the ownership database: the in-memory filesystem has nothing that SQLite could lock. */
export function openStore(options: OpenForTest): Promise<ContinuationStore> {
  opened += 1;
  return openContinuationStore({
    stateDir: options.stateDir ?? STATE_DIR,
    fs: options.fs,
    clock: options.clock ?? createFakeClock(NOW_MS),
    ids: createFakeIds(options.seed ?? `store-${opened}`),
    logger: options.logger ?? silentLogger,
    retention: retentionSchema.parse(options.retention ?? {}),
    acquireLock: () => ({ release: () => {} }),
  });
}

/** A claim of its own run, so that records don't share an origin group by accident. */
export function claim(id: string, patch: Partial<ContinuationRecord> = {}): ContinuationRecord {
  return claimedRecord({
    continuationId: id,
    originRunId: `run-${id}`,
    historyBoundary: `run-${id}`,
    taskKey: `task-${id}`,
    ...patch,
  });
}

export const GROUP: OriginGroup = {
  originRunId: "run-g",
  originConversationId: "terminal:main",
  historyBoundary: "run-g",
};
export const GROUP_KEY = groupKey(GROUP);

export function snapshotOf(runId = "run-g", text = "a question"): OriginSnapshot {
  const snapshot = buildSnapshot({
    conversationId: "terminal:main",
    originRunId: runId,
    capturedAt: new Date(NOW_MS).toISOString(),
    history: [],
    userText: text,
    assistantText: "accepted",
  });
  if (snapshot === undefined) throw new Error("the snapshot does not fit");
  return snapshot;
}

/** A member of the group of `GROUP`, bound to the snapshot. */
export function member(
  id: string,
  ref: OriginContextRef,
  secret: Uint8Array,
  patch: Partial<ContinuationRecord> = {},
): ContinuationRecord {
  const record = claim(id, { originRunId: "run-g", historyBoundary: "run-g", ...patch });
  return {
    ...record,
    originContextRef: ref,
    originContextDigest: ref.digest,
    originContextMessageCount: ref.messageCount,
    originContextFingerprint: originContextFingerprint(record.claimFingerprint, ref.digest),
    originContextBindingMac: originContextBindingMac(secret, record, ref),
  };
}

/** Every record of a store, by id. */
/** The records as objects, each as it was put. */
export function tableOf(records: Iterable<ContinuationRecord>): RecordTable {
  const table = createRecordTable();
  for (const record of records) table.put(record);
  return table;
}

export function recordsOf(store: ContinuationStore): Record<string, ContinuationRecord> {
  const { records } = store.durable.page(1_000_000);
  return Object.fromEntries(
    records
      .map((record) => [record.continuationId, JSON.parse(JSON.stringify(record))] as const)
      .sort(([a], [b]) => (a < b ? -1 : 1)),
  );
}

/** Runs `use` with a fresh temporary folder, and removes it. */
export async function withFolder<T>(use: (folder: string) => T | Promise<T>): Promise<T> {
  const folder = mkdtempSync(join(tmpdir(), "store-test-"));
  try {
    return await use(join(folder, "state"));
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
