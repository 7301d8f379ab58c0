import { describe, expect, test } from "bun:test";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { createMemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { checkContinuationStore } from "../../src/store/check.ts";
// @ts-expect-error: plain JavaScript beside the fixtures, used as it is
import { materialize } from "../fixtures/materialize.mjs";
import { claim, openStore, recordsOf, STATE_DIR, withFolder } from "../support/store-harness.ts";

describe("the check", () => {
  test("finds nothing where there is no state directory yet, and makes none", () => {
    const fs = createMemoryFileSystem();
    expect(checkContinuationStore({ fs, stateDir: STATE_DIR })).toMatchObject({
      exists: false,
      findings: [],
    });
    expect(fs.counts.operations).toBe(0);
  });

  test("while a host runs it sees what is committed, transaction included, and changes nothing", async () => {
    const fs = createMemoryFileSystem();
    const store = await openStore({ fs });
    for (let index = 0; index < 20; index += 1) {
      const filler = "x".repeat(30 * 1024);
      const done = store.commit({ puts: [claim(`c-${index}`, { filler })] });
      const operations = fs.counts.operations;
      const check = checkContinuationStore({ fs, stateDir: STATE_DIR });
      expect(fs.counts.operations).toBe(operations);
      expect(check).toMatchObject({ exists: true, findings: [], records: index, moving: false });
      await done;
      expect(checkContinuationStore({ fs, stateDir: STATE_DIR }).counts.claimed).toBe(index + 1);
      expect(Object.keys(recordsOf(store))).toHaveLength(index + 1);
    }
    await store.close();
    expect(checkContinuationStore({ fs, stateDir: STATE_DIR })).toMatchObject({ findings: [], records: 20 });
  });

  const damaged: Record<string, { path: string; affects?: string }> = {
    "v3/bad-record-name": { path: "records-v3/" },
    "v3/guard-missing": { path: "records-v2/UPGRADED-TO-RECORDS-V3" },
    "v3/corrupt-blob": { path: "origin-context-v1/", affects: "bbb7ece5-e826-4002-9c02-954ec16fcef3" },
    "v3/missing-blob": { path: "origin-context-v1/", affects: "7dd9563e-1a3b-4edf-aece-1e50faac13f5" },
    "v3/bad-mac": { path: "records-v3/", affects: "01fc248e-b3ea-4cb3-8733-70df2b4b37f1" },
  };
  for (const [fixture, { path, affects }] of Object.entries(damaged)) {
    test(`${fixture}: names the file, what depends on it and what to do`, () =>
      withFolder((folder) => {
        materialize(fixture, folder);
        const before = readdirSync(folder, { recursive: true }).sort();
        const { findings } = checkContinuationStore({ fs: createFileSystem(), stateDir: folder });
        expect(findings).toHaveLength(1);
        expect(findings[0]?.path).toStartWith(join(folder, path));
        if (affects === undefined) expect(findings[0]?.affects).toBeUndefined();
        else expect(findings[0]?.affects).toContain(affects);
        expect(findings[0]?.remedy.length).toBeGreaterThan(20);
        expect(readdirSync(folder, { recursive: true }).sort()).toEqual(before);
      }));
  }

  test("several damaged files are all named", async () => {
    const fs = createMemoryFileSystem();
    const store = await openStore({ fs });
    await store.commit({ puts: [claim("a"), claim("b"), claim("c")] });
    await store.close();
    const records = Object.keys(fs.files()).filter((path) => path.includes("records-v3/"));
    fs.seed(records[0] ?? "", "{");
    fs.seed(records[1] ?? "", "{}", 0o644);
    const check = checkContinuationStore({ fs, stateDir: STATE_DIR });
    expect(check.findings.map((finding) => finding.path)).toEqual(records.slice(0, 2).sort());
    expect(check.records).toBe(1);
  });

  for (const fixture of ["v3/all-states", "v3/interrupted-transaction", "v3/marker-published"]) {
    test(`${fixture} has no findings: what is interrupted is not damaged`, () =>
      withFolder((folder) => {
        materialize(fixture, folder);
        expect(checkContinuationStore({ fs: createFileSystem(), stateDir: folder }).findings).toEqual([]);
      }));
  }
});
