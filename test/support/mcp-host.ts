import { join } from "node:path";
import type { McpServerSpec } from "../../src/core/mcp-servers.ts";
import type { ClaimCapability, ToolSessionRequest } from "../../src/core/ports/tools.ts";
import { createToolHost, type ToolHostOptions } from "../../src/mcp/tool-host.ts";
import { createClock } from "../../src/platform/clock.ts";
import { silentLogger } from "./silent-logger.ts";

export const PROBE = join(import.meta.dir, "mcp-probe-server.ts");
export const WORK_CONTROL = join(import.meta.dir, "mcp-work-control-entry.ts");

/** A TypeScript file as a stdio server of this very runtime. */
export function script(path: string, args: string[] = [], env: Record<string, string> = {}): McpServerSpec {
  return { command: process.execPath, args: [path, ...args], env };
}

export function toolHost(servers: Record<string, McpServerSpec>, over: Partial<ToolHostOptions> = {}) {
  return createToolHost({
    servers,
    continuationServers: [],
    requestContextServers: [],
    requestTimeouts: { inactivityMs: 10_000, totalMs: 60_000 },
    cwd: process.cwd(),
    baseEnv: process.env,
    withheldEnv: [],
    outputFolders: { create: (runId) => `/nowhere/${runId}`, remove() {} },
    clock: createClock(),
    logger: silentLogger,
    ...over,
  });
}

export function sessionRequest(
  capabilities: Record<string, ClaimCapability> = {},
  signal: AbortSignal = new AbortController().signal,
): ToolSessionRequest {
  return {
    runId: "run-test-000001",
    conversationId: "terminal:main",
    capabilities: new Map(Object.entries(capabilities)),
    signal,
  };
}

export const capability: ClaimCapability = {
  url: "http://127.0.0.1:9/v1/continuations/claim",
  token: "claim-token-canary-0123456789",
  fingerprint: "fingerprint-0123",
  mode: "reply",
};

export const never = new AbortController().signal;

/** Whether a process is alive. */
export function alive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

/** Whether anybody of a process group still runs; the dead whom nobody has reaped yet don't count. */
export function groupAlive(group: number): boolean {
  return processes("pgid=,stat=").some(([pgid, stat]) => Number(pgid) === group && !stat?.startsWith("Z"));
}

/** Servers of these tests that this process has started and that still run; a guard ends a little later. */
export function children(): number[] {
  return processes("ppid=,pid=,args=")
    .filter(([ppid, , ...args]) => Number(ppid) === process.pid && /mcp-(?!guard)/.test(args.join(" ")))
    .map(([, pid]) => Number(pid));
}

function processes(columns: string): string[][] {
  const { stdout } = Bun.spawnSync(["ps", "-A", "-o", columns]);
  return stdout
    .toString()
    .split("\n")
    .map((line) => line.trim().split(/\s+/));
}
