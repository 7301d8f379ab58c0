import { describe, expect, test } from "bun:test";
import type { FileSystem } from "../../src/core/ports/platform.ts";
import { isTerminal } from "../../src/core/record.ts";
import type { MemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { createImageCheck, type Opened, type Violation } from "../../src/store/explore/image-check.ts";
import { recordsOf } from "../../src/store/explore/ledger.ts";
import { createJudge } from "../../src/store/explore/verdict.ts";
import { createWorld, idle, STATE_DIR } from "../support/continuation-world.ts";
import { breaking, tooEarly, without } from "../support/crash-planted-bugs.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { readAsOlderRuntime } from "../support/older-runtime-reader.ts";
import {
  type Event,
  idOf,
  type Moment,
  ROUTES,
  recordServiceLife,
  SERVICES,
  type ServiceLife,
} from "../support/service-life.ts";

/**
 * The power is cut at every operation of the store while the real service works on it. Each disk that may be left is
 * held against I1 to I7 and the older runtime, as those of the store's own explorer are; then the service is started on
 * it, lives on until everything has ended, and has asked no model and posted no answer twice.
 */

const SEEDS = Array.from({ length: 10 }, (_, index) => index + 1);
const HOUR_MS = 3_600_000;

/** Disks on which the service is started again, at most, of each life; all are judged. */
const LIVED_ON = 150;

const words = (text: string) => text.trim().split(/\s+/);
const REACHED = words(`
  claimed result_received synthesizing ready_to_deliver delivery_retry delivered delivery_unknown cancelled dead_lettered
  reply notify_if_actionable silent capture pending pinned abandoned detached_latest scrubbed
  transaction.rename record.rename record.unlink snapshot.rename snapshot.unlink marker.rename marker.unlink
  accepted synthesis post retryable permanent unknown poisoned`);

interface Figures {
  states: number;
  images: number;
  livedOn: number;
}

/** Every state against what was promised; gives the disks, each with the last moment at which it may be left. */
async function judged(life: ServiceLife, figures: Figures): Promise<Map<number, Moment>> {
  const imageCheck = createImageCheck(life.workload, readAsOlderRuntime);
  const { judge } = createJudge(life.workload.retention);
  const outcomes = new Map<number, Opened | Violation>();
  const last = new Map<number, Moment>();
  for (const moment of life.moments) {
    const image = life.images[moment.image];
    if (image === undefined) throw new Error("no such image");
    const outcome = outcomes.get(moment.image) ?? (await imageCheck.check(image));
    outcomes.set(moment.image, outcome);
    last.set(moment.image, moment);
    figures.states += 1;
    const wrong = "invariant" in outcome ? outcome : judge(outcome, moment.promised, image.nowMs);
    if (wrong !== undefined) throw new Error(`${where(life, moment)}: ${wrong.invariant}: ${wrong.message}`);
  }
  figures.images += outcomes.size;
  return last;
}

function where({ workload }: ServiceLife, { operation, label, survival }: Moment): string {
  return `service life ${workload.seed}, power cut before operation ${operation} (${label}), survival ${survival}`;
}

/** What had happened to each continuation by then. */
function seenOf(events: readonly Event[]) {
  const accepted = new Set<string>();
  const syntheses = new Map<string, number>();
  /** The last outcome of a post; undefined as long as the channel has not answered. */
  const posts = new Map<string, string | undefined>();
  for (const event of events) {
    if (event.kind === "accepted") accepted.add(event.id);
    else if (event.kind === "synthesis") syntheses.set(event.id, (syntheses.get(event.id) ?? 0) + 1);
    else posts.set(event.id, event.kind === "outcome" ? event.outcome : undefined);
  }
  return { accepted, syntheses, posts };
}

async function livesOn(life: ServiceLife, moment: Moment, disk: MemoryFileSystem, nowMs: number) {
  const { accepted, syntheses, posts } = seenOf(life.events.slice(0, moment.events));
  const clock = createFakeClock(nowMs + 1000);
  const world = await createWorld({
    fs: disk,
    clock,
    seed: "the life after",
    routes: ROUTES,
    services: SERVICES,
    retention: life.workload.retention,
    carryLimits: life.workload.carryLimits,
  });
  for (const id of accepted) expect([id, world.store.durable.get(id)?.state]).not.toEqual([id, "claimed"]);
  for (const group of world.service.origins.pending()) await world.service.origins.abandon(group);
  await world.service.startWorker();
  for (let hour = 0; hour < 3; hour += 1) {
    await idle(2);
    await world.settle();
    clock.advance(HOUR_MS);
  }
  await idle(3);
  for (const { continuationId: id, context } of world.syntheses) {
    syntheses.set(id, (syntheses.get(id) ?? 0) + 1);
    if (context.policy === "pinned") expect(context.snapshot.messages.at(-1)?.content).toBe("accepted");
  }
  for (const [id, count] of syntheses) expect([id, count]).toEqual([id, 1]);
  const after = world.posts.map((request) => idOf(request.deliveryKey));
  expect(new Set(after).size).toBe(after.length);
  // Only what the channel certainly did not take may be posted again.
  for (const id of after)
    expect([id, posts.get(id) ?? "never posted"]).toEqual([id, posts.has(id) ? "retryable" : "never posted"]);
  const ends = recordsOf(world.store);
  for (const record of ends.values())
    expect([record.continuationId, isTerminal(record)]).toEqual([record.continuationId, true]);
  expect(world.store.fault()).toBeUndefined();
  await world.service.stop();
  await world.store.close();
  expect(readAsOlderRuntime(disk, STATE_DIR)).toEqual(new Map(ends));
}

describe("a power cut while the service works", () => {
  test(`${SEEDS.length} lives: every promise is kept, and nothing is asked or posted twice`, async () => {
    const figures: Figures = { states: 0, images: 0, livedOn: 0 };
    const reached = new Set<string>();
    for (const seed of SEEDS) {
      const life = await recordServiceLife(seed);
      expect(life.failure).toBeUndefined();
      for (const { label, promised } of life.moments) {
        reached.add(label);
        for (const record of promised.ledger.states[promised.floor]?.values() ?? []) {
          reached.add(record.state).add(record.mode).add(record.originContextState);
        }
      }
      for (const event of life.events) reached.add(event.kind === "outcome" ? event.outcome : event.kind);
      if (life.poisoned) reached.add("poisoned");
      const last = [...(await judged(life, figures))];
      const stride = Math.ceil(last.length / LIVED_ON);
      for (const [index, [number, moment]] of last.entries()) {
        const image = life.images[number];
        if (index % stride !== 0 || image === undefined) continue;
        figures.livedOn += 1;
        try {
          await livesOn(life, moment, image.disk.afterPowerCut("all"), image.nowMs);
        } catch (error) {
          throw new Error(`${where(life, moment)}: ${String(error)}`, { cause: error });
        }
      }
    }
    console.log(`service lives: ${JSON.stringify(figures)}`);
    expect(REACHED.filter((wanted) => !reached.has(wanted))).toEqual([]);
    expect(figures.states).toBeGreaterThan(20_000);
  }, 240_000);

  const CUT = /power cut before operation \d+/;
  const BROKEN = /^seed \d+, after \d+ operations: .*planted/;
  const PLANTED: readonly [string, (fs: FileSystem) => FileSystem, RegExp][] = [
    ["an acknowledgement before the fsync", tooEarly("transaction.write"), CUT],
    ["a missing folder fsync", without("transaction.sync"), CUT],
    ["a record that leaves the transaction too early", tooEarly("record.write", "records.sync"), CUT],
    ["a marker whose unlink is not durable", without("marker.unlink.sync"), CUT],
    ["a store that poisons itself", breaking("marker.write"), BROKEN],
  ];
  for (const [what, wrap, expected] of PLANTED) {
    test(`is no test that can't fail: ${what} is found`, async () => {
      let found: string | undefined;
      for (const seed of SEEDS) {
        const life = await recordServiceLife(seed, wrap);
        found = await judged(life, { states: 0, images: 0, livedOn: 0 }).then(() => life.failure, String);
        if (found !== undefined) break;
      }
      expect(found).toMatch(expected);
    }, 120_000);
  }
});
