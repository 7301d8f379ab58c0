import { join } from "node:path";
import { runProcessGuard } from "../mcp/process-guard.ts";
import { createClock } from "../platform/clock.ts";
import { isRunning, processesWithEnvironment, signalGroup } from "../platform/process-table.ts";

/**
 * How a program that embeds the host starts the guard: its runtime runs our source. A compiled program has no such
 * file, and must name a command of its own that calls `runMcpGuard`; without one there is no guard.
 */
export function embeddedGuardCommand(): readonly string[] | undefined {
  if (Bun.isStandaloneExecutable) return undefined;
  return [process.execPath, join(import.meta.dir, "mcp-guard-entry.ts")];
}

/**
 * Watches standard input for the end of the host, then ends its MCP servers. Signals that are meant for the host, such
 * as a Ctrl-C, don't end it: it ends by itself when there is nothing to guard any more.
 */
export async function runMcpGuard(): Promise<void> {
  const ignored = ["SIGINT", "SIGTERM", "SIGHUP"] as const;
  for (const signal of ignored) process.on(signal, () => {});
  // The clock's timers keep no process alive, and standard input has ended when they are needed.
  const awake = new MessageChannel();
  awake.port1.onmessage = () => {};
  await runProcessGuard({
    input: process.stdin,
    clock: createClock(),
    marked: processesWithEnvironment,
    isRunning,
    signalGroup,
  });
  awake.port1.close();
}
