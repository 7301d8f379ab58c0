import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type RetentionLimits, retentionSchema } from "../../src/core/limits.ts";
import type { CrashDisk } from "../../src/core/ports/crash-disk.ts";
import type { FileSystem } from "../../src/core/ports/platform.ts";
import type { ContinuationStore } from "../../src/core/ports/store.ts";
import { createMemoryFileSystem, type MemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import type { MigrationBatch } from "../../src/store/migrate/phases.ts";
import type { OnMigrationProgress } from "../../src/store/migrate/progress.ts";
import { openContinuationStore } from "../../src/store/open.ts";
// @ts-expect-error: plain JavaScript beside the fixtures, used as it is
import { materialize } from "../fixtures/materialize.mjs";
import { createFakeClock } from "./fake-clock.ts";
import { createFakeIds } from "./fake-ids.ts";
import { silentLogger } from "./silent-logger.ts";
import { STATE_DIR } from "./store-harness.ts";

/** Directories of the older formats on the disk in memory, and opening them there. */

/** Path below the state directory to text; a path that ends in a slash is an empty folder. */
export type Files = Readonly<Record<string, string>>;

export function diskWith(files: Files): MemoryFileSystem {
  const fs = createMemoryFileSystem();
  for (const [name, text] of Object.entries(files)) {
    const path = `${STATE_DIR}/${name}`;
    if (!name.endsWith("/")) fs.seed(path, text);
    else {
      fs.seed(`${path}x`, "");
      fs.erase(`${path}x`);
    }
  }
  return fs;
}

/** The files of a fixture. */
export function fixtureFiles(name: string): Files {
  const parent = mkdtempSync(join(tmpdir(), "fixture-"));
  const folder = join(parent, "state");
  try {
    materialize(name, folder);
    const files: Record<string, string> = {};
    for (const entry of readdirSync(folder, { recursive: true, encoding: "utf8" })) {
      const path = join(folder, entry);
      if (statSync(path).isDirectory()) files[`${entry}/`] = "";
      else if (!entry.startsWith("continuations-owner")) files[entry] = readFileSync(path, "utf8");
    }
    return files;
  } finally {
    rmSync(parent, { recursive: true, force: true });
  }
}

export function openLegacy(
  fs: FileSystem | CrashDisk,
  options: {
    nowMs: number;
    batch?: MigrationBatch;
    retention?: Partial<RetentionLimits>;
    beforeMigration?: () => Promise<void>;
    progress?: OnMigrationProgress;
  },
): Promise<ContinuationStore> {
  const { nowMs, batch, beforeMigration, progress } = options;
  return openContinuationStore({
    stateDir: STATE_DIR,
    fs,
    clock: createFakeClock(nowMs),
    ids: createFakeIds("migrate"),
    logger: silentLogger,
    retention: retentionSchema.parse(options.retention ?? {}),
    acquireLock: () => ({ release: () => {} }),
    ...(batch === undefined ? {} : { migrationBatch: batch }),
    ...(beforeMigration === undefined ? {} : { beforeMigration }),
    ...(progress === undefined ? {} : { onMigrationProgress: progress }),
  });
}
