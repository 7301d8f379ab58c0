import { createHash } from "node:crypto";
import type { FileSystem } from "../../src/core/ports/platform.ts";

/**
 * The runtime of the v2 time, as far as opening goes, written from the format facts alone (store-format.md §1, §6, §7,
 * and the fixtures' README): it lists `records-v2`, and stops at the first name that does not end in `.json`. It knows
 * nothing of v3. It throws wherever that runtime refuses to open.
 *
 * The real one applies an unfinished transaction before it lists; here that happens in memory.
 */

type Json = Record<string, unknown>;

export function readAsV2Runtime(fs: FileSystem, stateDir: string): Map<string, Json> {
  const manifest = read(fs, `${stateDir}/continuation-store-v2.json`);
  if (manifest !== undefined && manifest.schemaVersion !== 2) throw new Error("not a v2 manifest");
  const records = new Map<string, Json>();
  for (const name of (fs.list(`${stateDir}/records-v2`, "v2") ?? []).sort()) {
    if (/^\..+\.tmp$/.test(name)) continue;
    const path = `${stateDir}/records-v2/${name}`;
    if (!name.endsWith(".json")) {
      throw new Error(`Unexpected entry in continuation record directory: ${path}`);
    }
    const record = read(fs, path) ?? {};
    const id = String(record.continuationId);
    if (`${createHash("sha256").update(id).digest("hex")}.json` !== name) {
      throw new Error(`Continuation record filename does not match its id: ${path}`);
    }
    records.set(id, record);
  }
  const transaction = read(fs, `${stateDir}/continuation-transaction-v2.json`);
  for (const record of (transaction?.writes ?? []) as Json[])
    records.set(String(record.continuationId), record);
  for (const id of (transaction?.deletes ?? []) as string[]) records.delete(id);
  return records;
}

/** What the v2 runtime does to a directory when it accepts a claim: one record file more. For the clean way back. */
export function v2RecordFile(stateDir: string, record: Json): { path: string; text: string } {
  const name = `${createHash("sha256").update(String(record.continuationId)).digest("hex")}.json`;
  return { path: `${stateDir}/records-v2/${name}`, text: `${JSON.stringify(record, null, 2)}\n` };
}

function read(fs: FileSystem, path: string): Json | undefined {
  const handle = fs.open(path, "v2");
  if (handle === undefined) return undefined;
  try {
    return JSON.parse(Buffer.from(handle.read(handle.stat().size)).toString("utf8"));
  } finally {
    handle.close();
  }
}
