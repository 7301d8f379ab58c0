import { afterEach, beforeEach, expect, test } from "bun:test";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { restoreBackup } from "../../src/host/restore.ts";
import { loadConfig, type MonoAgentApp, startMonoAgent } from "../../src/index.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
// @ts-expect-error: plain JavaScript beside the fixtures, used as it is
import { materialize } from "../fixtures/materialize.mjs";
import { freePort } from "../support/binary.ts";
import { writeDemoFolder } from "../support/demo-folder.ts";
import { readAsV2Runtime } from "../support/older-v2-reader.ts";
import { createRecordingLogger } from "../support/silent-logger.ts";

/** A host started on older state: converted by itself, after a backup that leads back. */

let path: string;
let app: MonoAgentApp | undefined;
beforeEach(() => {
  path = mkdtempSync(join(tmpdir(), "mono-agent-host-"));
});
afterEach(async () => {
  await app?.stop();
  app = undefined;
  rmSync(path, { recursive: true, force: true });
});

function configured(host: Record<string, unknown> = {}) {
  writeDemoFolder(path, { continuations: { port: freePort() }, terminal: { enabled: false }, host });
  return loadConfig({ cwd: path, env: {} });
}
const at = (name: string) => join(path, ".mono-agent", name);

test("serve converts older state by itself, backs it up before, and says so in the log", async () => {
  materialize("v2/interrupted-transaction", at("continuations"));
  const before = readAsV2Runtime(createFileSystem(), at("continuations"));
  const logger = createRecordingLogger();
  app = await startMonoAgent({ config: configured(), logger });
  expect(app.listContinuations().filter(({ state }) => state === "claimed")).toHaveLength(3);
  await app.stop();
  app = undefined;

  const log = logger.lines.join("\n");
  expect(log).toContain("backed up before it is converted");
  expect(log).toContain("older state is converted");
  const [backup] = readdirSync(at("backups"));
  expect(log).toContain(String(backup));

  // The way back that the backup is for.
  const saved = join(path, String(backup));
  writeFileSync(saved, readFileSync(at(`backups/${backup}`)), { mode: 0o600 });
  rmSync(at(""), { recursive: true });
  await restoreBackup(saved, { hostDir: at(""), stateDir: at("continuations") });
  expect(readAsV2Runtime(createFileSystem(), at("continuations"))).toEqual(before);
});

test("the backup can be turned off", async () => {
  materialize("v1/monolith", at("continuations"));
  const logger = createRecordingLogger();
  app = await startMonoAgent({ config: configured({ backupBeforeMigration: false }), logger });
  expect(existsSync(at("backups"))).toBe(false);
  expect(app.listContinuations()).toHaveLength(19);
});
