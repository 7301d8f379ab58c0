import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ORIGIN_CONTEXT_UNAVAILABLE_TEXT } from "../../src/continuation/synthesis-job.ts";
import { refuse, TurnError } from "../../src/core/errors.ts";
import { createMemoryFileSystem, type MemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { idle } from "../support/continuation-world.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { calls, createScriptedModel, says } from "../support/harness-fakes.ts";
import { ask, type Host, type HostOptions, ROOM, recordsByTask, startHost } from "../support/two-stores.ts";

/** A turn with one claim whose settlement meets a fault: the turn ends visibly, and its claim as the turn did. */

const START_MS = Date.UTC(2026, 10, 30, 12);
let folder: string;
let disk: MemoryFileSystem;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "mono-faults-"));
  disk = createMemoryFileSystem();
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

let lives = 0;
function start(options: Partial<HostOptions> = {}): Promise<Host> {
  lives += 1;
  return startHost({
    fs: disk,
    database: join(folder, "host.sqlite"),
    clock: createFakeClock(START_MS),
    seed: `life ${lives}`,
    model: createScriptedModel([calls("start"), says("accepted")]),
    tools: { start: async (host) => host.claim("task") },
    ...options,
  });
}

async function restarted(host: Host): Promise<Host> {
  await host.turns.close();
  disk.failWhen();
  disk = disk.takeOver();
  return start();
}

const taskOf = (host: Host) => {
  const record = recordsByTask(host.store).get("task");
  if (record === undefined) throw new Error("no record");
  return record;
};
const shown = async (host: Host) => (await host.turns.feed(ROOM, 0, 100)).map((row) => row.content);

/** Its result comes, and the person gets the fixed answer without a model call. */
async function expectFixedAnswer(host: Host) {
  expect(taskOf(host).originContextState).toBe("abandoned");
  expect(await host.submit(taskOf(host).continuationId)).toBe("result_received");
  await idle();
  expect([taskOf(host).state, host.syntheses.length]).toEqual(["delivered", 0]);
  expect((await shown(host)).at(-1)).toBe(ORIGIN_CONTEXT_UNAVAILABLE_TEXT);
}

async function expectSynthesized(host: Host) {
  expect(taskOf(host).originContextState).toBe("pinned");
  expect(await host.turns.openActivations()).toEqual([]);
  expect(await host.submit(taskOf(host).continuationId)).toBe("result_received");
  await idle();
  expect(host.syntheses.map((request) => request.context.policy)).toEqual(["pinned"]);
  expect((await shown(host)).at(-1)).toBe(`answer to ${taskOf(host).continuationId}`);
}

test("without room for the snapshot the turn fails visibly and its claim is abandoned", async () => {
  const host = await start({
    wrapStore: (store) => ({
      ...store,
      snapshots: { ...store.snapshots, put: async () => refuse("snapshot_quota", "no room") },
    }),
  });
  expect(await ask(host)).toBe("failed");
  expect((await shown(host)).at(-1)).toContain("snapshot_quota");
  await idle();
  await expectFixedAnswer(host);
  await host.close();
});

test("a snapshot that can't be written fails the turn visibly; the store goes on, and the claim is abandoned", async () => {
  const host = await start();
  disk.failWhen(({ label }) => (label === "snapshot.write" ? "EIO" : undefined));
  expect(await ask(host)).toBe("failed");
  await idle();
  expect(host.store.fault()).toBeUndefined();
  await expectFixedAnswer(host);
  await host.close();
});

test("a binding that can't be stored fails the turn; the poisoned store leaves the abandoning to the next start", async () => {
  const host = await start({
    wrapStore: (store) => ({
      ...store,
      snapshots: {
        ...store.snapshots,
        async put(snapshot) {
          const stored = await store.snapshots.put(snapshot);
          disk.failWhen(({ label }) => (label === "transaction.write" ? "ENOSPC" : undefined));
          return stored;
        },
      },
    }),
  });
  expect(await ask(host)).toBe("failed");
  await idle();
  expect(host.store.fault()?.code).toBe("ENOSPC");
  expect(taskOf(host).originContextState).toBe("pending");
  const after = await restarted(host);
  await expectFixedAnswer(after);
  await after.close();
});

for (const label of ["marker.write", "marker.sync", "transaction.write", "marker.unlink.sync"]) {
  test(`an activation that fails at ${label} leaves the turn succeeded, and the next start activates`, async () => {
    const host = await start({
      wrapTurns: (turns) => ({
        ...turns,
        async commitTurn(commit) {
          const message = await turns.commitTurn(commit);
          disk.failWhen((operation) => (operation.label === label ? "EIO" : undefined));
          return message;
        },
      }),
    });
    expect(await ask(host)).toBe("succeeded");
    await idle();
    expect(await shown(host)).toEqual(["question", "accepted"]);
    expect((await host.turns.openActivations()).length).toBe(1);
    const after = await restarted(host);
    await expectSynthesized(after);
    await after.close();
  });
}

test("a commit in doubt that did land is activated by the next start", async () => {
  const host = await start({
    wrapTurns: (turns) => ({
      ...turns,
      async commitTurn(commit) {
        await turns.commitTurn(commit);
        throw new TurnError("commit_in_doubt", "the answer of COMMIT was lost");
      },
    }),
  });
  void ask(host);
  await idle();
  expect(taskOf(host).originContextState).toBe("pending");
  const after = await restarted(host);
  await expectSynthesized(after);
  await after.close();
});

test("a commit in doubt that did not land ends the turn visibly at the next start, and abandons", async () => {
  const host = await start({
    wrapTurns: (turns) => ({
      ...turns,
      async commitTurn() {
        throw new TurnError("commit_in_doubt", "the answer of COMMIT was lost");
      },
    }),
  });
  void ask(host);
  await idle();
  expect(taskOf(host).originContextState).toBe("pending");
  const after = await restarted(host);
  expect((await shown(after)).length).toBe(2);
  await expectFixedAnswer(after);
  await after.close();
});

test("an answer too long for a snapshot fails the turn visibly and abandons its claim", async () => {
  const long = "x".repeat(70_000);
  const host = await start({ model: createScriptedModel([calls("start"), says(long)]) });
  expect(await ask(host)).toBe("failed");
  await idle();
  await expectFixedAnswer(host);
  await host.close();
});
