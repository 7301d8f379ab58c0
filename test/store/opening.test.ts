import { describe, expect, test } from "bun:test";
import { fileJson } from "../../src/core/json.ts";
import { recordFileName } from "../../src/core/record.ts";
import { GUARD_CONTENT } from "../../src/core/store-files.ts";
import { createMemoryFileSystem, type MemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { claim, openStore, recordsOf, STATE_DIR } from "../support/store-harness.ts";

const path = (name: string) => `${STATE_DIR}/${name}`;
const SECRET = path("continuation-secret");
const MANIFEST = path("continuation-store-v3.json");
const GUARD = path("records-v2/UPGRADED-TO-RECORDS-V3");
const TRANSACTION = path("continuation-transaction-v3.json");
const recordPath = (id: string) => path(`records-v3/${recordFileName(id)}`);

/** A closed store with one record. */
async function written(): Promise<MemoryFileSystem> {
  const fs = createMemoryFileSystem();
  const store = await openStore({ fs });
  await store.commit({ puts: [claim("kept")] });
  await store.close();
  return fs;
}

async function refusal(fs: MemoryFileSystem): Promise<{ code: string; message: string }> {
  const before = fs.files();
  const modes = fs.modes();
  const error = await openStore({ fs }).then(
    () => undefined,
    (refused: { code: string; message: string }) => refused,
  );
  if (error === undefined) throw new Error("it opened");
  // Whatever the reason: a refused opening has changed nothing.
  expect(fs.files()).toEqual(before);
  expect(fs.modes()).toEqual(modes);
  return error;
}

describe("a new directory", () => {
  test("is made with its parents, holds a secret, and has neither guard nor records until something is stored", async () => {
    const fs = createMemoryFileSystem();
    const store = await openStore({ fs, stateDir: "/work/.mono-agent/continuations" });
    await store.close();
    const files = Object.keys(fs.files());
    expect(files).toEqual([
      "/work/.mono-agent/continuations/continuation-secret",
      "/work/.mono-agent/continuations/continuation-store-v3.json",
    ]);
    expect(JSON.parse(fs.files()[files[1] ?? ""] ?? "").rollbackGuardRequired).toBe(false);
    expect(fs.files()[files[0] ?? ""]).toMatch(/^[A-Za-z0-9_-]{43}\n$/);
    expect(fs.unsynced().filter((change) => change.kind === "data")).toEqual([]);
  });

  test("gets guard and manifest before its first transaction, and never loses the requirement", async () => {
    const fs = createMemoryFileSystem();
    const store = await openStore({ fs, retention: { terminalMaxRecords: 0 } });
    await store.commit({ puts: [claim("a")] });
    const labels = fs.trace.map((operation) => operation.label);
    expect(labels.indexOf("guard.sync")).toBeLessThan(labels.indexOf("manifest.write"));
    expect(labels.indexOf("manifest.sync")).toBeLessThan(labels.indexOf("transaction.write"));
    await store.commit({ puts: [claim("a", { state: "expired" })] });
    await store.close();
    expect(fs.files()[recordPath("a")]).toBeUndefined();
    const again = await openStore({ fs });
    await again.close();
    expect(JSON.parse(fs.files()[MANIFEST] ?? "").rollbackGuardRequired).toBe(true);
    expect(fs.files()[GUARD]).toBe(GUARD_CONTENT);
  });
});

describe("what a crash or an older runtime left", () => {
  test("records without guard and manifest get both first", async () => {
    const fs = await written();
    fs.erase(MANIFEST);
    fs.erase(GUARD);
    const store = await openStore({ fs });
    expect(Object.keys(recordsOf(store))).toEqual(["kept"]);
    expect(fs.files()[GUARD]).toBe(GUARD_CONTENT);
    expect(JSON.parse(fs.files()[MANIFEST] ?? "").rollbackGuardRequired).toBe(true);
    await store.close();
  });

  test("a transaction lies over record files, even over one that can't be read", async () => {
    const fs = await written();
    const transaction = {
      schemaVersion: 3,
      generation: "g",
      createdAt: "2026-11-30T12:00:00.000Z",
      writes: [claim("kept", { taskHash: "newer" }), claim("new")],
      deletes: ["never there"],
    };
    fs.seed(TRANSACTION, fileJson(transaction));
    fs.seed(recordPath("kept"), "torn {");
    const store = await openStore({ fs });
    expect(recordsOf(store)).toMatchObject({ kept: { taskHash: "newer" }, new: {} });
    expect(fs.files()[TRANSACTION]).toBeUndefined();
    expect(fs.files()[recordPath("kept")]).toBe(fileJson(claim("kept", { taskHash: "newer" })));
    await store.close();
  });

  test("temporaries are no evidence and go, in the state directory itself too", async () => {
    const fs = await written();
    const names = ["", "records-v3/", "origin-context-v1/", "origin-context-groups-v1/", "records-v2/"];
    for (const folder of names) fs.seed(path(`${folder}.left-over.tmp`), "{");
    await (await openStore({ fs })).close();
    expect(Object.keys(fs.files()).filter((name) => name.endsWith(".tmp"))).toEqual([]);
  });

  test("a loose folder is repaired", async () => {
    const fs = await written();
    await fs.run([{ op: "chmod", path: path("records-v3"), mode: 0o755, label: "test" }]);
    await (await openStore({ fs })).close();
    expect(fs.modes()[path("records-v3")]).toBe(0o700);
  });

  test("keys that we do not know stay as they are, and what older versions lack is added", async () => {
    const fs = await written();
    const old: Record<string, unknown> = claim("old", { note: { "10": 1, "9": [null, { __x: 1 }] } });
    delete old.originContextState;
    delete old.synthesisDeferrals;
    const text = fileJson(old).replace("__x", "__proto__");
    fs.seed(recordPath("old"), text);
    const store = await openStore({ fs });
    const record = store.durable.get("old");
    expect(record).toMatchObject({ originContextState: "legacy_missing", synthesisDeferrals: 0 });
    expect(JSON.stringify(record?.note)).toBe('{"9":[null,{"__proto__":1}],"10":1}');
    await store.close();
  });

  for (const content of ["", "c2hvcnQ\n"]) {
    test(`a secret of ${content.length} bytes is replaced in an empty store, and refused beside records`, async () => {
      const empty = createMemoryFileSystem();
      empty.seed(SECRET, content);
      const store = await openStore({ fs: empty });
      expect(store.secret).toHaveLength(32);
      await store.close();
      const fs = await written();
      fs.seed(SECRET, content);
      const error = await refusal(fs);
      expect(error.code).toBe("store_secret_invalid");
      expect(error.message).toContain("backup");
    });
  }
});

describe("what is refused", () => {
  const transaction = (patch: object) =>
    fileJson({
      schemaVersion: 3,
      generation: "g",
      createdAt: "2026-11-30T12:00:00.000Z",
      writes: [],
      deletes: [],
      ...patch,
    });
  const cases: [what: string, code: string, file: string, text: string | undefined][] = [
    ["a missing secret beside records", "store_secret_invalid", SECRET, undefined],
    ["a missing guard", "store_guard_invalid", GUARD, undefined],
    ["another guard", "store_guard_invalid", GUARD, "something else\n"],
    ["a broken manifest", "store_corrupt", MANIFEST, "{"],
    ["a newer manifest", "store_corrupt", MANIFEST, fileJson({ schemaVersion: 4 })],
    ["a foreign name beside the records", "store_corrupt", path("records-v3/notes.txt"), "x"],
    [
      "a record under another name",
      "store_corrupt",
      path(`records-v3/${"a".repeat(64)}.json`),
      fileJson(claim("x")),
    ],
    ["broken JSON in a record", "store_corrupt", recordPath("x"), "{"],
    ["a record that is a list", "store_corrupt", recordPath("x"), "[]\n"],
    ["an unknown state", "store_corrupt", recordPath("x"), fileJson({ ...claim("x"), state: "lost" })],
    ["a negative counter", "store_corrupt", recordPath("x"), fileJson(claim("x", { deliveryAttempts: -1 }))],
    ["a record open to others", "store_unsafe_file", recordPath("x"), fileJson(claim("x"))],
    ["a deeply nested record", "store_corrupt", recordPath("x"), `${"[".repeat(500_000)}`],
    [
      "a record that passes 2 MiB when it is indented",
      "store_corrupt",
      recordPath("x"),
      JSON.stringify(claim("x")).replace(
        /}$/,
        `,"resultPayload":${"[".repeat(20_000)}${"]".repeat(20_000)}}`,
      ),
    ],
    ["a foreign name beside the markers", "store_corrupt", path("origin-context-groups-v1/x.json"), "{}"],
    ["a broken transaction", "store_corrupt", TRANSACTION, '{"schemaVersion": 3'],
    [
      "a transaction that names an id twice",
      "store_corrupt",
      TRANSACTION,
      transaction({ deletes: ["a", "a"] }),
    ],
    [
      "a transaction that writes and deletes an id",
      "store_corrupt",
      TRANSACTION,
      transaction({ writes: [claim("a")], deletes: ["a"] }),
    ],
    [
      "a transaction with a bad record",
      "store_corrupt",
      TRANSACTION,
      transaction({ writes: [{ continuationId: "a" }] }),
    ],
    [
      "a transaction with a long generation",
      "store_corrupt",
      TRANSACTION,
      transaction({ generation: "g".repeat(257) }),
    ],
  ];
  for (const [what, code, file, text] of cases) {
    test(`${what}: named, and nothing is changed`, async () => {
      const fs = await written();
      if (text === undefined) fs.erase(file);
      else fs.seed(file, text, code === "store_unsafe_file" ? 0o640 : 0o600);
      const error = await refusal(fs);
      expect(error.code).toBe(code);
      expect(error.message).toContain(file);
    });
  }

  test("bytes that are no UTF-8, and a message that quotes nothing of the content", async () => {
    const fs = await written();
    fs.seed(
      recordPath("x"),
      fileJson(claim("x", { note: "SECRET-PAYLOAD" })).replace('"state": "claimed"', '"state": x'),
    );
    expect((await refusal(fs)).message).not.toContain("SECRET");
    const bytes = Buffer.from(fileJson(claim("x", { note: "Z" })), "latin1");
    bytes[bytes.indexOf("Z")] = 0xff;
    fs.erase(recordPath("x"));
    await fs.run([
      { op: "write", path: recordPath("x"), data: bytes, mode: 0o600, sync: true, label: "test" },
    ]);
    expect((await refusal(fs)).message).toContain("UTF-8");
  });
});
