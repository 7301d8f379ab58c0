import { Database } from "bun:sqlite";
import { describe, expect, test } from "bun:test";
import {
  chmodSync,
  linkSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { fileJson } from "../../src/core/json.ts";
import { FileFault, type FileSystem } from "../../src/core/ports/platform.ts";
import { recordFileName } from "../../src/core/record.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { checkContinuationStore } from "../../src/store/check.ts";
import { type FileKind, openReal, tree, writeFullDirectory } from "../support/store-directory.ts";
import { claim, recordsOf, withFolder } from "../support/store-harness.ts";

/** Each kind of damage, one at a time: the check names the file, says what depends on it and what to do, and touches nothing. */

const check = (stateDir: string, fs: FileSystem = createFileSystem()) =>
  checkContinuationStore({ fs, stateDir });

interface Damage {
  readonly kind: FileKind;
  readonly spoil: (file: string, outside: string) => void;
  /** What the sentence about it has to say. */
  readonly says: string;
  readonly affects?: readonly string[];
}
const json = (file: string) => JSON.parse(readFileSync(file, "utf8"));
const rewrite = (file: string, patch: object) => writeFileSync(file, fileJson({ ...json(file), ...patch }));
const link = (file: string, outside: string) => {
  renameSync(file, outside);
  symlinkSync(outside, file);
};

/** Tries to own the directory from another process and prints the refusal. */
const OTHER_PROCESS = `
  import { createFileSystem } from ${JSON.stringify(join(import.meta.dir, "../../src/platform/filesystem.ts"))};
  import { ownershipLock } from ${JSON.stringify(join(import.meta.dir, "../../src/store/ownership.ts"))};
  const acquire = ownershipLock(createFileSystem(), { now: () => 0, timer: () => () => {} }, process.pid);
  try {
    acquire(process.argv.at(-1) + "/continuations-owner.sqlite");
    process.stdout.write("owned");
  } catch (error) {
    process.stdout.write(error.code);
  }
`;

const MEMBERS = ["m-1", "m-2"];
const DAMAGES: Record<string, Damage> = {
  "a record that is no JSON": { kind: "record", spoil: (file) => writeFileSync(file, "{"), says: "JSON" },
  "a record with an unknown state": {
    kind: "record",
    spoil: (file) => rewrite(file, { state: "lost" }),
    says: "state",
  },
  "a record of another id": {
    kind: "record",
    spoil: (file) => writeFileSync(file, fileJson(claim("other"))),
    says: "name",
  },
  "a record that is a symlink": { kind: "record", spoil: link, says: "symlink" },
  "a record that others can read": {
    kind: "record",
    spoil: (file) => chmodSync(file, 0o644),
    says: "mode is 0644",
  },
  "a record with two links": { kind: "record", spoil: linkSync, says: "hard link" },
  "a folder instead of a record": {
    kind: "record",
    spoil: (file) => {
      rmSync(file);
      mkdirSync(file);
    },
    says: "directory",
  },
  "a transaction cut short": {
    kind: "transaction",
    spoil: (file) => writeFileSync(file, readFileSync(file).subarray(0, 100)),
    says: "JSON",
  },
  "a transaction that names an id twice": {
    kind: "transaction",
    spoil: (file) => rewrite(file, { deletes: ["gone", "gone"] }),
    says: "twice",
  },
  "a manifest of another schema": {
    kind: "manifest",
    spoil: (file) => rewrite(file, { schemaVersion: 4 }),
    says: "schemaVersion",
  },
  "a missing guard": { kind: "guard", spoil: (file) => rmSync(file), says: "missing" },
  "another guard": { kind: "guard", spoil: (file) => writeFileSync(file, "x\n"), says: "guard" },
  "a missing secret": { kind: "secret", spoil: (file) => rmSync(file), says: "missing" },
  "an empty secret": { kind: "secret", spoil: (file) => writeFileSync(file, ""), says: "empty" },
  "a secret that others can read": {
    kind: "secret",
    spoil: (file) => chmodSync(file, 0o604),
    says: "mode is 0604",
  },
  "a marker for other members": {
    kind: "marker",
    spoil: (file) => rewrite(file, { memberCount: 3 }),
    says: "members",
  },
  "a marker for another snapshot": {
    kind: "marker",
    spoil: (file) => rewrite(file, { snapshotDigest: "0".repeat(64) }),
    says: "not bound",
  },
  "a marker that is no JSON": { kind: "marker", spoil: (file) => writeFileSync(file, "?"), says: "JSON" },
  "a missing blob": { kind: "blob", spoil: (file) => rmSync(file), says: "missing", affects: MEMBERS },
  "a changed blob": {
    kind: "blob",
    spoil: (file) => writeFileSync(file, readFileSync(file, "utf8").replace("accepted", "ACCEPTED")),
    says: "corrupt",
    affects: MEMBERS,
  },
  "a blob that others can read": {
    kind: "blob",
    spoil: (file) => chmodSync(file, 0o644),
    says: "unreadable",
    affects: MEMBERS,
  },
  "an ownership database that is a symlink": { kind: "owner database", spoil: link, says: "symlink" },
  "an ownership database that is no database": {
    kind: "owner database",
    spoil: (file) => writeFileSync(file, "not a database at all, whatever its name says", { mode: 0o600 }),
    says: "database",
  },
};

/** A word of what each kind of file is for. */
const DEPENDS: Record<FileKind, string> = {
  secret: "token",
  manifest: "guard is required",
  transaction: "newest changes",
  record: "one continuation",
  blob: "origin context",
  marker: "claims of one run",
  guard: "older runtimes",
  "owner database": "lock",
};

describe("the check of", () => {
  for (const [what, { kind, spoil, says, affects }] of Object.entries(DAMAGES)) {
    test(`${what} names it, what depends on it and what to do`, () =>
      withFolder(async (stateDir) => {
        const { files } = await writeFullDirectory(stateDir);
        spoil(files[kind], join(dirname(stateDir), "outside"));
        const before = tree(stateDir, { owner: true });
        const found = check(stateDir);
        expect(tree(stateDir, { owner: true })).toEqual(before);
        expect(found.findings.map((finding) => finding.path)).toEqual([files[kind]]);
        const [finding] = found.findings;
        expect(finding?.problem).toContain(says);
        expect(finding?.remedy.length).toBeGreaterThan(20);
        expect(finding?.depends).toContain(DEPENDS[kind]);
        expect(finding?.affects).toEqual(affects as string[]);
        // The check says what opening does: damage without `affects` stops it, the other harms its continuations.
        const opened = await openReal(stateDir).then(
          async (store) => {
            await store.close();
            return true;
          },
          () => false,
        );
        expect(opened).toBe(affects !== undefined);
      }));
  }

  test("a directory with one of everything has no findings, and counts what opening reads", () =>
    withFolder(async (stateDir) => {
      await writeFullDirectory(stateDir);
      const found = check(stateDir);
      expect(found).toMatchObject({ exists: true, findings: [], records: 4, snapshots: 1, moving: false });
      const store = await openReal(stateDir);
      expect(found.counts).toEqual(store.durable.counts());
      await store.close();
    }));

  test("a transaction alone, without a secret, is refused by opening and named here", () =>
    withFolder(async (stateDir) => {
      const { files } = await writeFullDirectory(stateDir);
      for (const name of ["kept", "m-1", "m-2"]) rmSync(join(stateDir, "records-v3", recordFileName(name)));
      for (const file of [files.marker, files.blob, files.secret]) rmSync(file);
      rewrite(files.transaction, { writes: [] });
      await expect(openReal(stateDir)).rejects.toMatchObject({ code: "store_secret_invalid" });
      expect(check(stateDir).findings.map((finding) => finding.path)).toEqual([files.secret]);
    }));

  test("files that the system refuses to show are findings, not crashes", () =>
    withFolder(async (stateDir) => {
      const { files } = await writeFullDirectory(stateDir);
      const real = createFileSystem();
      for (const method of ["lstat", "open"] as const) {
        for (const file of Object.values(files)) {
          const denied = (path: string, label: string): void => {
            if (path === file) throw new FileFault(label, path, "EACCES");
          };
          const fs: FileSystem = {
            ...real,
            lstat(path, label) {
              if (method === "lstat") denied(path, label);
              return real.lstat(path, label);
            },
            open(path, label) {
              if (method === "open") denied(path, label);
              return real.open(path, label);
            },
          };
          // The ownership database is looked at from outside only.
          if (method === "open" && file === files["owner database"]) continue;
          const { findings } = check(stateDir, fs);
          expect(findings.map((finding) => finding.path)).toEqual([file]);
          expect(findings[0]?.remedy).not.toContain("remove");
        }
      }
      const folders = ["records-v3", "origin-context-v1", "origin-context-groups-v1", "records-v2"];
      for (const folder of folders.map((name) => join(stateDir, name))) {
        const fs: FileSystem = {
          ...real,
          list(path, label) {
            if (path === folder) throw new FileFault(label, path, "EACCES");
            return real.list(path, label);
          },
        };
        expect(check(stateDir, fs).findings.map((finding) => finding.path)).toContain(folder);
      }
    }));

  for (const kind of ["secret", "manifest", "transaction", "record", "marker", "guard"] as const) {
    test(`a ${kind} far beyond its limit is told by its size and read by nobody, and no mode is blamed`, () =>
      withFolder(async (stateDir) => {
        const { files } = await writeFullDirectory(stateDir);
        truncateSync(files[kind], 2 ** 40);
        const real = createFileSystem();
        const fs: FileSystem = {
          ...real,
          open(path, label) {
            if (path === files[kind]) throw new Error(`${label} opens it`);
            return real.open(path, label);
          },
        };
        const { findings } = check(stateDir, fs);
        expect(findings.map((finding) => finding.path)).toEqual([files[kind]]);
        expect(findings[0]?.problem).toContain(`must be at most`);
        expect(findings[0]?.remedy).not.toContain("mode");
      }));
  }

  test("a folder in place of a record that the transaction replaces stops the opening before it changes anything", () =>
    withFolder(async (stateDir) => {
      for (const id of ["written", "gone"]) {
        const folder = join(stateDir, id);
        const { files } = await writeFullDirectory(folder);
        const path = join(folder, "records-v3", recordFileName(id));
        mkdirSync(path, { mode: 0o700 });
        expect(check(folder).findings.map((finding) => finding.path)).toEqual([path]);
        const before = tree(folder);
        await expect(openReal(folder)).rejects.toMatchObject({ code: "store_unsafe_file" });
        expect(tree(folder)).toEqual(before);
        expect(readFileSync(files.transaction, "utf8")).toContain(id);
      }
    }));

  test("a damaged manifest, or a guard that came before the first manifest, is no state of an older format", () =>
    withFolder(async (stateDir) => {
      const { files } = await writeFullDirectory(stateDir);
      writeFileSync(files.manifest, "{");
      expect(check(stateDir)).toMatchObject({ migrationDue: false, findings: [{ path: files.manifest }] });
      rmSync(files.manifest);
      expect(check(stateDir)).toMatchObject({ migrationDue: false, findings: [] });
      writeFileSync(join(stateDir, "continuations-v1.json"), "{}", { mode: 0o600 });
      expect(check(stateDir).migrationDue).toBe(true);
    }));

  test("a damaged transaction is not advised to be moved away: acknowledged work could begin twice", () =>
    withFolder(async (stateDir) => {
      const { files } = await writeFullDirectory(stateDir);
      writeFileSync(files.transaction, "{");
      expect(check(stateDir).findings[0]?.remedy).toContain("don't just move this file away");
    }));

  test("an ownership database of whole pages that are no database is named when it may be looked into", () =>
    withFolder(async (stateDir) => {
      const { files } = await writeFullDirectory(stateDir);
      const file = files["owner database"];
      for (const letter of ["\0", "x"]) {
        writeFileSync(file, letter.repeat(8192), { mode: 0o600 });
        expect(check(stateDir).findings).toEqual([]);
        const { findings } = checkContinuationStore({ fs: createFileSystem(), stateDir, notOwner: true });
        expect(findings.map(({ path, remedy }) => [path, remedy.includes("remove this file")])).toEqual([
          [file, true],
        ]);
        await expect(openReal(stateDir)).rejects.toMatchObject({ message: findings[0]?.problem });
      }
      rmSync(file);
      const database = new Database(file, { create: true });
      database.run("CREATE TABLE other (id INTEGER)");
      database.close();
      chmodSync(file, 0o600);
      expect(checkContinuationStore({ fs: createFileSystem(), stateDir, notOwner: true }).findings).toEqual(
        [],
      );
    }));

  test("a directory that a host owns: damage is named the same, and what the host changes is no damage", () =>
    withFolder(async (stateDir) => {
      const { files } = await writeFullDirectory(stateDir);
      const store = await openReal(stateDir);
      await store.commit({ puts: [claim("fresh")] });
      expect(check(stateDir).findings).toEqual([]);
      expect(check(stateDir).records).toBe(Object.keys(recordsOf(store)).length);
      writeFileSync(files.record, "{");
      rmSync(files.blob);
      expect(check(stateDir).findings.map(({ path, affects }) => [path, affects])).toEqual([
        [files.record, undefined],
        [files.blob, MEMBERS],
      ]);
      // The check has not taken the lock away from its owner, even in the same process.
      await expect(openReal(stateDir)).rejects.toMatchObject({ code: "store_owned" });
      const other = Bun.spawnSync(["bun", "-e", OTHER_PROCESS, stateDir]);
      expect(other.stdout.toString()).toBe("store_owned");
      await store.close();
    }));

  test("a directory that changes under it: only what two readings agree on is reported", () =>
    withFolder(async (stateDir) => {
      const { files } = await writeFullDirectory(stateDir);
      const real = createFileSystem();
      let reads = 0;
      const fs: FileSystem = {
        ...real,
        open(path, label) {
          if (path === files.record) {
            reads += 1;
            // Gone for one reader, as when a checkpoint replaces it.
            if (reads === 1) return undefined;
          }
          if (path === files.transaction) rewrite(files.transaction, { generation: `g-${reads}-${label}` });
          return real.open(path, label);
        },
        lstat: (path, label) => real.lstat(path, label),
      };
      const found = check(stateDir, fs);
      expect(reads).toBeGreaterThan(1);
      expect(found.findings).toEqual([]);
    }));
});
