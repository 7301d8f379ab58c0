import { realpathSync } from "node:fs";
import { basename, dirname, isAbsolute, join, relative, sep } from "node:path";
import { HOST_ENTRIES } from "../core/host-files.ts";
import { STORE_ENTRIES } from "../core/store-files.ts";
import { TERMINAL_TOKEN_FILE } from "../core/terminal.ts";

/**
 * Owns: that nothing that is configured lies where this program deletes, or takes every file for its own.
 *
 * I1. Links on the way to a configured path, and to where our entries lie, count as what they lead to, as far as it is
 *     there.
 */

export interface ConfiguredPath {
  readonly key: readonly string[];
  readonly absolute: string;
}

/** Entries in which nothing of others may be. Backups are for people to look at, and are left alone. */
const { backups: _, runs: RUNS, ...OF_HOST } = HOST_ENTRIES;
const OF_HOST_ALONE = [...Object.values(OF_HOST), TERMINAL_TOKEN_FILE];

/** What is wrong with the places, each with the key that names it. */
export function misplaced(
  paths: readonly ConfiguredPath[],
  { hostDir, stateDir }: { readonly hostDir: string; readonly stateDir: string },
): { key: readonly string[]; message: string }[] {
  const reserved = [
    {
      at: join(hostDir, RUNS),
      why: "which every start empties: name another place, and move there what is in it",
    },
    ...OF_HOST_ALONE.map((name) => ({
      at: join(hostDir, name),
      why: "which is the host's alone: name another place",
    })),
    ...Object.values(STORE_ENTRIES).map((name) => ({
      at: join(stateDir, name),
      why: "which is the continuation store's alone: name another place",
    })),
  ];
  // A link in the place of an entry is not followed by whoever owns that either: it is refused, or let go of.
  const found = reserved.map((entry) => ({
    ...entry,
    real: join(real(dirname(entry.at)), basename(entry.at)),
  }));
  return paths.flatMap(({ key, absolute }) => {
    const place = real(absolute);
    const taken = found.find(({ at, real: there }) => isWithin(absolute, at) || isWithin(place, there));
    if (taken === undefined) return [];
    return [{ key, message: `${absolute} lies in ${taken.at}, ${taken.why}` }];
  });
}

/** With the links of the part that is there followed. */
function real(path: string): string {
  const missing: string[] = [];
  for (let at = path; ; at = dirname(at)) {
    try {
      return join(realpathSync.native(at), ...missing);
    } catch {
      if (dirname(at) === at) return path;
      missing.unshift(basename(at));
    }
  }
}

/** Whether an absolute path is the folder, or lies in it, by their names alone. */
export function isWithin(path: string, folder: string): boolean {
  const way = relative(folder, path);
  return way !== ".." && !way.startsWith(`..${sep}`) && !isAbsolute(way);
}
