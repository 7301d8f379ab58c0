import { describe, expect, test } from "bun:test";
import { reconcileOrigins } from "../../src/host/reconcile.ts";
import { createMemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { createRig, runOne } from "../harness/rig.ts";
import { claimThrough, createWorld, type World } from "../support/continuation-world.ts";
import { createFakeTools } from "../support/harness-fakes.ts";
import { silentLogger } from "../support/silent-logger.ts";

/** A turn over the real ledger whose claims are in a store that stops being writable at one step of its end. */

interface Outcome {
  /** How the turn ends. */
  readonly status: "succeeded" | "failed";
  /** The claim when the turn has ended, and after a restart has settled what was left. */
  readonly ended: "pending" | "abandoned" | "pinned";
  readonly restarted: "abandoned" | "pinned";
  readonly poisons: boolean;
}

const STEPS: Record<string, { nth: number; outcome: Outcome }> = {
  // The bind commit is the second transaction: the first is the claim itself.
  "snapshot.write": {
    nth: 1,
    outcome: { status: "failed", ended: "abandoned", restarted: "abandoned", poisons: false },
  },
  "snapshot.rename": {
    nth: 1,
    outcome: { status: "failed", ended: "abandoned", restarted: "abandoned", poisons: false },
  },
  "snapshot.sync": {
    nth: 1,
    outcome: { status: "failed", ended: "abandoned", restarted: "abandoned", poisons: false },
  },
  "transaction.rename": {
    nth: 2,
    outcome: { status: "failed", ended: "pending", restarted: "abandoned", poisons: true },
  },
  "transaction.sync": {
    nth: 2,
    outcome: { status: "failed", ended: "pending", restarted: "abandoned", poisons: true },
  },
  "marker.rename": {
    nth: 1,
    outcome: { status: "succeeded", ended: "pending", restarted: "pinned", poisons: true },
  },
  "marker.unlink": {
    nth: 1,
    outcome: { status: "succeeded", ended: "pinned", restarted: "pinned", poisons: true },
  },
};

async function turnOver(world: World) {
  const rig = await createRig();
  const fake = createFakeTools();
  let continuationId = "";
  const turn = await runOne(rig, {
    claims: world.service.issuer,
    tools: {
      ...fake,
      async open(request) {
        const token = request.capabilities.get("work-control")?.token ?? "";
        continuationId = (await claimThrough(world, token)).continuationId;
        return fake.open(request);
      },
    },
  });
  return { rig, turn, continuationId };
}

describe("a turn with a claim", () => {
  for (const errno of ["ENOSPC", "EIO"]) {
    for (const [label, { nth, outcome }] of Object.entries(STEPS)) {
      test(`${errno} at ${label}: it ends as ${outcome.status}, and its claim as ${outcome.restarted} at the latest after a restart`, async () => {
        const fs = createMemoryFileSystem();
        const world = await createWorld({ fs });
        world.script.supports = () => "supported";
        let seen = 0;
        fs.failWhen((operation) => {
          if (operation.label !== label) return undefined;
          seen += 1;
          return seen >= nth ? errno : undefined;
        });
        const { rig, turn, continuationId } = await turnOver(world);
        try {
          expect(turn.status).toBe(outcome.status);
          expect(world.store.fault()?.code).toBe(outcome.poisons ? errno : undefined);
          expect(world.record(continuationId).originContextState).toBe(outcome.ended);
          const texts = (await rig.store.feed("terminal:a", 0, 100)).map((row) => row.role);
          expect(texts).toEqual(["user", outcome.status === "failed" ? "notice" : "assistant"]);

          fs.failWhen();
          await world.store.close();
          const again = await world.restart();
          await reconcileOrigins({
            origins: again.service.origins,
            turns: rig.store,
            clock: again.clock,
            logger: silentLogger,
          });
          expect(again.store.fault()).toBeUndefined();
          expect(again.record(continuationId).originContextState).toBe(outcome.restarted);
          expect(await rig.store.openActivations()).toEqual([]);
          await again.store.close();
        } finally {
          await rig.remove();
        }
      });
    }
  }
});
