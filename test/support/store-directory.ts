import { lstatSync, readdirSync, readFileSync, readlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileJson } from "../../src/core/json.ts";
import { retentionSchema } from "../../src/core/limits.ts";
import type { FileSystem } from "../../src/core/ports/platform.ts";
import type { ContinuationStore } from "../../src/core/ports/store.ts";
import { type OriginContextRef, recordFileName } from "../../src/core/record.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { activationMarker } from "../../src/store/activation.ts";
import { openContinuationStore } from "../../src/store/open.ts";
import { ownershipLock } from "../../src/store/ownership.ts";
import { createFakeClock } from "./fake-clock.ts";
import { createFakeIds } from "./fake-ids.ts";
import { NOW, NOW_MS } from "./records.ts";
import { silentLogger } from "./silent-logger.ts";
import { claim, GROUP, GROUP_KEY, member, snapshotOf } from "./store-harness.ts";

/** A state directory on the real disk that holds one of everything, and how to tell whether it was touched. */

export interface FullDirectory {
  readonly ref: OriginContextRef;
  /** Path of each kind of file. */
  readonly files: Record<FileKind, string>;
}
export type FileKind =
  | "secret"
  | "manifest"
  | "transaction"
  | "record"
  | "blob"
  | "marker"
  | "guard"
  | "owner database";

/** Ids of the records in it: a plain one, one in the transaction, two members that wait for their marker. */
export const FULL_IDS = ["kept", "m-1", "m-2", "written"];

/** Opens with the real filesystem and the real ownership database. */
export function openReal(
  stateDir: string,
  fs: FileSystem = createFileSystem(),
  seed = stateDir,
): Promise<ContinuationStore> {
  const clock = createFakeClock(NOW_MS);
  return openContinuationStore({
    stateDir,
    fs,
    clock,
    ids: createFakeIds(seed),
    logger: silentLogger,
    retention: retentionSchema.parse({}),
    acquireLock: ownershipLock(fs, clock, process.pid),
  });
}

/** Writes the directory as a crash may leave it: records, a referenced blob, a marker and a transaction. */
export async function writeFullDirectory(stateDir: string): Promise<FullDirectory> {
  const store = await openReal(stateDir);
  const stored = await store.snapshots.put(snapshotOf());
  if (!stored.ok) throw new Error("the snapshot was refused");
  const { ref } = stored.value;
  const members = ["m-1", "m-2"].map((id) => member(id, ref, store.secret));
  await store.commit({ puts: [claim("kept"), ...members] });
  await store.close();
  const at = (name: string) => join(stateDir, name);
  const files = {
    secret: at("continuation-secret"),
    manifest: at("continuation-store-v3.json"),
    transaction: at("continuation-transaction-v3.json"),
    record: at(`records-v3/${recordFileName("kept")}`),
    blob: at(`origin-context-v1/${ref.digest}.json`),
    marker: at(`origin-context-groups-v1/${GROUP_KEY}.json`),
    guard: at("records-v2/UPGRADED-TO-RECORDS-V3"),
    "owner database": at("continuations-owner.sqlite"),
  };
  const transaction = {
    schemaVersion: 3,
    generation: "g",
    createdAt: NOW,
    writes: [claim("written")],
    deletes: ["gone"],
  };
  const options = { mode: 0o600 };
  writeFileSync(files.transaction, fileJson(transaction), options);
  writeFileSync(files.marker, fileJson(activationMarker(GROUP, ref.digest, ["m-1", "m-2"], NOW)), options);
  return { ref, files };
}

/**
 * Every entry with kind, mode, owner, links, inode, time and content. The owner database is left out unless asked
 * for: taking the lock is the one thing that a refused opening may do.
 */
export function tree(stateDir: string, options: { owner?: boolean } = {}): Record<string, string> {
  const found: Record<string, string> = {};
  const add = (path: string, name: string) => {
    const stat = lstatSync(path);
    const content = stat.isSymbolicLink()
      ? readlinkSync(path)
      : stat.isFile()
        ? Bun.hash(readFileSync(path)).toString(16)
        : "";
    // A folder's time changes with the owner's journal file in it.
    const time = stat.isDirectory() ? "" : stat.mtimeMs;
    found[name] = [stat.mode.toString(8), stat.uid, stat.nlink, stat.ino, stat.size, time, content].join(" ");
    if (!stat.isDirectory()) return;
    for (const entry of readdirSync(path)) {
      if (!options.owner && entry.startsWith("continuations-owner")) continue;
      add(join(path, entry), `${name}/${entry}`);
    }
  };
  add(stateDir, ".");
  if (!options.owner) delete found["."];
  return found;
}

export function refusalOf(opening: Promise<ContinuationStore>): Promise<{ code: string; message: string }> {
  return opening.then(
    async (store) => {
      await store.close();
      throw new Error("it opened");
    },
    (error: { code: string; message: string }) => error,
  );
}
