import { describe, expect, test } from "bun:test";
import { readdirSync } from "node:fs";
import { createContinuationService } from "../../src/continuation/service.ts";
import { limitsSchema, retentionSchema } from "../../src/core/limits.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { openContinuationStore } from "../../src/store/open.ts";
import { ownershipLock } from "../../src/store/ownership.ts";
// @ts-expect-error: plain JavaScript beside the fixtures, used as it is
import { materialize } from "../fixtures/materialize.mjs";
import { createFakeClock } from "../support/fake-clock.ts";
import { createFakeIds } from "../support/fake-ids.ts";
import { expectedOf, FIXTURES, type ShortForm, shortForm } from "../support/fixture-reading.ts";
import { silentLogger } from "../support/silent-logger.ts";
import { recordsOf, withFolder } from "../support/store-harness.ts";

/** Our store and service on the released runtime's directories: started, and after everything due was processed. */

const byId = <T extends { id: string }>(list: readonly T[]) =>
  [...list].sort((a, b) => (a.id < b.id ? -1 : 1));

async function run(stateDir: string, asOf: string) {
  const fs = createFileSystem();
  const clock = createFakeClock(Date.parse(asOf));
  const ids = createFakeIds(stateDir);
  const store = await openContinuationStore({
    stateDir,
    fs,
    clock,
    ids,
    logger: silentLogger,
    retention: retentionSchema.parse({}),
    acquireLock: ownershipLock(fs, clock, process.pid),
  });
  const synthesized: { id: string; policy: string; messages?: number }[] = [];
  const delivered: { id: string; conversationId: string; deliveryKey: string; text: string }[] = [];
  const service = createContinuationService({
    store,
    clock,
    ids,
    logger: silentLogger,
    limits: limitsSchema.parse({}),
    namedRoutes: new Map(),
    detachedServices: new Map(),
    continuationServers: [],
    baseUrl: "http://127.0.0.1:4319",
    synthesis: {
      async synthesize(request) {
        const { context } = request;
        synthesized.push({
          id: request.continuationId,
          policy: context.policy,
          ...(context.policy === "pinned" ? { messages: context.snapshot.messages.length } : {}),
        });
        return "Stub answer.";
      },
    },
    delivery: {
      supports: () => "supported",
      async deliver(request) {
        delivered.push({
          id: request.deliveryKey.replace("continuation:", ""),
          conversationId: request.destination,
          deliveryKey: request.deliveryKey,
          text: request.text,
        });
        return { kind: "delivered", parts: [{ id: "stub" }], channelId: "stub" };
      },
      find: async () => ({ kind: "unknown" }),
    },
    history: { record: async () => ({ recorded: true }) },
  });
  const reading = () => ({
    records: byId(Object.values(recordsOf(store)).map(shortForm)),
    health: service.operator.health(),
  });
  // The fixtures have no turn ledger beside them, so no origin run is known to have committed.
  for (const group of service.origins.pending()) await service.origins.abandon(group);
  await service.startWorker();
  const started = reading();
  const busy = () =>
    store.durable.dueCount(clock.now()) > 0 ||
    store.durable.inStates(["synthesizing"]).length > 0 ||
    store.durable.inStates(["ready_to_deliver"]).length > 0;
  await new Promise<void>((resolve) => {
    const look = () => {
      if (!busy()) resolve();
    };
    store.onDurable(look);
    look();
  });
  const processed = reading();
  await service.stop();
  await store.close();
  return { started, processed, synthesized: byId(synthesized), delivered: byId(delivered) };
}
const NAMES = ["v1", "v2", "v3"]
  .flatMap((version) => readdirSync(`${FIXTURES}/${version}`).map((name) => `${version}/${name}`))
  .filter((name) => name.endsWith(".expected.json"))
  .map((name) => name.replace(".expected.json", ""))
  .filter((name) => expectedOf(name).open.ok);

/**
 * The one difference in records: an abandoned group has nothing left to wait for, so a result that came before is due
 * at once; the released runtime lets its last deferral run out. Both give the fixed text (protocol.md, order of the
 * synthesis decision).
 */
function startedOf({ records }: { records: ShortForm[] }, opened: readonly ShortForm[], asOf: string) {
  const deferred = new Set(
    opened
      .filter((record) => record.originContextState === "pending" && record.state === "result_received")
      .map((record) => record.id),
  );
  return records.map((record) => (deferred.has(record.id) ? { ...record, nextAttemptAt: asOf } : record));
}

/**
 * The one difference in health (protocol.md, the list of what we do better): `due` counts only what a worker could
 * start now, while the released runtime also counts claims whose result has not come.
 */
function healthOf({ records, health }: { records: ShortForm[]; health: object }, asOf: string) {
  const due = records.filter(
    ({ state, nextAttemptAt }) =>
      ["result_received", "ready_to_deliver", "delivery_retry"].includes(String(state)) &&
      (nextAttemptAt === undefined || Date.parse(String(nextAttemptAt)) <= Date.parse(asOf)),
  );
  return { ...health, due: due.length };
}

describe("a service started on a directory of the released runtime", () => {
  for (const name of NAMES) {
    test(`${name}: starts and works as the released runtime does`, () =>
      withFolder(async (folder) => {
        const expected = expectedOf(name);
        materialize(name, folder);
        const { started, processed, synthesized, delivered } = await run(folder, expected.asOf);
        if (!expected.open.ok) throw new Error("it opens");
        expect(started.records).toEqual(
          startedOf(expected.afterStartup, expected.open.records, expected.asOf),
        );
        expect(started.health).toMatchObject(healthOf(expected.afterStartup, expected.asOf));
        expect(processed.records).toEqual(expected.afterProcessing.records);
        expect(processed.health).toMatchObject(healthOf(expected.afterProcessing, expected.asOf));
        expect(synthesized).toEqual(expected.afterProcessing.synthesized);
        expect(delivered).toEqual(expected.afterProcessing.delivered);
      }));
  }
});
