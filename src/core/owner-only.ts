import type { FileStat } from "./ports/platform.ts";

/**
 * Why a file that holds a secret must not be trusted, or undefined when it is safe: a regular file with one name, owned
 * by this user, mode 0600. On platforms without owners (`uid` undefined) only the kind is checked.
 */
export function ownerOnlyProblem(stat: FileStat, uid: number | undefined): string | undefined {
  if (stat.kind !== "file") {
    return `is a ${stat.kind === "other" ? "device, socket or pipe" : stat.kind}, not a regular file`;
  }
  if (uid === undefined) return undefined;
  if (stat.uid !== uid) return `is owned by user ${stat.uid}, not by ${uid}`;
  if (stat.mode !== 0o600) return `has mode ${stat.mode.toString(8)}, not 600`;
  if (stat.links !== 1) return `has ${stat.links} names (hard links)`;
  return undefined;
}
