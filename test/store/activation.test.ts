import { describe, expect, test } from "bun:test";
import type { ContinuationStore } from "../../src/core/ports/store.ts";
import type { ContinuationRecord } from "../../src/core/record.ts";
import { createMemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import {
  claim,
  GROUP,
  GROUP_KEY,
  member,
  openStore,
  recordsOf,
  STATE_DIR,
  snapshotOf,
} from "../support/store-harness.ts";

const ACTIVATED = "2026-11-30T12:30:00.000Z";
const MARKER = `${STATE_DIR}/origin-context-groups-v1/${GROUP_KEY}.json`;

async function prepared(patches: Record<string, Partial<ContinuationRecord>> = { a: {}, b: {} }) {
  const fs = createMemoryFileSystem();
  const store = await openStore({ fs });
  const stored = await store.snapshots.put(snapshotOf());
  if (!stored.ok) throw new Error("refused");
  const { ref, release } = stored.value;
  const puts = Object.entries(patches).map(([id, patch]) => ({
    ...member(id, ref, store.secret),
    ...patch,
  }));
  await store.commit({ puts });
  release();
  return { fs, store, digest: ref.digest };
}

const codeOf = (promise: Promise<unknown>) =>
  promise.then(
    () => undefined,
    (error: { code: string }) => error.code,
  );

describe("activation", () => {
  test("pins every pending member of the group, and the marker is gone before anybody is told", async () => {
    const { fs, store, digest } = await prepared({
      a: {},
      b: {
        state: "result_received",
        nextAttemptAt: "2026-11-30T12:59:00.000Z",
        lastError: { code: "origin_context_pending", reason: "waits", at: ACTIVATED },
      },
      c: { lastError: { code: "other", reason: "stays", at: ACTIVATED } },
    });
    const before = fs.trace.length;
    const ids = await store.activate(GROUP, digest, ACTIVATED);
    expect(ids.sort()).toEqual(["a", "b", "c"]);
    for (const id of ids) {
      expect(store.durable.get(id)).toMatchObject({ originContextState: "pinned", updatedAt: ACTIVATED });
      expect(store.durable.get(id)?.nextAttemptAt).toBeUndefined();
    }
    expect(store.durable.get("b")?.lastError).toBeUndefined();
    expect(store.durable.get("c")?.lastError?.code).toBe("other");
    // The result that came before the commit is due at once.
    expect(store.durable.due(0, 10).map((record) => record.continuationId)).toEqual(["b"]);
    expect(fs.files()[MARKER]).toBeUndefined();
    expect(fs.trace.slice(before).map((operation) => `${operation.label}:${operation.kind}`)).toEqual([
      "marker.write:create",
      "marker.write:data",
      "marker.write:sync",
      "marker.rename:rename",
      "marker.sync:syncDir",
      "transaction.write:create",
      "transaction.write:data",
      "transaction.write:sync",
      "transaction.rename:rename",
      "transaction.sync:syncDir",
      "marker.unlink:unlink",
      "marker.unlink.sync:syncDir",
    ]);
    expect(await store.activate(GROUP, digest, ACTIVATED)).toEqual([]);
  });

  test("is a barrier: what is pending is flushed before it, what comes later waits and builds on pinned members", async () => {
    const { fs, store, digest } = await prepared();
    const start = fs.trace.length;
    const earlier = store.commit({ puts: [claim("earlier")] });
    const activation = store.activate(GROUP, digest, ACTIVATED);
    const cancelled = store.head.get("a");
    if (cancelled === undefined) throw new Error("not there");
    expect(cancelled.originContextState).toBe("pinned");
    const later = store.commit({ puts: [{ ...cancelled, state: "cancelled" }] });
    await activation;
    expect(store.durable.get("a")?.state).toBe("claimed");
    await Promise.all([earlier, later]);
    const labels = fs.trace.slice(start).map((operation) => operation.label);
    expect(labels.indexOf("transaction.sync")).toBeLessThan(labels.indexOf("marker.write"));
    expect(labels.lastIndexOf("transaction.write")).toBeGreaterThan(labels.indexOf("marker.unlink.sync"));
    expect(store.durable.get("a")).toMatchObject({ state: "cancelled", originContextState: "scrubbed" });
    expect(store.durable.get("b")?.originContextState).toBe("pinned");
  });

  test("without a member that waits for this snapshot it does nothing", async () => {
    const { fs, store } = await prepared();
    const before = fs.counts.operations;
    expect(await store.activate(GROUP, "0".repeat(64), ACTIVATED)).toEqual([]);
    expect(await store.activate({ ...GROUP, originRunId: "run-other" }, "0".repeat(64), ACTIVATED)).toEqual(
      [],
    );
    expect(fs.counts.operations).toBe(before);
  });

  test("beside a sibling that is not bound to the snapshot it pins the others by one transaction and no marker", async () => {
    const { fs, store, digest } = await prepared({ a: {}, b: { originContextState: "abandoned" } });
    const before = fs.trace.length;
    expect(await store.activate(GROUP, digest, ACTIVATED)).toEqual(["a"]);
    expect(fs.trace.slice(before).some((operation) => operation.label.startsWith("marker"))).toBe(false);
    expect(store.durable.get("b")?.originContextState).toBe("abandoned");
    await store.close();
    const again = await openStore({ fs });
    expect(again.durable.get("a")?.originContextState).toBe("pinned");
    await again.close();
  });

  test("a marker that can't be published poisons the store and leaves the members pending", async () => {
    const { fs, store, digest } = await prepared();
    fs.failWhen((operation) => (operation.label === "marker.rename" ? "EROFS" : undefined));
    expect(await codeOf(store.activate(GROUP, digest, ACTIVATED))).toBe("store_write_failed");
    expect(store.durable.get("a")?.originContextState).toBe("pending");
    fs.failWhen();
    const again = await openStore({ fs });
    expect(again.durable.get("a")?.originContextState).toBe("pending");
    await again.close();
  });
});

describe("a marker found on disk", () => {
  async function withMarker(): Promise<{ fs: ReturnType<typeof createMemoryFileSystem>; marker: string }> {
    const { fs, store, digest } = await prepared();
    fs.failWhen((operation) =>
      operation.label === "transaction.write" && fs.files()[MARKER] !== undefined ? "EIO" : undefined,
    );
    await codeOf(store.activate(GROUP, digest, ACTIVATED));
    fs.failWhen();
    return { fs, marker: fs.files()[MARKER] ?? "" };
  }

  const reopened = async (fs: ReturnType<typeof createMemoryFileSystem>): Promise<ContinuationStore> =>
    openStore({ fs });

  test("is applied, and applied again when a crash left it after its records", async () => {
    const { fs, marker } = await withMarker();
    const store = await reopened(fs);
    const records = recordsOf(store);
    expect(records.a).toMatchObject({ originContextState: "pinned", updatedAt: ACTIVATED });
    expect(fs.files()[MARKER]).toBeUndefined();
    await store.close();
    fs.seed(MARKER, marker);
    const again = await reopened(fs);
    expect(recordsOf(again)).toEqual(records);
    expect(fs.files()[MARKER]).toBeUndefined();
    await again.close();
  });

  for (const [what, spoil] of [
    ["another member set", (marker: Record<string, unknown>) => ({ ...marker, memberCount: 3 })],
    [
      "another snapshot",
      (marker: Record<string, unknown>) => ({ ...marker, snapshotDigest: "0".repeat(64) }),
    ],
    ["another group's key", (marker: Record<string, unknown>) => ({ ...marker, originRunId: "run-x" })],
    ["no date", (marker: Record<string, unknown>) => ({ ...marker, activatedAt: "yesterday-ish" })],
  ] as const) {
    test(`with ${what} refuses the opening, names the file and changes nothing`, async () => {
      const { fs, marker } = await withMarker();
      fs.seed(MARKER, `${JSON.stringify(spoil(JSON.parse(marker)), null, 2)}\n`);
      const before = fs.files();
      const refused = await reopened(fs).then(
        () => undefined,
        (error: { code: string; message: string }) => error,
      );
      expect(refused?.code).toBe("store_corrupt");
      expect(refused?.message).toContain(MARKER);
      expect(fs.files()).toEqual(before);
    });
  }
});
