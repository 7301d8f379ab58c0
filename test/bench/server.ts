import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { operatorToken } from "../../src/core/derive.ts";
import { sha256Hex } from "../../src/core/digest.ts";
import { fileJson } from "../../src/core/json.ts";
import { retentionSchema } from "../../src/core/limits.ts";
import { recordFileName } from "../../src/core/record.ts";
import { GUARD_CONTENT, GUARD_FILE, STORE_ENTRIES, type StoreManifest } from "../../src/core/store-files.ts";
import { freePort } from "../support/binary.ts";
import { claimedRecord } from "../support/records.ts";
import type { ServerCommand, ServerReport } from "./server-entry.ts";

/**
 * A folder with N tombstones in it, and hosts that run on it. Limits are raised, so that a burst of claims is not
 * refused; retention has its default of 50,000, so that N stays bounded however long a run is.
 */

export const SERVICE_TOKEN = "a-bench-token-of-some-length";

export interface BenchFolder {
  readonly path: string;
  readonly port: number;
  readonly bytesPerTombstone: number;
  start(): Promise<BenchServer>;
  remove(): void;
}

export interface BenchServer {
  /** From the start of the process to the first healthy answer. */
  readonly startMs: number;
  report(): Promise<ServerReport>;
  /** A request below `/v1/operator`. */
  operator(route: string, init?: RequestInit): Promise<Response>;
  /** From now on `report` tells the longest stall of the event loop; before that, watching would cost idle time. */
  watchStalls(): void;
  stop(): Promise<void>;
}

export function benchFolder(tombstones: number): BenchFolder {
  const path = mkdtempSync(join(process.env.BENCH_DIR ?? tmpdir(), "mono-agent-bench-"));
  const port = freePort();
  const limit = 1_000_000;
  writeFileSync(join(path, "identity.md"), "You are measured.");
  writeFileSync(
    join(path, "mono-agent.config.json"),
    JSON.stringify({
      runtime: { model: "demo:assistant" },
      context: { identityPath: "identity.md" },
      continuations: {
        port,
        limits: { maxActiveRecords: limit, maxActivePerOrigin: limit, maxConcurrent: 64 },
        namedRoutes: {
          silent: { mode: "silent" },
          capture: { mode: "capture", conversationId: "terminal:main" },
        },
        detachedServices: [{ name: "bench", tokenEnv: "BENCH_TOKEN" }],
      },
      terminal: { enabled: false },
    }),
  );
  const bytes = tombstones === 0 ? 0 : seed(join(path, ".mono-agent"), tombstones);
  return {
    path,
    port,
    bytesPerTombstone: tombstones === 0 ? 0 : bytes / tombstones,
    start: () => start(path, port),
    remove: () => rmSync(path, { recursive: true, force: true }),
  };
}

/** Writes tombstones as a store leaves them, with its guard and manifest; returns their size. */
function seed(hostDir: string, tombstones: number): number {
  const state = join(hostDir, "continuations");
  const folder = (name: string) => mkdirSync(join(state, name), { recursive: true, mode: 0o700 });
  const file = (name: string, content: string) => writeFileSync(join(state, name), content, { mode: 0o600 });
  folder(STORE_ENTRIES.records);
  folder(STORE_ENTRIES.legacyRecords);
  file(join(STORE_ENTRIES.legacyRecords, GUARD_FILE), GUARD_CONTENT);
  file(STORE_ENTRIES.manifest, fileJson(manifestOf(tombstones)));
  file(STORE_ENTRIES.secret, `${Buffer.alloc(32, 7).toString("base64url")}\n`);
  let bytes = 0;
  for (let index = 0; index < tombstones; index += 1) {
    const id = `${sha256Hex(`tombstone ${index}`).slice(0, 32)}`;
    const at = new Date(Date.now() - index * 1000).toISOString();
    const record = claimedRecord({
      continuationId: id,
      serverName: "detached:bench",
      originRunId: `detached:bench:old-${index}`,
      originConversationId: "continuation-route:silent",
      replyToConversationId: undefined,
      historyBoundary: undefined,
      originContextState: "detached_latest",
      mode: "silent",
      routeName: "silent",
      taskKey: `old-${index}`,
      taskHash: sha256Hex(`hash ${index}`),
      claimFingerprint: sha256Hex("bench"),
      resultTokenHash: sha256Hex(`token ${index}`),
      createdAt: at,
      updatedAt: at,
      state: "delivered",
      resultIdempotencyKey: `key-${index}`,
      resultPayloadHash: sha256Hex(`payload ${index}`),
      receipt: { kind: "silent", deliveredAt: at },
      compactedAt: at,
    });
    const text = fileJson(record);
    bytes += Buffer.byteLength(text);
    file(join(STORE_ENTRIES.records, recordFileName(id)), text);
  }
  // What is not written out yet would be written during the measurement.
  Bun.spawnSync(["sync"]);
  return bytes;
}

/** Without it the first start would look for older formats to convert. Its counts are a report only. */
function manifestOf(records: number): StoreManifest {
  const limits = retentionSchema.parse({});
  return {
    schemaVersion: 3,
    generation: "bench",
    updatedAt: new Date().toISOString(),
    rollbackGuardRequired: true,
    stats: {
      format: "per-record-v3",
      records,
      active: 0,
      unresolvedDelivery: 0,
      deadLettered: 0,
      terminalTombstones: records,
      compacted: records,
      capturedText: 0,
      historyDegraded: 0,
      limits,
    },
  };
}

async function start(path: string, port: number): Promise<BenchServer> {
  const begun = performance.now();
  const ready = Promise.withResolvers<void>();
  let next = Promise.withResolvers<ServerReport>();
  const child = Bun.spawn(
    [
      process.execPath,
      ...(process.env.BENCH_BUN_ARGS?.split(" ") ?? []),
      join(import.meta.dir, "server-entry.ts"),
    ],
    {
      cwd: path,
      env: { ...process.env, BENCH_TOKEN: SERVICE_TOKEN },
      stdio: ["ignore", "inherit", "inherit"],
      ipc(message: unknown) {
        if (message === "ready") ready.resolve();
        else next.resolve(message as ServerReport);
      },
    },
  );
  await Promise.race([
    ready.promise,
    child.exited.then((code) => Promise.reject(new Error(`server ended: ${code}`))),
  ]);
  await fetch(`http://127.0.0.1:${port}/v1/operator/health`);
  const send = (command: ServerCommand) => child.send(command);
  const secret = Buffer.from(
    readFileSync(join(path, ".mono-agent/continuations", STORE_ENTRIES.secret), "utf8").trim(),
    "base64url",
  );
  const headers = { authorization: `Bearer ${operatorToken(secret)}` };
  return {
    startMs: performance.now() - begun,
    report() {
      next = Promise.withResolvers<ServerReport>();
      send("report");
      return next.promise;
    },
    operator: (route, init) => fetch(`http://127.0.0.1:${port}/v1/operator${route}`, { ...init, headers }),
    watchStalls: () => send("watch stalls"),
    async stop() {
      send("stop");
      await child.exited;
    },
  };
}
