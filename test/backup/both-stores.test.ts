import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createContinuationService } from "../../src/continuation/service.ts";
import { deliveryKey } from "../../src/core/derive.ts";
import { sha256Hex } from "../../src/core/digest.ts";
import { limitsSchema, retentionSchema } from "../../src/core/limits.ts";
import type { FileSystem } from "../../src/core/ports/platform.ts";
import type { ContinuationStore } from "../../src/core/ports/store.ts";
import type { TurnStore } from "../../src/core/ports/turns.ts";
import { STATES } from "../../src/core/record.ts";
import { buildSnapshot } from "../../src/core/snapshot.ts";
import { writeBackup } from "../../src/host/backup.ts";
import { restoreBackup } from "../../src/host/restore.ts";
import { HOST_DATABASE } from "../../src/host/state-entries.ts";
import { createClock } from "../../src/platform/clock.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { createIds } from "../../src/platform/ids.ts";
import { openContinuationStore } from "../../src/store/open.ts";
import { ownershipLock } from "../../src/store/ownership.ts";
import { openTurnStore } from "../../src/turns/turn-store.ts";
import { until } from "../support/binary.ts";
import { silentLogger } from "../support/silent-logger.ts";

/** Both stores on a real disk, 32 clients that never rest, and backups in the middle of it. */

const CLIENTS = 32;
const clock = createClock();
const ids = createIds();
const fs: FileSystem = createFileSystem();
let folder: string;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "mono-agent-backup-"));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

interface Stores {
  readonly store: ContinuationStore;
  readonly turns: TurnStore;
  close(): Promise<void>;
}

async function openBoth(hostDir: string): Promise<Stores> {
  const store = await openContinuationStore({
    stateDir: join(hostDir, "continuations"),
    fs,
    clock,
    ids,
    logger: silentLogger,
    retention: retentionSchema.parse({}),
    acquireLock: ownershipLock(fs, clock, process.pid),
  });
  const turns = await openTurnStore({ path: join(hostDir, HOST_DATABASE), fs, logger: silentLogger });
  return {
    store,
    turns,
    async close() {
      await turns.close();
      await store.close();
    },
  };
}

function serviceOver({ store, turns }: Stores) {
  return createContinuationService({
    store,
    clock,
    ids,
    logger: silentLogger,
    limits: limitsSchema.parse({}),
    namedRoutes: new Map(),
    detachedServices: new Map(),
    continuationServers: ["worker"],
    baseUrl: "http://127.0.0.1:4319",
    synthesis: { synthesize: async () => "the answer" },
    delivery: {
      supports: () => "supported",
      // The post is a row of the ledger, as the terminal's.
      async deliver({ destination, deliveryKey: key, text }) {
        await turns.appendDelivered({
          conversationId: destination,
          baseId: destination,
          deliveryKey: key,
          text,
          now: new Date(clock.now()).toISOString(),
          mirror: false,
        });
        return { kind: "delivered", parts: [{ id: key }] };
      },
      find: async () => ({ kind: "unknown" }),
    },
    history: { record: async () => ({ recorded: true }) },
  });
}

/** One turn with one claim, from admission to the submitted result. */
async function work({ turns }: Stores, service: ReturnType<typeof serviceOver>, name: string): Promise<void> {
  const conversationId = `terminal:${name.split("-")[0]}`;
  const now = () => new Date(clock.now()).toISOString();
  const turnId = `turn-${name}`;
  const runId = `run-${name}`;
  const base = { conversationId, baseId: conversationId, thread: name, replyTo: conversationId };
  await turns.admit({ turnId, requestId: name, text: "do it", now: now(), maxQueued: 10, ...base });
  await turns.startRun(turnId, runId, now());
  const claims = service.issuer.issue({ originRunId: runId, conversationId, replyTo: conversationId });
  const desk = service.claims.authenticate(claims.capabilities.get("worker")?.token ?? "");
  if (!desk.ok) throw new Error(desk.refusal.code);
  const deadline = new Date(clock.now() + 3_600_000).toISOString();
  const claimed = await desk.value.claim({ taskKey: name, taskHash: sha256Hex(name), deadline });
  if (!claimed.ok) throw new Error(claimed.refusal.code);
  await claims.release();
  const snapshot = buildSnapshot({
    conversationId,
    originRunId: runId,
    capturedAt: now(),
    history: [],
    userText: "do it",
    assistantText: "accepted",
  });
  const bound = snapshot && (await claims.finalize(snapshot));
  if (!bound?.ok) throw new Error("not bound");
  await turns.commitTurn({ turnId, runId, assistantText: "accepted", now: now(), activation: bound.value });
  await claims.activate(bound.value.snapshotDigest);
  const entry = service.results.authenticate(claimed.value.continuationId, claimed.value.token);
  if (!entry.ok) throw new Error(entry.refusal.code);
  await entry.value.submit({ idempotencyKey: "k", payload: { name } });
}

/** What must hold of two stores that were copied at one instant. */
async function requirePairs({ store, turns }: Stores): Promise<{ records: number; delivered: number }> {
  let delivered = 0;
  const records = store.durable.inStates(STATES);
  for (const record of records) {
    const verdict = await turns.verdict(record.originRunId);
    // The ledger knows the run of every claim, and that of every activated one has succeeded.
    expect([record.continuationId, verdict]).not.toEqual([record.continuationId, "unknown"]);
    if (record.originContextState !== "pending") expect(verdict).toBe("succeeded");
    const row = await turns.findDelivered(record.originConversationId, deliveryKey(record.continuationId));
    if (record.receipt !== undefined) expect(row?.content).toBe("the answer");
    // No post that the continuation store does not know to have begun.
    if (row !== undefined) expect(record.deliveryAttempts).toBe(1);
    if (row !== undefined) delivered += 1;
    if (record.originContextRef !== undefined)
      expect(store.snapshots.read(record.originContextRef).ok).toBe(true);
  }
  return { records: records.length, delivered };
}

test("a backup that is made while 32 clients hammer both stores restores to pairs that belong together", async () => {
  const hostDir = join(folder, "live");
  fs.runSync([{ op: "mkdir", path: hostDir, mode: 0o700, existsOk: false, label: "test" }]);
  const live = await openBoth(hostDir);
  const service = serviceOver(live);
  await service.startWorker();
  let stop = false;
  let done = 0;
  const clients = Array.from({ length: CLIENTS }, async (_, client) => {
    for (let round = 0; !stop; round += 1) {
      await work(live, service, `${client}-${round}`);
      done += 1;
    }
  });
  const restored: string[] = [];
  const seen: number[] = [];
  for (const [index, name] of ["a", "b.tar", "c", "d.tar"].entries()) {
    const target = join(folder, name);
    const source = { fs, hostDir, stateDir: join(hostDir, "continuations"), store: live.store };
    // A round of every client later than the last backup, so that each copy has other things under way.
    await until("another round", async () => {
      return done >= (index + 1) * CLIENTS && live.store.durable.counts().delivered > 0;
    });
    const before = done;
    const report = await writeBackup(source, target, { clock, ids });
    expect(report.records).toBeGreaterThanOrEqual(before);
    seen.push(report.records);
    restored.push(join(folder, `restored-${index}`));
    await restoreBackup(target, {
      hostDir: restored[index] ?? "",
      stateDir: join(restored[index] ?? "", "continuations"),
    });
  }
  stop = true;
  await Promise.all(clients);
  await service.stop();
  await live.close();

  let delivered = 0;
  for (const [index, path] of restored.entries()) {
    const copy = await openBoth(path);
    const found = await requirePairs(copy);
    expect(found.records).toBe(seen[index] ?? -1);
    delivered += found.delivered;
    await copy.close();
  }
  expect(seen.at(-1)).toBeGreaterThan(seen[0] ?? 0);
  expect(delivered).toBeGreaterThan(0);
}, 60_000);
