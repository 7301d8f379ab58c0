import { z } from "zod";
import { utf8Bytes } from "./json.ts";
import { GENERATION_MAX_BYTES } from "./limits.ts";
import { dateText, hex64 } from "./record.ts";

/** The other files of a continuation state directory (store-format.md §5–§7). */

const text = z.string().min(1);
const count = z.int().min(0);
const generation = text.refine(
  (value) => utf8Bytes(value) <= GENERATION_MAX_BYTES,
  `must be at most ${GENERATION_MAX_BYTES} bytes`,
);

/**
 * A transaction without its records: the store checks those one by one, because their 2 MiB limit and what older
 * versions lack are not a matter of shape. No id may stand twice in `writes` and `deletes` together.
 */
export const transactionFrameSchema = z.looseObject({
  schemaVersion: z.literal(3),
  generation,
  createdAt: dateText,
  writes: z.array(z.unknown()),
  deletes: z.array(text),
});

export const storeStatsSchema = z.looseObject({
  format: z.literal("per-record-v3"),
  records: count,
  active: count,
  unresolvedDelivery: count,
  deadLettered: count,
  terminalTombstones: count,
  compacted: count,
  capturedText: count,
  historyDegraded: count,
  limits: z.looseObject({
    terminalMaxRecords: count,
    terminalMaxAgeMs: count,
    capturedTextMaxRecords: count,
    capturedTextMaxAgeMs: count,
  }),
});
export type StoreStats = z.infer<typeof storeStatsSchema>;

/** Only `rollbackGuardRequired` steers opening (a missing one reads as true); the stats are a report and may lag. */
export const manifestSchema = z.looseObject({
  schemaVersion: z.literal(3),
  generation,
  updatedAt: dateText,
  rollbackGuardRequired: z.boolean().default(true),
  stats: storeStatsSchema.optional(),
});
export type StoreManifest = z.infer<typeof manifestSchema>;

export const markerSchema = z.looseObject({
  schemaVersion: z.literal(1),
  groupKey: hex64,
  originRunId: text,
  originConversationId: text,
  historyBoundary: text,
  snapshotDigest: hex64,
  memberCount: z.int().min(1),
  memberSetDigest: hex64,
  activatedAt: dateText,
});
export type ActivationMarker = z.infer<typeof markerSchema>;

export const GUARD_FILE = "UPGRADED-TO-RECORDS-V3";
export const GUARD_CONTENT =
  "This state directory uses continuation records v3. Older runtimes must not open records-v2.\n";

/** Entries of the state directory (store-format.md §1). */
export const STORE_ENTRIES = {
  secret: "continuation-secret",
  owner: "continuations-owner.sqlite",
  records: "records-v3",
  transaction: "continuation-transaction-v3.json",
  manifest: "continuation-store-v3.json",
  snapshots: "origin-context-v1",
  markers: "origin-context-groups-v1",
  legacyRecords: "records-v2",
  legacyManifest: "continuation-store-v2.json",
  legacyTransaction: "continuation-transaction-v2.json",
  legacyMonolith: "continuations-v1.json",
} as const;
