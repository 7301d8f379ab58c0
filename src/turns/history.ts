import type { SnapshotMessage } from "../core/snapshot.ts";

/**
 * Orders messages (ascending) as whole turns: the messages of one run stand together at the place of its last one,
 * although other threads may have written in between. A turn that the window cut is left out.
 */
export function wholeTurns(messages: readonly SnapshotMessage[]): SnapshotMessage[] {
  const runs = new Map<string, SnapshotMessage[]>();
  const ordered: SnapshotMessage[][] = [];
  for (const message of [...messages].reverse()) {
    const group = message.runId === undefined ? undefined : runs.get(message.runId);
    if (group !== undefined) {
      group.unshift(message);
      continue;
    }
    const started = [message];
    ordered.unshift(started);
    if (message.runId !== undefined) runs.set(message.runId, started);
  }
  return ordered.filter((group) => group[0]?.runId === undefined || group[0].role === "user").flat();
}
