import { describe, expect, test } from "bun:test";
import { SNAPSHOTS_TOTAL_MAX_BYTES } from "../../src/core/limits.ts";
import { FileFault } from "../../src/core/ports/platform.ts";
import { snapshotJson } from "../../src/core/snapshot.ts";
import { createMemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { claim, member, openStore, STATE_DIR, snapshotOf } from "../support/store-harness.ts";

const FOLDER = `${STATE_DIR}/origin-context-v1`;

async function opened() {
  const fs = createMemoryFileSystem();
  const store = await openStore({ fs });
  const put = async (runId?: string, text?: string) => {
    const stored = await store.snapshots.put(snapshotOf(runId, text));
    if (!stored.ok) throw new Error(stored.refusal.code);
    return stored.value;
  };
  const blobs = () => Object.keys(fs.files()).filter((path) => path.startsWith(FOLDER));
  const idle = async () => {
    for (let turn = 0; turn < 30; turn += 1) await Promise.resolve();
  };
  return { fs, store, put, blobs, idle };
}

describe("snapshots", () => {
  test("a stored snapshot reads back, and its file is the canonical JSON itself", async () => {
    const { fs, store, put } = await opened();
    const { ref } = await put();
    expect(fs.files()[`${FOLDER}/${ref.digest}.json`]).toBe(snapshotJson(snapshotOf()));
    expect(store.snapshots.read(ref)).toEqual({ ok: true, snapshot: snapshotOf() });
  });

  test("claims of one run share one blob, written once even when stored at the same time", async () => {
    const { fs, put, blobs } = await opened();
    await Promise.all([put(), put(), put()]);
    expect(blobs()).toHaveLength(1);
    expect(fs.trace.filter((operation) => operation.label === "snapshot.rename")).toHaveLength(1);
  });

  test("a pin holds the blob until it is released, and a durable reference after that", async () => {
    const { store, put, blobs, idle } = await opened();
    const { ref, release } = await put();
    await idle();
    expect(blobs()).toHaveLength(1);
    const record = member("a", ref, store.secret, { originContextState: "pinned" });
    await store.commit({ puts: [record] });
    release();
    release();
    await idle();
    expect(blobs()).toHaveLength(1);
    await store.commit({ puts: [{ ...record, state: "cancelled" }] });
    await idle();
    expect(blobs()).toHaveLength(0);
  });

  test("a blob that nothing came to refer to goes with its pin", async () => {
    const { put, blobs, idle } = await opened();
    const { release } = await put();
    release();
    await idle();
    expect(blobs()).toHaveLength(0);
    const second = await put();
    expect(blobs()).toHaveLength(1);
    second.release();
  });

  test("storing it again while it is being removed leaves it there", async () => {
    const { fs, store, put, idle } = await opened();
    const opening = Promise.withResolvers<void>();
    const first = await put();
    fs.holdWhen((step) => (step.label === "snapshot.unlink" ? opening.promise : undefined));
    first.release();
    await idle();
    const again = put();
    opening.resolve();
    const { ref } = await again;
    await idle();
    expect(store.snapshots.read(ref).ok).toBe(true);
  });

  test("the blob stays while another record refers to it", async () => {
    const { store, put, blobs, idle } = await opened();
    const { ref, release } = await put();
    const [a, b] = ["a", "b"].map((id) => member(id, ref, store.secret));
    if (a === undefined || b === undefined) throw new Error("no members");
    await store.commit({ puts: [a, b] });
    release();
    await store.commit({ puts: [{ ...a, state: "expired" }] });
    await idle();
    expect(blobs()).toHaveLength(1);
    await store.commit({ puts: [{ ...b, state: "delivery_unknown" }] });
    await idle();
    expect(blobs()).toHaveLength(0);
    expect(store.durable.get("b")).toMatchObject({
      originContextState: "scrubbed",
      originContextDigest: ref.digest,
    });
  });

  test("all blobs together stay within the quota, and room comes back when one goes", async () => {
    const fs = createMemoryFileSystem();
    const filling = SNAPSHOTS_TOTAL_MAX_BYTES / (256 * 1024);
    const blob = "x".repeat(256 * 1024);
    await (await openStore({ fs })).close();
    const setUp = await openStore({ fs });
    const digests = Array.from({ length: filling }, (_, index) => index.toString(16).padStart(64, "0"));
    const puts = digests.map((digest, index) =>
      claim(`full-${index}`, {
        originContextState: "pinned",
        originContextRef: { schemaVersion: 1, digest, bytes: blob.length, messageCount: 2 },
      }),
    );
    await setUp.commit({ puts });
    await setUp.close();
    for (const digest of digests) fs.seed(`${FOLDER}/${digest}.json`, blob);
    const store = await openStore({ fs });
    const refused = await store.snapshots.put(snapshotOf());
    expect(refused.ok ? "stored" : refused.refusal.code).toBe("snapshot_quota");
    const first = store.durable.get("full-0");
    if (first === undefined) throw new Error("not there");
    await store.commit({ puts: [{ ...first, state: "cancelled" }] });
    for (let turn = 0; turn < 30; turn += 1) await Promise.resolve();
    expect((await store.snapshots.put(snapshotOf())).ok).toBe(true);
    await store.close();
  });

  test("a snapshot that does not fit its format is refused, and a disk that refuses it harms nothing else", async () => {
    const { fs, store, blobs, idle } = await opened();
    const bad = { ...snapshotOf(), historyBoundary: "run-other" };
    const refused = await store.snapshots.put(bad);
    expect(refused.ok ? "stored" : refused.refusal.code).toBe("snapshot_invalid");
    fs.failWhen((operation) => (operation.label === "snapshot.rename" ? "ENOSPC" : undefined));
    const code = await store.snapshots.put(snapshotOf()).catch((error: { code: string }) => error.code);
    expect(code).toBe("store_write_failed");
    fs.failWhen();
    await idle();
    expect(store.fault()).toBeUndefined();
    expect((await store.snapshots.put(snapshotOf())).ok).toBe(true);
    expect(blobs().filter((path) => !path.endsWith(".tmp"))).toHaveLength(1);
  });

  for (const [damage, text] of [
    ["corrupt", "{}"],
    ["corrupt", `${snapshotJson(snapshotOf()).slice(0, -1)} `],
    ["corrupt", snapshotJson(snapshotOf()).replace("a question", "b question")],
  ] as const) {
    test(`a blob with other content (${text.slice(-12)}) is ${damage}, and storing it again heals it`, async () => {
      const { fs, store, put } = await opened();
      const { ref } = await put();
      fs.seed(`${FOLDER}/${ref.digest}.json`, text);
      expect(store.snapshots.read(ref)).toEqual({ ok: false, damage });
      await put();
      expect(store.snapshots.read(ref).ok).toBe(true);
    });
  }

  test("a blob that is missing or open to others says so", async () => {
    const { fs, store, put } = await opened();
    const { ref } = await put();
    fs.seed(`${FOLDER}/${ref.digest}.json`, snapshotJson(snapshotOf()), 0o644);
    expect(store.snapshots.read(ref)).toEqual({ ok: false, damage: "unreadable" });
    fs.erase(`${FOLDER}/${ref.digest}.json`);
    expect(store.snapshots.read(ref)).toEqual({ ok: false, damage: "missing" });
  });

  for (const errno of ["EMFILE", "ENFILE", "ENOMEM"]) {
    test(`that ${errno} keeps from being read is not taken for damaged`, async () => {
      const { fs, store, put } = await opened();
      const { ref } = await put();
      const { open } = fs;
      fs.open = (path, label) => {
        throw new FileFault(label, path, errno);
      };
      expect(() => store.snapshots.read(ref)).toThrow(errno);
      fs.open = open;
      expect(store.snapshots.read(ref).ok).toBe(true);
    });
  }
});
