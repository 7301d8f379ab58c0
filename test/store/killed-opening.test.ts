import { expect, test } from "bun:test";
import type { FileSystem } from "../../src/core/ports/platform.ts";
import { createMemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import {
  claim,
  GROUP,
  member,
  openStore,
  recordsOf,
  STATE_DIR,
  snapshotOf,
} from "../support/store-harness.ts";

/**
 * A process is killed, another opens the directory as it stands, acknowledges a claim, and then the power goes: names
 * that the killed process did not sync must not take the claim with them.
 */

test.each(["/state", "/a/b/c"])(
  "a claim acknowledged after a kill at any operation of opening %s and first commit survives a power cut",
  async (stateDir) => {
    const whole = createMemoryFileSystem();
    const open = (fs: FileSystem) => openStore({ fs, stateDir, seed: "killed" });
    await (await open(whole)).commit({ puts: [claim("first")] });
    const labels = whole.trace.map((operation) => operation.label);
    for (const label of ["state.mkdir", "secret.rename", "guard.rename"]) expect(labels).toContain(label);

    for (let cut = 1; cut <= whole.counts.operations + 1; cut += 1) {
      const fs = createMemoryFileSystem();
      fs.cutAt(cut);
      await open(fs)
        .then((store) => store.commit({ puts: [claim("first")] }))
        .catch(() => {});
      const next = fs.takeOver();
      const store = await open(next);
      await store.commit({ puts: [claim("second")] });
      for (let missing = -1; missing < next.unsynced().length; missing += 1) {
        for (const others of [true, false]) {
          const disk = next.afterPowerCut((_, index) => (index === missing) !== others);
          const again = await open(disk);
          expect(Object.keys(recordsOf(again))).toContain("second");
          expect(again.secret).toEqual(store.secret);
        }
      }
    }
  },
);

test("a manifest that a killed process left unsynced is durable before the transaction of the next one can be", async () => {
  const first = { puts: [claim("first")] };
  const whole = createMemoryFileSystem();
  await (await openStore({ fs: whole, seed: "killed" })).commit(first);
  const unsynced = whole.trace.findIndex((operation) => operation.label === "manifest.sync") + 1;
  const killed = async () => {
    const fs = createMemoryFileSystem();
    fs.cutAt(unsynced);
    const store = await openStore({ fs, seed: "killed" });
    await store.commit(first).catch(() => {});
    return fs.takeOver();
  };
  const next = await killed();
  await (await openStore({ fs: next, seed: "killed" })).commit(first);
  for (let cut = 1; cut <= next.counts.operations; cut += 1) {
    const fs = await killed();
    fs.cutAt(cut);
    await openStore({ fs, seed: "killed" })
      .then((store) => store.commit(first))
      .catch(() => {});
    for (let only = 0; only < fs.unsynced().length; only += 1) {
      const names = Object.keys(fs.afterPowerCut((_, index) => index === only).files());
      const has = (name: string) => names.includes(`${STATE_DIR}/${name}`);
      expect(has("continuation-transaction-v3.json") && !has("continuation-store-v3.json")).toBe(false);
    }
  }
});

test("a transaction that a killed process left unsynced is never torn by its recovery", async () => {
  const both = { puts: [claim("one"), claim("two")] };
  const whole = createMemoryFileSystem();
  await (await openStore({ fs: whole, seed: "killed" })).commit(both);
  const rename = whole.trace.findIndex((operation) => operation.label === "transaction.sync") + 1;

  const killed = async () => {
    const fs = createMemoryFileSystem();
    fs.cutAt(rename);
    const store = await openStore({ fs, seed: "killed" });
    await store.commit(both).catch(() => {});
    return fs.takeOver();
  };
  const recovery = await killed();
  await openStore({ fs: recovery, seed: "killed" });
  expect(recovery.trace.map((operation) => operation.label)).toContain("records.sync");
  for (let cut = 1; cut <= recovery.counts.operations; cut += 1) {
    const fs = await killed();
    fs.cutAt(cut);
    await openStore({ fs, seed: "killed" }).catch(() => {});
    for (let only = 0; only < fs.unsynced().length; only += 1) {
      const again = await openStore({ fs: fs.afterPowerCut((_, index) => index === only), seed: "killed" });
      expect([[], ["one", "two"]]).toContainEqual(Object.keys(recordsOf(again)));
    }
  }
});

test("a marker whose unlink a killed process left unsynced does not come back over a changed member", async () => {
  const fs = createMemoryFileSystem();
  const store = await openStore({ fs, seed: "killed" });
  const stored = await store.snapshots.put(snapshotOf());
  if (!stored.ok) throw new Error("the snapshot was refused");
  const bound = member("m-1", stored.value.ref, store.secret);
  await store.commit({ puts: [bound] });
  fs.failWhen((operation) => (operation.label === "marker.unlink.sync" ? "EPOWER" : undefined));
  await store.activate(GROUP, stored.value.ref.digest, bound.createdAt).catch(() => {});

  const next = fs.takeOver();
  const second = await openStore({ fs: next, seed: "killed" });
  const pinned = second.head.get("m-1");
  if (pinned === undefined) throw new Error("the member is gone");
  expect(pinned.originContextState).toBe("pinned");
  await second.commit({ puts: [{ ...pinned, state: "cancelled" }] });
  for (const survival of ["none", "all"] as const) {
    const again = await openStore({ fs: next.afterPowerCut(survival), seed: "killed" });
    expect(again.head.get("m-1")?.state).toBe("cancelled");
  }
});
