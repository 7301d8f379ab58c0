import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Survival } from "../../src/core/ports/crash-disk.ts";
import type { TurnStore } from "../../src/core/ports/turns.ts";
import { createMemoryFileSystem, type MemoryFileSystem } from "../../src/platform/memory-filesystem.ts";

/**
 * Moments of both stores. A moment is taken before each operation of the continuation store and right after each
 * commit of host.sqlite; between two of them nothing is durable that was not before. Of host.sqlite a power cut leaves
 * the last commit (synchronous FULL): its file and its log as they are then. Of the other disk it leaves any choice of
 * what was not synced.
 */

export interface Moment {
  readonly database: ReadonlyMap<string, Buffer>;
  readonly disk: MemoryFileSystem;
  readonly label: string;
  readonly survival: string;
  /** What the world outside had seen by then. */
  readonly seen: Seen;
}

export interface Seen {
  readonly synthesized: readonly string[];
  readonly posted: readonly string[];
  readonly claimed: readonly string[];
  readonly succeeded: boolean;
}

const COMMITS: ReadonlySet<string> = new Set([
  "admit",
  "startRun",
  "openStep",
  "closeStep",
  "openToolCall",
  "closeToolCall",
  "commitTurn",
  "endTurn",
  "closeActivation",
  "appendDelivered",
]);

/** Choices by chance at each moment, beside all and nothing. */
const SCATTERED = 8;
const SUFFIXES = ["", "-wal"];

export function createMoments(database: string, seen: () => Seen) {
  const moments: Moment[] = [];
  const known = new Set<string>();
  const disk = createMemoryFileSystem();
  let version = 0;
  let copy: ReadonlyMap<string, Buffer> = new Map();
  let random = 1;
  const chance = () => {
    random = (Math.imul(random, 1_664_525) + 1_013_904_223) >>> 0;
    return random / 2 ** 32;
  };
  const scattered: Survival = () => {
    const draw = chance();
    return draw < 0.15 ? "torn" : draw < 0.6;
  };

  function copyDatabase() {
    version += 1;
    copy = databaseFiles(database);
  }

  function take(label: string) {
    for (const [survival, choice] of [
      ["all", "all"],
      ["none", "none"],
      ...Array.from({ length: SCATTERED }, () => ["some", scattered] as const),
    ] as const) {
      const left = disk.afterPowerCut(choice);
      const key = `${version} ${left.digest()}`;
      if (known.has(key)) continue;
      known.add(key);
      moments.push({ database: copy, disk: left, label, survival, seen: seen() });
    }
  }

  return {
    disk,
    moments,
    begin() {
      copyDatabase();
      disk.failWhen((operation) => {
        take(`before ${operation.label}`);
        return undefined;
      });
    },
    /** The same ledger, with a moment after each of its commits. */
    watch(turns: TurnStore): TurnStore {
      return new Proxy(turns, {
        get(target, name: keyof TurnStore) {
          const method = target[name] as (...args: unknown[]) => unknown;
          if (!COMMITS.has(name)) return method;
          return (...args: unknown[]) => {
            const result = method(...args);
            copyDatabase();
            take(`after ${name}`);
            return result;
          };
        },
      });
    },
  };
}

/** host.sqlite and its log, as the last commit left them. */
export function databaseFiles(database: string): ReadonlyMap<string, Buffer> {
  return new Map(
    SUFFIXES.filter((suffix) => existsSync(database + suffix)).map((suffix) => [
      suffix,
      readFileSync(database + suffix),
    ]),
  );
}

/** Puts a host.sqlite as a crash left it into a folder of its own. */
export function restoreDatabase(database: ReadonlyMap<string, Buffer>): { path: string; remove(): void } {
  const folder = mkdtempSync(join(tmpdir(), "mono-both-"));
  const path = join(folder, "host.sqlite");
  for (const [suffix, data] of database) writeFileSync(path + suffix, data, { mode: 0o600 });
  return { path, remove: () => rmSync(folder, { recursive: true, force: true }) };
}
