import { retentionSchema } from "../../src/core/limits.ts";
import { createClock } from "../../src/platform/clock.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { createIds } from "../../src/platform/ids.ts";
import { openContinuationStore } from "../../src/store/open.ts";
import { ownershipLock } from "../../src/store/ownership.ts";
import { silentLogger } from "../support/silent-logger.ts";

/** A process of its own that opens one state directory and prints what that took. Started by migrate.ts. */

const stateDir = process.argv[2] ?? "";
const fs = createFileSystem();
const clock = createClock();
const residentMb = () => process.memoryUsage.rss() / 1e6;
const baseMb = residentMb();
const phases: Record<string, { ms: number; startMb: number; endMb: number }> = {};
const startMs = performance.now();
let lastMs = startMs;
let current: string | undefined;
const store = await openContinuationStore({
  stateDir,
  fs,
  clock,
  ids: createIds(),
  logger: silentLogger,
  retention: retentionSchema.parse({}),
  acquireLock: ownershipLock(fs, clock, process.pid),
  onMigrationProgress({ phase }) {
    const nowMs = performance.now();
    const rss = residentMb();
    const running = current === undefined ? undefined : phases[current];
    if (running !== undefined) {
      running.ms += nowMs - lastMs;
      running.endMb = rss;
    }
    phases[phase] ??= { ms: 0, startMb: rss, endMb: rss };
    current = phase;
    lastMs = nowMs;
  },
});
const ms = performance.now() - startMs;
const openMb = residentMb();
const { records } = store.durable.stats();
await store.close();
await fs.close?.();
// Linux counts it in kilobytes.
const peakMb = (process.resourceUsage().maxRSS * 1024) / 1e6;
console.log(JSON.stringify({ records, ms, baseMb, openMb, peakMb, phases }));
