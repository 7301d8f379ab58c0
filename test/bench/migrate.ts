import { closeSync, mkdirSync, mkdtempSync, openSync, rmSync, writeFileSync, writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileJson } from "../../src/core/json.ts";
import { type ContinuationRecord, recordFileName } from "../../src/core/record.ts";
import { recordIn } from "../support/records.ts";

/**
 * `bun run bench migrate [--json] [--quick]`: converts directories of the older formats in a process of its own, and
 * prints time and memory. Prints figures; asserts nothing.
 */

interface Outcome {
  readonly records: number;
  readonly ms: number;
  readonly baseMb: number;
  readonly openMb: number;
  readonly peakMb: number;
  readonly phases: Record<string, { ms: number; startMb: number; endMb: number }>;
}

export async function bench(args: readonly string[]): Promise<void> {
  const quick = args.includes("--quick");
  const json = args.includes("--json");
  const cases: [what: string, write: (stateDir: string) => void][] = [
    ["v2, 12,500 records", (stateDir) => writeV2(stateDir, 12_500)],
    ["v2, 50,000 records", (stateDir) => writeV2(stateDir, 50_000)],
    ["v1, 20 MiB", (stateDir) => writeV1(stateDir, 20 * 1024 * 1024, "payload ")],
    ["v1, 200 MiB", (stateDir) => writeV1(stateDir, 200 * 1024 * 1024, "payload ")],
    ["v1, 200 MiB, not Latin-1", (stateDir) => writeV1(stateDir, 200 * 1024 * 1024, "payload ✓ ")],
  ];
  for (const [what, write] of quick ? cases.slice(0, 3) : cases) {
    const folder = mkdtempSync(join(tmpdir(), "bench-migrate-"));
    try {
      const stateDir = join(folder, "state");
      mkdirSync(stateDir, { mode: 0o700 });
      writeFileSync(join(stateDir, "continuation-secret"), `${Buffer.alloc(32, 7).toString("base64url")}\n`, {
        mode: 0o600,
      });
      write(stateDir);
      const outcome = await converted(stateDir);
      console.log(json ? JSON.stringify({ what, ...outcome }) : line(what, outcome));
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  }
}

async function converted(stateDir: string): Promise<Outcome> {
  const child = Bun.spawn([process.execPath, join(import.meta.dir, "migrate-entry.ts"), stateDir], {
    stdout: "pipe",
    stderr: "inherit",
  });
  const text = await new Response(child.stdout).text();
  return JSON.parse(text);
}

function line(what: string, { records, ms, baseMb, openMb, peakMb, phases }: Outcome): string {
  const seconds = (ms / 1000).toFixed(1);
  const parts = Object.entries(phases).map(
    ([phase, { ms, startMb, endMb }]) =>
      `${phase} ${(ms / 1000).toFixed(1)} s (${startMb.toFixed(0)} → ${endMb.toFixed(0)} MB)`,
  );
  return `${what.padEnd(26)} ${records} records in ${seconds} s; resident ${baseMb.toFixed(0)} MB before, ${openMb.toFixed(0)} MB after, ${peakMb.toFixed(0)} MB peak\n    ${parts.join("; ")}`;
}

/** Nine of ten are tombstones; the tenth has a payload of a kilobyte. */
function legacyRecord(index: number, filler: string): object {
  const open = index % 10 === 0;
  const {
    originContextState: _state,
    synthesisDeferrals: _count,
    deliveryBindingMac: _mac,
    ...record
  } = recordIn(open ? "result_received" : "delivered", {
    continuationId: `c-${index}`,
    originRunId: `run-${index}`,
    historyBoundary: `run-${index}`,
    taskKey: `task-${index}`,
    resultPayload: open ? { filler } : undefined,
  } as Partial<ContinuationRecord>);
  return record;
}

function writeV2(stateDir: string, count: number): void {
  const folder = join(stateDir, "records-v2");
  mkdirSync(folder, { mode: 0o700 });
  const filler = "x".repeat(1_000);
  for (let index = 0; index < count; index += 1) {
    writeFileSync(join(folder, recordFileName(`c-${index}`)), fileJson(legacyRecord(index, filler)), {
      mode: 0o600,
    });
  }
}

/** Records as in v2, but half of the bytes are payloads of 100 KiB. */
function writeV1(stateDir: string, bytes: number, word: string): void {
  const file = openSync(join(stateDir, "continuations-v1.json"), "w", 0o600);
  const big = word.repeat(Math.ceil((100 * 1024) / word.length));
  let done = writeSync(
    file,
    '{\n  "schemaVersion": 1,\n  "updatedAt": "2026-11-20T12:00:00.000Z",\n  "records": {\n',
  );
  for (let index = 0; done < bytes; index += 1) {
    const filler = index % 100 === 0 ? big : "x".repeat(1_000);
    const text = JSON.stringify(legacyRecord(index, filler), null, 2).replaceAll("\n", "\n    ");
    done += writeSync(file, `${index === 0 ? "" : ",\n"}    "c-${index}": ${text}`);
  }
  writeSync(file, "\n  }\n}\n");
  closeSync(file);
}
