import { describe, expect, test } from "bun:test";
import { isTerminal } from "../../src/core/record.ts";
import { createMemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import {
  claimBody,
  claimThrough,
  createWorld,
  idle,
  snapshotOf,
  tokenOf,
  tryClaim,
  type World,
} from "../support/continuation-world.ts";
import { activationOnDisk, HOUR_MS, held } from "./settlement-rig.ts";

/** The claims of one run from capability to activation, with everything that can come between. */

const code = (result: { ok: boolean; refusal?: { code: string } }) =>
  result.ok ? "ok" : (result.refusal?.code ?? "?");
const contexts = (world: World, ids: readonly string[]) =>
  ids.map((id) => [world.record(id).state, world.record(id).originContextState]);

async function finalized(world: World, claims: ReturnType<World["run"]>, run = "run-1") {
  await claims.release();
  const bound = await claims.finalize(snapshotOf(run, world.clock.now()));
  if (!bound.ok) throw new Error(bound.refusal.code);
  return bound.value.snapshotDigest;
}

describe("claims around the release", () => {
  test("a claim whose body arrives after the release is refused, although its headers came before", async () => {
    const world = await createWorld();
    const claims = world.run();
    const ticket = world.service.claims.authenticate(tokenOf(claims));
    if (!ticket.ok) throw new Error(ticket.refusal.code);
    await claims.release();
    expect(code(await ticket.value.claim(claimBody(world)))).toBe("invalid_claim_capability");
    expect([claims.hasActiveClaims(), world.store.durable.active()]).toEqual([false, 0]);
  });

  test("a claim admitted just before the release holds it up, and is bound to the snapshot", async () => {
    const fs = createMemoryFileSystem();
    const world = await createWorld({ fs });
    const claims = world.run();
    const writing = held(fs, "transaction.write");
    const claiming = claimThrough(world, tokenOf(claims));
    await writing.reached;
    let released = false;
    const releasing = claims.release().then(() => {
      released = true;
    });
    await idle();
    expect([released, claims.hasActiveClaims()]).toEqual([false, true]);
    writing.open();
    const { continuationId } = await claiming;
    await releasing;
    await claims.activate(await finalized(world, claims));
    expect(contexts(world, [continuationId])).toEqual([["claimed", "pinned"]]);
  });

  test("a claim whose commit fails is not a claim of the run", async () => {
    const fs = createMemoryFileSystem();
    const world = await createWorld({ fs });
    const claims = world.run();
    fs.failWhen(({ label }) => (label === "transaction.write" ? "ENOSPC" : undefined));
    expect(tryClaim(world, tokenOf(claims))).rejects.toThrow();
    await idle();
    await claims.release();
    fs.failWhen();
    const after = await world.restart();
    expect(after.store.durable.active()).toBe(0);
  });

  test("the claims of several servers in one run are activated together, each with its own fingerprint", async () => {
    const world = await createWorld({ servers: ["one", "two"] });
    const claims = world.run();
    const made = await Promise.all(
      ["one", "two"].flatMap((server) =>
        ["a", "b"].map((taskKey) => claimThrough(world, tokenOf(claims, server), { taskKey })),
      ),
    );
    const ids = made.map((answer) => answer.continuationId);
    expect([new Set(ids).size, new Set(made.map((answer) => answer.fingerprint)).size]).toEqual([4, 2]);
    const digest = await finalized(world, claims);
    expect(contexts(world, ids)).toEqual(ids.map(() => ["claimed", "pending"]));
    await claims.activate(digest);
    expect(contexts(world, ids)).toEqual(ids.map(() => ["claimed", "pinned"]));
    for (const answer of made) expect(await world.submit(answer)).toBe("result_received");
    await world.settle();
    expect(world.syntheses.length).toBe(4);
  });

  test("two runs of one conversation are settled apart", async () => {
    const world = await createWorld();
    const [one, two] = [world.run({ originRunId: "run-1" }), world.run({ originRunId: "run-2" })];
    const a = await claimThrough(world, tokenOf(one));
    const b = await claimThrough(world, tokenOf(two));
    await one.activate(await finalized(world, one, "run-1"));
    await two.release();
    await two.abandon();
    expect(contexts(world, [a.continuationId, b.continuationId])).toEqual([
      ["claimed", "pinned"],
      ["claimed", "abandoned"],
    ]);
  });
});

describe("a sibling that ends on the way", () => {
  type Point = "before finalize" | "while the snapshot is written" | "before activate" | "during the barrier";
  const POINTS: readonly Point[] = [
    "before finalize",
    "while the snapshot is written",
    "before activate",
    "during the barrier",
  ];
  const ENDS = {
    async expired(world: World) {
      world.clock.advance(2 * HOUR_MS);
      await world.settle();
    },
    async cancelled(world: World, id: string) {
      await world.service.operator.cancel(id);
    },
  };

  for (const point of POINTS) {
    for (const [state, end] of Object.entries(ENDS)) {
      test(`${state} ${point}: the other is activated, and the directory opens again`, async () => {
        const fs = createMemoryFileSystem();
        const world = await createWorld({ fs });
        const claims = world.run();
        const stays = await claimThrough(world, tokenOf(claims), {
          taskKey: "stays",
          deadline: new Date(world.clock.now() + 9 * HOUR_MS).toISOString(),
        });
        const ends = await claimThrough(world, tokenOf(claims), { taskKey: "ends" });
        await claims.release();
        const endNow = () => end(world, ends.continuationId);
        const finalize = () => claims.finalize(snapshotOf("run-1", world.clock.now()));

        if (point === "before finalize") await endNow();
        const snapshot = held(fs, point === "while the snapshot is written" ? "snapshot.write" : "never");
        const finalizing = finalize();
        if (point === "while the snapshot is written") {
          await snapshot.reached;
          await endNow();
          snapshot.open();
        }
        const bound = await finalizing;
        if (!bound.ok) throw new Error(bound.refusal.code);
        if (point === "before activate") await endNow();
        const barrier = held(fs, point === "during the barrier" ? "marker.write" : "never");
        const activating = claims.activate(bound.value.snapshotDigest);
        if (point === "during the barrier") {
          await barrier.reached;
          expect(activationOnDisk(fs)).toEqual([]);
          const ending = endNow();
          await idle();
          barrier.open();
          await ending;
        }
        await activating;
        await idle();
        expect(contexts(world, [stays.continuationId])).toEqual([["claimed", "pinned"]]);
        const ended: string = world.record(ends.continuationId).state;
        expect(ended).toBe(state);
        expect(activationOnDisk(fs)).toEqual([]);

        for (const disk of [fs.afterPowerCut("none"), fs.afterPowerCut("all")]) {
          const after = await createWorld({ fs: disk, clock: world.clock });
          expect(after.record(stays.continuationId)).toEqual(world.record(stays.continuationId));
          expect(after.record(ends.continuationId)).toEqual(world.record(ends.continuationId));
        }
        await world.submit(stays);
        await world.settle();
        expect(world.syntheses.map((request) => request.continuationId)).toEqual([stays.continuationId]);
      });
    }
  }

  test("when the only claim is cancelled while its snapshot is written, nothing is left to activate", async () => {
    const fs = createMemoryFileSystem();
    const world = await createWorld({ fs });
    const claims = world.run();
    const answer = await claimThrough(world, tokenOf(claims));
    await claims.release();
    const snapshot = held(fs, "snapshot.write");
    const finalizing = claims.finalize(snapshotOf("run-1", world.clock.now()));
    await snapshot.reached;
    expect((await world.service.operator.cancel(answer.continuationId)).ok).toBe(true);
    snapshot.open();
    const bound = await finalizing;
    if (!bound.ok) throw new Error(bound.refusal.code);
    await claims.activate(bound.value.snapshotDigest);
    expect(contexts(world, [answer.continuationId])).toEqual([["cancelled", "pending"]]);
    await idle();
    expect(Object.keys(fs.files()).filter((path) => path.includes("snapshot"))).toEqual([]);
  });

  test("a result that comes while the group is activated is kept, and worked on with the context", async () => {
    const fs = createMemoryFileSystem();
    const world = await createWorld({ fs });
    const claims = world.run();
    const answer = await claimThrough(world, tokenOf(claims));
    const digest = await finalized(world, claims);
    const barrier = held(fs, "marker.write");
    const activating = claims.activate(digest);
    await barrier.reached;
    const submitting = world.submit(answer);
    await idle();
    barrier.open();
    await activating;
    expect(await submitting).toBe("result_received");
    await world.settle();
    expect(isTerminal(world.record(answer.continuationId))).toBe(true);
    expect(world.syntheses[0]?.context.policy).toBe("pinned");
  });
});
