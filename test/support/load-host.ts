import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { operatorToken } from "../../src/core/derive.ts";
import type { ClaimAnswer } from "../../src/core/wire.ts";
import { type AgentFolder, agentFolder, freePort } from "./binary.ts";

/** A host in a process of its own, from the sources, whose descriptors and memory a test can watch (Linux). */

export const LOAD_SERVICE_TOKEN = "a-token-of-the-load-service";
const MAIN = join(import.meta.dir, "../../src/main.ts");

export interface LoadHost {
  readonly folder: AgentFolder;
  readonly pid: number;
  readonly port: number;
  readonly operator: string;
  claim(taskKey: string, route: string): Promise<Response>;
  submit(claimed: ClaimAnswer, payload: unknown): Promise<Response>;
  /** Open descriptors of the host. */
  descriptors(): number;
  /** Resident memory of the host in MiB. */
  memory(): number;
  log(): string;
}

export async function loadHost(limits: Record<string, number> = {}): Promise<LoadHost> {
  const port = freePort();
  const folder = agentFolder({
    tools: {},
    continuations: {
      port,
      limits,
      namedRoutes: {
        keep: { mode: "capture", conversationId: "terminal:main" },
        quiet: { mode: "silent" },
      },
      detachedServices: [{ name: "load", tokenEnv: "LOAD_TOKEN" }],
    },
  });
  const { pid } = await folder.serve({
    command: [process.execPath, MAIN, "serve"],
    env: { LOAD_TOKEN: LOAD_SERVICE_TOKEN },
  });
  const secret = readFileSync(join(folder.path, ".mono-agent/continuations/continuation-secret"), "utf8");
  const deadline = new Date(Date.now() + 3_600_000).toISOString();
  const send = (method: string, url: string, token: string, body: unknown) =>
    fetch(url, {
      method,
      headers: { authorization: `Bearer ${token}`, "x-mono-agent-service-name": "load" },
      body: JSON.stringify(body),
    });
  return {
    folder,
    pid,
    port,
    operator: operatorToken(Buffer.from(secret.trim(), "base64url")),
    claim: (taskKey, route) =>
      send("POST", `http://127.0.0.1:${port}/v1/continuations/detached/claim`, LOAD_SERVICE_TOKEN, {
        route,
        taskKey,
        taskHash: "h",
        deadline,
      }),
    submit: ({ resultUrl, token }, payload) =>
      send("PUT", resultUrl, token, { idempotencyKey: "k", payload }),
    descriptors: () => readdirSync(`/proc/${pid}/fd`).length,
    memory: () =>
      Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1] ?? Number.NaN) / 1024,
    log: () => readFileSync(join(folder.path, "serve.log"), "utf8"),
  };
}

/** Does the work for each item, at most `width` at a time. */
export async function inParallel<T, R>(
  items: readonly T[],
  width: number,
  work: (item: T) => Promise<R>,
): Promise<R[]> {
  const results: R[] = new Array(items.length);
  let next = 0;
  const lane = async () => {
    for (let at = next++; at < items.length; at = next++) {
      const item = items[at];
      if (item !== undefined) results[at] = await work(item);
    }
  };
  await Promise.all(Array.from({ length: Math.min(width, items.length) }, lane));
  return results;
}
