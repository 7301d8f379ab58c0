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
    requestTimeouts: { inactivityMs: 10_000, totalMs: 60_000 },
    cwd: process.cwd(),
    baseEnv: process.env,
    clock: createClock(),
    logger: silentLogger,
    ...over,
  });
}

export function sessionRequest(
  capabilities: Record<string, ClaimCapability> = {},
  signal: AbortSignal = new AbortController().signal,
): ToolSessionRequest {
  return { runId: "run-test-000001", capabilities: new Map(Object.entries(capabilities)), signal };
}

export const capability: ClaimCapability = {
  url: "http://127.0.0.1:9/v1/continuations/claim",
  token: "claim-token-canary-0123456789",
  fingerprint: "fingerprint-0123",
  mode: "reply",
};

export const never = new AbortController().signal;

/** Whether a process (or, with a negative id, any of its group) is alive. */
export function alive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

/** Processes that this one has started and that still live. */
export function children(): number[] {
  const { stdout } = Bun.spawnSync(["ps", "-o", "pid=,args=", "--ppid", String(process.pid)]);
  return stdout
    .toString()
    .split("\n")
    .filter((line) => line.includes("mcp-"))
    .map((line) => Number.parseInt(line, 10));
}
