import { expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type ContinuationsOptions, claimAnswerSchema, createContinuations } from "mono-agent/continuation";
import { openStore } from "mono-agent/store";
import type { ContinuationStore } from "../../src/core/ports/store.ts";
import { freePort } from "../support/binary.ts";
import { claimBody, idle, snapshotOf } from "../support/continuation-world.ts";
import { createFakeClock } from "../support/fake-clock.ts";

/** A stop of an embedded service while its start is under way leaves nothing running, and no listener. */

const OUTSIDE = {
  continuationServers: ["worker"],
  synthesize: async () => "answer",
  supports: () => "supported" as const,
  deliver: async () => ({ kind: "delivered" as const, parts: [{ id: "p" }] }),
  recordHistory: async () => ({ recorded: true as const }),
};

async function withFolder(act: (stateDir: string) => Promise<void>): Promise<void> {
  const path = mkdtempSync(join(tmpdir(), "mono-agent-embedded-"));
  try {
    await act(join(path, "state"));
  } finally {
    rmSync(path, { recursive: true });
  }
}

const listens = (port: number) =>
  fetch(`http://127.0.0.1:${port}/`).then(
    () => true,
    () => false,
  );

const STOPPED = { code: "service_stopping" };
const outcomeOf = (start: Promise<unknown>) =>
  start.then(
    () => "started",
    (error: unknown) => error,
  );

test("a stop while the port is taken waits for the start, and closes what it opened", () =>
  withFolder(async (stateDir) => {
    const blocker = Bun.serve({
      hostname: "127.0.0.1",
      port: 0,
      reusePort: false,
      fetch: () => new Response(null),
    });
    const port = blocker.port ?? 0;
    const clock = createFakeClock();
    const service = await createContinuations({ ...OUTSIDE, state: { stateDir }, listen: { port }, clock });
    const start = outcomeOf(service.start());
    await idle();
    const stop = service.stop();
    await idle();
    await blocker.stop(true);
    clock.advance(100);
    expect(await start).toMatchObject(STOPPED);
    await stop;
    expect(await listens(port)).toBe(false);
    await (await openStore({ stateDir })).close();
  }));

/** A host that died with a claim whose run nobody settled, and the next one, whose start has to. */
async function interrupted(
  stateDir: string,
  more: (store: ContinuationStore) => Partial<ContinuationsOptions>,
) {
  const store = await openStore({ stateDir });
  const create = (port: number, options: Partial<ContinuationsOptions> = {}) =>
    createContinuations({ ...OUTSIDE, state: { store }, listen: { port }, ...options });
  const before = await create(freePort());
  await before.start();
  const run = before.issue({ originRunId: "r", conversationId: "room:7", replyTo: "room:7" });
  const { url, token } = run.capabilities.get("worker") ?? { url: "", token: "" };
  const claimed = await fetch(url, {
    method: "POST",
    headers: { authorization: `Bearer ${token}` },
    body: JSON.stringify(claimBody({ clock: { now: Date.now } as never })),
  });
  const { continuationId } = claimAnswerSchema.parse(await claimed.json());
  await run.release();
  const snapshot = snapshotOf("r", Date.now(), "room:7");
  if (!(await run.finalize(snapshot)).ok) throw new Error("not finalized");
  await before.stop();
  const port = freePort();
  const service = await create(port, more(store));
  const start = outcomeOf(service.start());
  await idle();
  await service.stop();
  const { originContextDigest } = store.durable.get(continuationId) ?? {};
  return {
    store,
    port,
    start,
    digest: originContextDigest,
    origin: () => store.durable.get(continuationId)?.originContextState,
  };
}

test("a stop while a ledger is asked does not wait for it, and nothing is opened or settled afterwards", () =>
  withFolder(async (stateDir) => {
    const said = Promise.withResolvers<string | undefined>();
    const { store, port, start, digest, origin } = await interrupted(stateDir, () => ({
      committedSnapshot: () => said.promise,
    }));
    expect(digest).toBeDefined();
    said.resolve(digest);
    expect(await start).toMatchObject(STOPPED);
    expect([await listens(port), origin()]).toEqual([false, "pending"]);
    await store.close();
  }));

test("a stop while an origin is being settled opens nothing afterwards", () =>
  withFolder(async (stateDir) => {
    const gate = Promise.withResolvers<void>();
    const { store, port, start, origin } = await interrupted(stateDir, (open) => ({
      state: {
        store: Object.assign(Object.create(open), {
          commit: (...change: Parameters<ContinuationStore["commit"]>) =>
            gate.promise.then(() => open.commit(...change)),
        }),
      },
    }));
    gate.resolve();
    expect(await start).toMatchObject(STOPPED);
    expect([await listens(port), origin()]).toEqual([false, "abandoned"]);
    await store.close();
  }));

test("a second start while the first is under way is refused", () =>
  withFolder(async (stateDir) => {
    const port = freePort();
    const service = await createContinuations({ ...OUTSIDE, state: { stateDir }, listen: { port } });
    const [first, second] = await Promise.all([outcomeOf(service.start()), outcomeOf(service.start())]);
    expect([first, second]).toMatchObject(["started", { code: "operation_failed" }]);
    await service.stop();
    expect(await listens(port)).toBe(false);
  }));

test("a start that found its port taken may be tried again", () =>
  withFolder(async (stateDir) => {
    const blocker = Bun.serve({
      hostname: "127.0.0.1",
      port: 0,
      reusePort: false,
      fetch: () => new Response(null),
    });
    const clock = createFakeClock();
    const listen = { port: blocker.port ?? 0 };
    const service = await createContinuations({ ...OUTSIDE, state: { stateDir }, listen, clock });
    const start = outcomeOf(service.start());
    for (let attempt = 0; attempt < 10; attempt += 1) {
      await idle();
      clock.advance(100);
    }
    expect(await start).toMatchObject({ code: "listen_failed" });
    await blocker.stop(true);
    expect(await outcomeOf(service.start())).toBe("started");
    await service.stop();
  }));
