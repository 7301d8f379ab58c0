import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ORIGIN_CONTEXT_UNAVAILABLE_TEXT } from "../../src/continuation/synthesis-job.ts";
import { createMemoryFileSystem, type MemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { idle } from "../support/continuation-world.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { calls, createScriptedModel, says } from "../support/harness-fakes.ts";
import { ask, type Host, ROOM, recordsByTask, startHost } from "../support/two-stores.ts";
import { databaseFiles, restoreDatabase } from "./moments.ts";

/**
 * Only one of the two stores survived, or one is an older copy (docs/architecture.md, When the two stores do not belong
 * together). Each store is believed for what it says itself; nothing is guessed about what only the other knew.
 */

const START_MS = Date.UTC(2026, 10, 30, 12);
type Database = ReturnType<typeof databaseFiles>;
/** Copies of both stores at one point of the life. */
interface Copies {
  readonly database: Database;
  readonly disk: MemoryFileSystem;
}
const POINTS = ["new", "claimed", "bound", "committed", "activated", "accepted", "delivered"] as const;
type Point = (typeof POINTS)[number];
type Life = Record<Point, Copies>;

let folder: string;
let life: Life;

/** One turn with one claim, its result and its answer, copied at each point. */
async function live(): Promise<Life> {
  const database = join(folder, "host.sqlite");
  const disk = createMemoryFileSystem();
  const copies = new Map<Point, Copies>();
  const copy = (point: Point) =>
    copies.set(point, { database: databaseFiles(database), disk: disk.afterPowerCut("all") });
  const host = await startHost({
    fs: disk,
    database,
    clock: createFakeClock(START_MS),
    seed: "life",
    model: createScriptedModel([calls("start"), says("accepted")]),
    tools: {
      async start(it) {
        const id = await it.claim("task");
        copy("claimed");
        return id;
      },
    },
    wrapTurns: (turns) => ({
      ...turns,
      async commitTurn(commit) {
        copy("bound");
        const message = await turns.commitTurn(commit);
        copy("committed");
        return message;
      },
    }),
  });
  copy("new");
  await ask(host);
  await idle();
  copy("activated");
  await host.submit(taskOf(host).continuationId);
  await idle();
  copy("delivered");
  await host.close();
  // The result is accepted and nothing has worked on it yet.
  const accepted = restoreDatabase((copies.get("activated") as Copies).database);
  const acceptedDisk = (copies.get("activated") as Copies).disk.afterPowerCut("all");
  const again = await startHost({
    fs: acceptedDisk,
    database: accepted.path,
    clock: createFakeClock(START_MS),
    seed: "accepting",
  });
  await again.submit(taskOf(again).continuationId);
  copies.set("accepted", {
    database: databaseFiles(accepted.path),
    disk: acceptedDisk.afterPowerCut("none"),
  });
  await again.turns.close();
  accepted.remove();
  return Object.fromEntries(copies) as Life;
}

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), "mono-restore-"));
  life = await live();
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const taskOf = (host: Host) => {
  const record = recordsByTask(host.store).get("task");
  if (record === undefined) throw new Error("no record");
  return record;
};
const shown = async (host: Host) => (await host.turns.feed(ROOM, 0, 100)).map((row) => row.content);

/** A host over the two copies; everything that it begins by itself has ended. */
async function over<T>(
  database: Database,
  disk: MemoryFileSystem,
  use: (host: Host) => Promise<T>,
): Promise<T> {
  const restored = restoreDatabase(database);
  const clock = createFakeClock(START_MS + 60_000);
  const host = await startHost({
    fs: disk.afterPowerCut("all"),
    database: restored.path,
    clock,
    seed: "restored",
  });
  try {
    await idle();
    clock.advance(2000);
    await idle();
    return await use(host);
  } finally {
    await host.close();
    restored.remove();
  }
}

const NOTHING: Database = new Map();
const warned = (host: Host) =>
  host.log.some((line) => line.level === "warn" && line.message.includes("not in the continuation store"));

async function knownId(): Promise<string> {
  return over(life.activated.database, life.activated.disk, async (host) => taskOf(host).continuationId);
}

describe("only host.sqlite survived", () => {
  for (const point of ["committed", "activated", "delivered"] as const) {
    test(`after ${point}: history stays, the promise is gone and its producer is told so`, async () => {
      const id = await knownId();
      await over(life[point].database, createMemoryFileSystem(), async (host) => {
        expect((await shown(host)).slice(0, 2)).toEqual(["question", "accepted"]);
        expect(await host.turns.openActivations()).toEqual([]);
        expect(await host.submit(id)).toBe("not_found");
        expect([host.syntheses.length, host.posts.length]).toEqual([0, 0]);
        // Only an activation that was still due tells the host that something is missing.
        expect(warned(host)).toBe(point === "committed");
      });
    });
  }
});

describe("only the state directory survived", () => {
  for (const point of ["claimed", "bound", "committed"] as const) {
    test(`after ${point}: no run vouches for the claim, so it is abandoned; fixed answer, no model`, async () => {
      await over(NOTHING, life[point].disk, async (host) => {
        expect(taskOf(host).originContextState).toBe("abandoned");
        expect(await host.submit(taskOf(host).continuationId)).toBe("result_received");
        await idle();
        expect([host.syntheses.length, await shown(host)]).toEqual([0, [ORIGIN_CONTEXT_UNAVAILABLE_TEXT]]);
      });
    });
  }

  test("an activated claim keeps its context: it is synthesized from its snapshot and delivered", async () => {
    await over(NOTHING, life.activated.disk, async (host) => {
      await host.submit(taskOf(host).continuationId);
      await idle();
      expect(contextsOf(host)).toEqual([["question", "accepted"]]);
      expect(await shown(host)).toEqual([`answer to ${taskOf(host).continuationId}`]);
    });
  });

  test("what was delivered is not delivered again, although its row is gone", async () => {
    await over(NOTHING, life.delivered.disk, async (host) => {
      expect(taskOf(host).state).toBe("delivered");
      expect(await host.submit(taskOf(host).continuationId)).toBe("delivered");
      expect([host.syntheses.length, host.posts.length, await shown(host)]).toEqual([0, 0, []]);
    });
  });
});

describe("host.sqlite is an older copy", () => {
  for (const [older, newer] of [
    ["new", "bound"],
    ["claimed", "bound"],
    ["claimed", "committed"],
  ] as const) {
    test(`of ${older}, the state directory of ${newer}: the turn did not commit there, so its claim is abandoned`, async () => {
      await over(life[older].database, life[newer].disk, async (host) => {
        expect(taskOf(host).originContextState).toBe("abandoned");
        await host.submit(taskOf(host).continuationId);
        await idle();
        expect([host.syntheses.length, (await shown(host)).at(-1)]).toEqual([
          0,
          ORIGIN_CONTEXT_UNAVAILABLE_TEXT,
        ]);
      });
    });
  }

  test("an activation that the state directory has seen is not undone: the answer comes, with its context", async () => {
    await over(life.claimed.database, life.activated.disk, async (host) => {
      expect((await shown(host))[0]).toBe("question");
      await host.submit(taskOf(host).continuationId);
      await idle();
      expect(contextsOf(host)).toEqual([["question", "accepted"]]);
      expect((await shown(host)).at(-1)).toBe(`answer to ${taskOf(host).continuationId}`);
    });
  });

  test("a delivered answer whose row is newer than the copy is not posted again", async () => {
    await over(life.activated.database, life.delivered.disk, async (host) => {
      expect([taskOf(host).state, host.posts.length]).toEqual(["delivered", 0]);
      expect(await shown(host)).toEqual(["question", "accepted"]);
    });
  });
});

describe("the state directory is an older copy", () => {
  test("of before the claim: its producer is told that it is gone", async () => {
    const id = await knownId();
    await over(life.committed.database, life.new.disk, async (host) => {
      expect([await host.submit(id), warned(host)]).toEqual(["not_found", true]);
      expect(await host.turns.openActivations()).toEqual([]);
    });
  });

  for (const newer of ["committed", "activated", "delivered"] as const) {
    test(`of before the binding, host.sqlite of ${newer}: the committed snapshot is not there, so it is abandoned`, async () => {
      await over(life[newer].database, life.claimed.disk, async (host) => {
        expect(taskOf(host).originContextState).toBe("abandoned");
        expect([host.syntheses.length, host.posts.length]).toEqual([0, 0]);
        expect(await host.turns.openActivations()).toEqual([]);
      });
    });
  }

  for (const newer of ["committed", "activated"] as const) {
    test(`of before the activation, host.sqlite of ${newer}: it is activated, although the outbox may be closed`, async () => {
      await over(life[newer].database, life.bound.disk, async (host) => {
        expect(taskOf(host).originContextState).toBe("pinned");
        await host.submit(taskOf(host).continuationId);
        await idle();
        expect(contextsOf(host)).toEqual([["question", "accepted"]]);
      });
    });
  }

  for (const older of ["activated", "accepted"] as const) {
    test(`of ${older}, the answer being in host.sqlite: asked once more, shown once`, async () => {
      await over(life.delivered.database, life[older].disk, async (host) => {
        const id = taskOf(host).continuationId;
        await host.submit(id);
        await idle();
        expect([taskOf(host).state, host.syntheses.length]).toEqual(["delivered", 1]);
        expect(await shown(host)).toEqual(["question", "accepted", `answer to ${id}`]);
      });
    });
  }
});

function contextsOf(host: Host) {
  return host.syntheses.map(({ context }) =>
    context.policy === "pinned" ? context.snapshot.messages.map((message) => message.content) : [],
  );
}
