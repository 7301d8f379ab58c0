import { groupKey, memberSetDigest, type OriginGroup } from "../core/derive.ts";
import { fileJson } from "../core/json.ts";
import { MARKER_MAX_BYTES } from "../core/limits.ts";
import type { FileSystem } from "../core/ports/platform.ts";
import { type ContinuationRecord, isTerminal } from "../core/record.ts";
import { readSecureFile, replaceSteps } from "../core/secure-files.ts";
import { type ActivationMarker, markerSchema } from "../core/store-files.ts";
import { checkValue, corrupt, parseJson } from "./codec.ts";
import type { StorePaths } from "./paths.ts";

/**
 * Owns: activation markers (store-format.md §5): their content, the projection of a member, publishing and removing.
 * Does not own: the barrier around them (journal.ts runs `publish` and `remove` as `before` and `after`).
 *
 * I1. A marker is published only for a member set that this runtime and the older one can always project: every
 *     member is pending and bound to the same snapshot, and every projected record fits.
 * I2. Projecting is idempotent: applied again after a crash it gives the same records.
 */

/** Whether a member can be projected by a marker for this snapshot: not yet, or already pinned to it. */
function isBoundTo(record: ContinuationRecord, snapshotDigest: string): boolean {
  return record.originContextDigest === snapshotDigest && record.originContextRef?.digest === snapshotDigest;
}

export function isPendingFor(record: ContinuationRecord, snapshotDigest: string): boolean {
  return record.originContextState === "pending" && isBoundTo(record, snapshotDigest);
}

/** The record as its marker makes it. Without `nextAttemptAt` a result that already came is due at once. */
export function projectPinned(record: ContinuationRecord, activatedAt: string): ContinuationRecord {
  const next: ContinuationRecord = { ...record, originContextState: "pinned", updatedAt: activatedAt };
  delete next.nextAttemptAt;
  if (next.lastError?.code === "origin_context_pending") delete next.lastError;
  return next;
}

export function activationMarker(
  group: OriginGroup,
  snapshotDigest: string,
  memberIds: readonly string[],
  activatedAt: string,
): ActivationMarker {
  return {
    schemaVersion: 1,
    groupKey: groupKey(group),
    originRunId: group.originRunId,
    originConversationId: group.originConversationId,
    historyBoundary: group.historyBoundary,
    snapshotDigest,
    memberCount: memberIds.length,
    memberSetDigest: memberSetDigest(memberIds),
    activatedAt,
  };
}

export async function publishMarker(
  fs: FileSystem,
  paths: StorePaths,
  marker: ActivationMarker,
): Promise<void> {
  const path = paths.marker(marker.groupKey);
  await fs.run([
    ...replaceSteps(path, paths.temporary(path), fileJson(marker), "marker"),
    { op: "syncDir", path: paths.markers, label: "marker.sync" },
  ]);
}

/** Durable before anything else may change a member: a marker whose set no longer matches stops every opening. */
export async function removeMarker(
  fs: FileSystem,
  paths: StorePaths,
  marker: ActivationMarker,
): Promise<void> {
  await fs.run([
    {
      op: "unlink",
      path: paths.marker(marker.groupKey),
      missingOk: false,
      label: "marker.unlink",
    },
    { op: "syncDir", path: paths.markers, label: "marker.unlink.sync" },
  ]);
}

/** Reads a marker file; its name and its key must both be the group's. */
export function readMarker(
  fs: FileSystem,
  paths: StorePaths,
  path: string,
): { marker: ActivationMarker; data: Uint8Array } | undefined {
  const data = readSecureFile(fs, path, MARKER_MAX_BYTES, "marker.read");
  if (data === undefined) return undefined;
  const marker = checkValue(path, markerSchema, parseJson(path, data));
  const key = groupKey(marker);
  if (marker.groupKey !== key || paths.marker(key) !== path) {
    throw corrupt(path, "does not carry the key of its own group");
  }
  return { marker, data };
}

/**
 * The records that a marker found on disk changes; none when it was applied already. Throws when its member set is
 * not exactly the one on disk, or a member is not bound to its snapshot: that is never guessed.
 */
export function markerProjection(
  path: string,
  marker: ActivationMarker,
  records: Iterable<ContinuationRecord>,
): ContinuationRecord[] {
  const members: ContinuationRecord[] = [];
  for (const record of records) {
    if (
      record.originRunId === marker.originRunId &&
      record.originConversationId === marker.originConversationId &&
      record.historyBoundary === marker.historyBoundary &&
      !isTerminal(record)
    ) {
      members.push(record);
    }
  }
  const ids = members.map((member) => member.continuationId);
  if (ids.length !== marker.memberCount || memberSetDigest(ids) !== marker.memberSetDigest) {
    throw corrupt(path, `names ${marker.memberCount} members that are not the ${ids.length} on disk`);
  }
  const changed: ContinuationRecord[] = [];
  for (const member of members) {
    const applied = member.originContextState === "pinned" && isBoundTo(member, marker.snapshotDigest);
    if (!applied && !isPendingFor(member, marker.snapshotDigest)) {
      throw corrupt(path, `has member ${member.continuationId}, which is not bound to its snapshot`);
    }
    const projected = projectPinned(member, marker.activatedAt);
    if (fileJson(projected) !== fileJson(member)) changed.push(projected);
  }
  return changed;
}
