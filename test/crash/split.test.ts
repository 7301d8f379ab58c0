import { describe, expect, test } from "bun:test";
import { transition } from "../../src/core/continuation-transition.ts";
import { payloadHash } from "../../src/core/derive.ts";
import { MIB, retentionSchema, TRANSACTION_MAX_BYTES } from "../../src/core/limits.ts";
import type { Survival } from "../../src/core/ports/crash-disk.ts";
import type { FileSystem } from "../../src/core/ports/platform.ts";
import type { ContinuationRecord } from "../../src/core/record.ts";
import { createMemoryFileSystem, type MemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { createRandom } from "../../src/store/explore/simulated.ts";
import { bindCommand, newClaim, originGroup, originSnapshot } from "../../src/store/explore/subjects.ts";
import { randomSurvival } from "../../src/store/explore/survivals.ts";
import { without } from "../support/crash-planted-bugs.ts";
import { readAsOlderRuntime } from "../support/older-runtime-reader.ts";
import { NOW, NOW_MS } from "../support/records.ts";
import { openStore, recordsOf, STATE_DIR } from "../support/store-harness.ts";

/**
 * One mutation of more than 16 MiB is split over several transactions. Binding a snapshot is repeated whole by the next
 * attempt; an activation is covered by its marker: wherever the power is cut, the directory opens here and by the rules
 * of the older runtime, with no member lost and either all members pinned or none.
 */

const GROUP = originGroup(1);
const MEMBERS = Array.from({ length: 10 }, (_, index) => `c-${index}`);
const PAYLOAD = { data: "d".repeat(1.9 * MIB) };
interface Cut {
  readonly disk: MemoryFileSystem;
  readonly phase: string;
  readonly label: string;
}

const changed = (record: ContinuationRecord, command: Parameters<typeof transition>[1]) => {
  const decision = transition(record, command, NOW_MS);
  if (decision.kind !== "changed") throw new Error(`${command.kind} changes nothing`);
  return decision.record;
};

/** `wrap` plants a bug between the store and its disk. */
async function recorded(
  wrap: (fs: FileSystem) => FileSystem = (fs) => fs,
): Promise<{ cuts: Cut[]; largest: number; transactions: Record<string, number> }> {
  const disk = createMemoryFileSystem();
  const store = await openStore({ fs: wrap(disk) });
  const { secret } = store;
  for (const id of MEMBERS) {
    const claim = newClaim(id, "reply", GROUP, NOW_MS, secret);
    const payload = changed(claim, {
      kind: "accept_result",
      idempotencyKey: id,
      payloadHash: payloadHash(PAYLOAD),
      payload: PAYLOAD,
    });
    await store.commit({ puts: [payload] });
  }
  const stored = await store.snapshots.put(originSnapshot(GROUP, NOW_MS));
  if (!stored.ok) throw new Error("the snapshot was refused");
  const { ref } = stored.value;
  await store.whenDurable();

  const cuts: Cut[] = [];
  const known = new Set<string>();
  const transactions: Record<string, number> = {};
  let phase = "bind";
  let largest = 0;
  const random = createRandom(16);
  disk.failWhen(({ label }) => {
    if (label === "transaction.rename") transactions[phase] = (transactions[phase] ?? 0) + 1;
    const chosen: ("all" | "none" | Survival)[] = ["all", "none"];
    if (/^(transaction|marker)/.test(label)) chosen.push(randomSurvival(disk.unsynced(), random).survival);
    for (const survival of chosen) {
      const left = disk.afterPowerCut(survival);
      const key = left.digest();
      if (known.has(key)) continue;
      known.add(key);
      largest = Math.max(
        largest,
        left.lstat(`${STATE_DIR}/continuation-transaction-v3.json`, "test")?.size ?? 0,
      );
      cuts.push({ disk: left, phase, label });
    }
    return undefined;
  });
  await store.commit({
    puts: MEMBERS.map((id) => {
      const record = store.head.get(id);
      if (record === undefined) throw new Error(`${id} is gone`);
      return changed(record, bindCommand(record, ref, secret));
    }),
  });
  stored.value.release();
  phase = "activate";
  expect((await store.activate(GROUP, ref.digest, NOW)).length).toBe(MEMBERS.length);
  disk.failWhen();
  await store.close();
  return { cuts, largest, transactions };
}

/** What a cut leaves, and what its phase allows; what is there is in all readers' eyes the same. */
async function kindsLeft({ disk, phase, label }: Cut): Promise<{ kinds: string; allowed: string[] }> {
  const older = readAsOlderRuntime(disk, STATE_DIR);
  const store = await openStore({ fs: disk, retention: retentionSchema.parse({}) });
  const own = recordsOf(store);
  const states = Object.values(own).map((record) =>
    record.originContextState === "pinned"
      ? "pinned"
      : record.originContextRef === undefined
        ? "unbound"
        : "bound",
  );
  expect([label, Object.keys(own)]).toEqual([label, MEMBERS]);
  expect([label, Object.fromEntries(older)]).toEqual([label, own]);
  await store.close();
  const allowed = phase === "bind" ? ["unbound", "bound and unbound", "bound"] : ["bound", "pinned"];
  return { kinds: [...new Set(states)].sort().join(" and "), allowed };
}

describe("a mutation of more than 16 MiB", () => {
  test("is split, and no power cut between its parts leaves what does not open or half an activation", async () => {
    const { cuts, largest, transactions } = await recorded();
    expect(transactions.bind).toBeGreaterThan(1);
    expect(transactions.activate).toBeGreaterThan(1);
    expect(largest).toBeGreaterThan(TRANSACTION_MAX_BYTES / 2);
    expect(largest).toBeLessThanOrEqual(TRANSACTION_MAX_BYTES);
    const seen = new Set<string>();
    for (const cut of cuts) {
      const { kinds, allowed } = await kindsLeft(cut);
      seen.add(kinds);
      expect([cut.label, allowed]).toEqual([cut.label, expect.arrayContaining([kinds])]);
    }
    expect([...seen].sort()).toEqual(["bound", "bound and unbound", "pinned", "unbound"]);
    console.log(`split mutations: ${cuts.length} crash states, ${JSON.stringify(transactions)} transactions`);
  }, 120_000);

  test("is no test that can't fail: a marker that is published and not synced is missed", async () => {
    const { cuts } = await recorded(without("marker.sync"));
    const halves: string[] = [];
    for (const cut of cuts.filter(
      ({ phase, label }) => phase === "activate" && label === "transaction.sync",
    )) {
      const { kinds, allowed } = await kindsLeft(cut);
      if (!allowed.includes(kinds)) halves.push(kinds);
    }
    expect([...new Set(halves)]).toEqual(["bound and pinned"]);
  }, 60_000);
});
