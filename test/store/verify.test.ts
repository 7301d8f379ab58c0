import { afterEach, expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { recordFileName } from "../../src/core/record.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { verifyContinuation } from "../../src/store/verify.ts";
// @ts-expect-error: plain JavaScript beside the fixtures, used as it is
import { materialize } from "../fixtures/materialize.mjs";

/** Everything that binds a record together, recomputed from directories that the released runtime wrote. */

const folders: string[] = [];
afterEach(() => {
  for (const path of folders.splice(0)) rmSync(path, { recursive: true });
});

function fixture(name: string): { stateDir: string; ids: Record<string, string> } {
  const path = mkdtempSync(join(tmpdir(), "mono-agent-verify-"));
  folders.push(path);
  const stateDir = join(path, "state");
  materialize(name, stateDir);
  const expected = JSON.parse(
    readFileSync(join(import.meta.dir, `../fixtures/${name}.expected.json`), "utf8"),
  );
  return { stateDir, ids: expected.labels };
}

const verify = (stateDir: string, continuationId: string) =>
  verifyContinuation({ fs: createFileSystem(), stateDir, continuationId });
const failing = (stateDir: string, id: string) =>
  verify(stateDir, id)
    ?.checks.filter(({ matches }) => matches === "no" || matches === "unreadable")
    .map(({ what }) => what);

function alter(stateDir: string, id: string, change: Record<string, unknown>): void {
  const path = join(stateDir, "records-v3", recordFileName(id));
  const record = { ...JSON.parse(readFileSync(path, "utf8")), ...change };
  writeFileSync(path, `${JSON.stringify(record, null, 2)}\n`, { mode: 0o600 });
}

test("every record that the released runtime wrote matches in all that it still holds", () => {
  const { stateDir, ids } = fixture("v3/all-states");
  let bound = 0;
  for (const [label, id] of Object.entries(ids)) {
    const found = verify(stateDir, id);
    expect([label, found?.checks.filter(({ matches }) => matches === "no")]).toEqual([label, []]);
    expect([label, found?.ok]).toEqual([label, true]);
    if (found?.checks.some(({ what, matches }) => what === "snapshot binding" && matches === "yes"))
      bound += 1;
  }
  expect(bound).toBeGreaterThan(3);
});

test("what was altered is named, and nothing else", () => {
  const { stateDir, ids } = fixture("v3/all-states");
  const id = ids["delivery-retry"] ?? "";
  alter(stateDir, id, { resultPayload: { n: 4 } });
  expect(failing(stateDir, id)).toEqual(["payload hash"]);
  alter(stateDir, id, { resultPayload: { n: 3 }, replyToConversationId: "chat:elsewhere" });
  expect(failing(stateDir, id)).toEqual(["claim fingerprint", "snapshot binding"]);
  alter(stateDir, id, { replyToConversationId: "chat:eta", taskHash: "other" });
  expect(failing(stateDir, id)).toEqual(["result token", "snapshot binding"]);
});

test("a changed MAC, a corrupt blob and a missing blob are found", () => {
  const mac = fixture("v3/bad-mac");
  expect(failing(mac.stateDir, mac.ids["pinned-with-result"] ?? "")).toEqual(["snapshot binding"]);
  for (const name of ["v3/corrupt-blob", "v3/missing-blob"]) {
    const { stateDir, ids } = fixture(name);
    const found = Object.values(ids).flatMap((id) => failing(stateDir, id) ?? []);
    expect([name, new Set(found)]).toEqual([name, new Set(["snapshot digest"])]);
  }
});

test("a version in the transaction is newer than the record file, and one it deletes is gone", () => {
  const written = fixture("v3/interrupted-transaction");
  const transaction = JSON.parse(
    readFileSync(join(written.stateDir, "continuation-transaction-v3.json"), "utf8"),
  );
  for (const record of transaction.writes) {
    expect(verify(written.stateDir, record.continuationId)?.state).toBe(record.state);
  }
  const deleting = fixture("v3/interrupted-transaction-delete");
  const { deletes } = JSON.parse(
    readFileSync(join(deleting.stateDir, "continuation-transaction-v3.json"), "utf8"),
  );
  expect(deletes.length).toBeGreaterThan(0);
  for (const id of deletes) expect(verify(deleting.stateDir, id)).toBeUndefined();
});

test("an unknown id is undefined", () => {
  expect(verify(fixture("v3/all-states").stateDir, "nobody")).toBeUndefined();
});
