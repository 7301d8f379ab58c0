import { loadConfig } from "../../src/config/load.ts";
import type { FileStep, FileSystem } from "../../src/core/ports/platform.ts";
import { startMonoAgent } from "../../src/host/index.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { createLogger } from "../../src/platform/logger.ts";

/**
 * The host as `serve` starts it, in a process of its own, with a filesystem that counts what passes the port. Asked by
 * a message, it answers with the counts so far, its memory, processor time and the longest stall of its event loop.
 */

export interface ServerReport {
  readonly fsyncs: number;
  readonly renames: number;
  readonly unlinks: number;
  readonly bytes: number;
  readonly residentBytes: number;
  /** The most since the last report, by samples while stalls are watched. */
  readonly peakResidentBytes: number;
  readonly cpuMs: number;
  /** Since the last report; 0 while stalls are not watched. */
  readonly longestStallMs: number;
}

export type ServerCommand = "report" | "watch stalls" | "stop";

const counts = { fsyncs: 0, renames: 0, unlinks: 0, bytes: 0 };
function count(step: FileStep): void {
  switch (step.op) {
    case "write":
      counts.bytes += Buffer.byteLength(step.data);
      if (step.sync) counts.fsyncs += 1;
      return;
    case "syncFiles":
      // Few files get an fsync each, many one call together (platform/filesystem-steps.ts).
      counts.fsyncs += process.platform === "linux" && step.paths.length >= 8 ? 1 : step.paths.length;
      return;
    case "sync":
    case "syncDir":
      counts.fsyncs += 1;
      return;
    case "rename":
      counts.renames += 1;
      return;
    case "unlink":
      counts.unlinks += 1;
  }
}

const real = createFileSystem();
const fs: FileSystem = {
  ...real,
  run(steps) {
    for (const step of steps) count(step);
    return real.run(steps);
  },
  runSync(steps) {
    for (const step of steps) count(step);
    real.runSync(steps);
  },
};

const TICK_MS = 5;
const MEMORY_EVERY_TICKS = 50;
let longestStallMs = 0;
let peakResidentBytes = 0;
let watching = false;

/** Only under load: a timer of 5 ms is itself more work than an idle host has. */
function watchStalls(): void {
  if (watching) return;
  watching = true;
  let last = performance.now();
  let ticks = 0;
  setInterval(() => {
    const now = performance.now();
    longestStallMs = Math.max(longestStallMs, now - last - TICK_MS);
    last = now;
    ticks += 1;
    if (ticks % MEMORY_EVERY_TICKS === 0) {
      peakResidentBytes = Math.max(peakResidentBytes, process.memoryUsage.rss());
    }
  }, TICK_MS);
}

const config = loadConfig({ cwd: process.cwd(), env: process.env });
const logger = createLogger({
  level: "warn",
  json: true,
  color: false,
  write: (text) => void process.stderr.write(text),
});
const app = await startMonoAgent({ config, logger, fs, env: process.env });
process.send?.("ready");
process.on("message", (command: ServerCommand) => {
  if (command === "watch stalls") {
    watchStalls();
    return;
  }
  if (command === "stop") {
    void app.stop().then(() => process.exit(0));
    return;
  }
  const { user, system } = process.cpuUsage();
  const residentBytes = process.memoryUsage.rss();
  const report: ServerReport = {
    ...counts,
    residentBytes,
    peakResidentBytes: Math.max(peakResidentBytes, residentBytes),
    cpuMs: (user + system) / 1000,
    longestStallMs,
  };
  longestStallMs = 0;
  peakResidentBytes = 0;
  process.send?.(report);
});
