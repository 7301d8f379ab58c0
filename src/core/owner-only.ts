import type { FileStat, FileSystem } from "./ports/platform.ts";

/** The stricter rule of files that hold one secret: exactly 0600, and read in one go. */

export type OwnerOnlyText =
  | { readonly kind: "text"; readonly text: string }
  | { readonly kind: "too_big" }
  /** The problem goes on from the path of the file. */
  | { readonly kind: "unsafe"; readonly problem: string };

/**
 * Reads a small file that holds a secret, without following a link; undefined when it is not there. One that others
 * could read or write is unsafe: whoever can write it could give us theirs for ours.
 */
export function readOwnerOnlyText(
  fs: Pick<FileSystem, "uid" | "lstat" | "open">,
  path: string,
  maxBytes: number,
  label: string,
): OwnerOnlyText | undefined {
  const named = fs.lstat(path, label);
  if (named === undefined) return undefined;
  const before = ownerOnlyProblem(named, fs.uid);
  if (before !== undefined) return { kind: "unsafe", problem: before };
  const file = fs.open(path, label);
  if (file === undefined) return undefined;
  try {
    // The open descriptor decides: another of our processes may have replaced the file, or somebody else.
    const opened = file.stat();
    const problem = ownerOnlyProblem(opened, fs.uid);
    if (problem !== undefined) return { kind: "unsafe", problem };
    if (opened.size > maxBytes) return { kind: "too_big" };
    return { kind: "text", text: new TextDecoder().decode(file.read(opened.size)) };
  } finally {
    file.close();
  }
}

/**
 * Why a file that holds a secret must not be trusted, or undefined when it is safe: a regular file with one name, owned
 * by this user, mode 0600. On platforms without owners (`uid` undefined) only the kind is checked.
 */
function ownerOnlyProblem(stat: FileStat, uid: number | undefined): string | undefined {
  if (stat.kind !== "file") {
    return `is a ${stat.kind === "other" ? "device, socket or pipe" : stat.kind}, not a regular file`;
  }
  if (uid === undefined) return undefined;
  if (stat.uid !== uid) return `is owned by user ${stat.uid}, not by ${uid}`;
  if (stat.mode !== 0o600) return `has mode ${stat.mode.toString(8)}, not 600`;
  if (stat.links !== 1) return `has ${stat.links} names (hard links)`;
  return undefined;
}
