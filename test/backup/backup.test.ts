import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import {
  chmodSync,
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { ClaimAnswer } from "../../src/core/wire.ts";
import { writeBackup } from "../../src/host/backup.ts";
import { backupStoppedHost, type StatePlaces } from "../../src/host/backup-offline.ts";
import { restoreBackup } from "../../src/host/restore.ts";
import { loadConfig, type MonoAgentApp, startMonoAgent } from "../../src/index.ts";
import { createClock } from "../../src/platform/clock.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { createIds } from "../../src/platform/ids.ts";
import { freePort, until } from "../support/binary.ts";
import { cliRun } from "../support/cli-run.ts";
import { silentLogger } from "../support/silent-logger.ts";

/** A real host in this process: backed up while it runs and when it does not, restored elsewhere, started again. */

const SERVICE_TOKEN = "a-service-token-of-some-length";
const env = { OPS_TOKEN: SERVICE_TOKEN };
let path: string;
let app: MonoAgentApp | undefined;
let port: number;

beforeEach(() => {
  path = mkdtempSync(join(tmpdir(), "mono-agent-backup-"));
  port = freePort();
  configure(path);
});
afterEach(async () => {
  await app?.stop();
  app = undefined;
  rmSync(path, { recursive: true, force: true });
});

function configure(folder: string, blocks: Record<string, unknown> = {}): void {
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, "identity.md"), "You are a test.");
  writeFileSync(
    join(folder, "mono-agent.config.json"),
    JSON.stringify({
      runtime: { model: "demo:assistant" },
      context: { identityPath: "identity.md" },
      continuations: {
        port,
        namedRoutes: { keep: { mode: "capture", conversationId: "terminal:main" } },
        detachedServices: [{ name: "ops", tokenEnv: "OPS_TOKEN" }],
      },
      terminal: { port: freePort() },
      ...blocks,
    }),
  );
}

async function start(folder = path): Promise<MonoAgentApp> {
  app = await startMonoAgent({ config: loadConfig({ cwd: folder, env }), logger: silentLogger });
  return app;
}
async function stop(): Promise<void> {
  await app?.stop();
  app = undefined;
}

const places = (folder = path): Required<StatePlaces> => ({
  hostDir: join(folder, ".mono-agent"),
  stateDir: join(folder, ".mono-agent/continuations"),
});

async function claim(taskKey: string): Promise<ClaimAnswer> {
  const response = await fetch(`http://127.0.0.1:${port}/v1/continuations/detached/claim`, {
    method: "POST",
    headers: { authorization: `Bearer ${SERVICE_TOKEN}`, "x-mono-agent-service-name": "ops" },
    body: JSON.stringify({
      route: "keep",
      taskKey,
      taskHash: "h",
      deadline: new Date(Date.now() + 3_600_000).toISOString(),
    }),
  });
  expect(response.status).toBe(200);
  return (await response.json()) as ClaimAnswer;
}

async function submit(claimed: ClaimAnswer): Promise<number> {
  const response = await fetch(claimed.resultUrl, {
    method: "PUT",
    headers: { authorization: `Bearer ${claimed.token}` },
    body: JSON.stringify({ idempotencyKey: "k", payload: { summary: "kept text" } }),
  });
  return response.status;
}

const delivered = (host: MonoAgentApp, id: string) =>
  until("the delivery", async () =>
    host.listContinuations().some((row) => row.continuationId === id && row.state === "delivered"),
  );

/** Path to mode and content of everything below. */
function tree(folder: string): Record<string, string> {
  const found: Record<string, string> = {};
  for (const name of readdirSync(folder, { recursive: true }) as string[]) {
    const stat = statSync(join(folder, name));
    const content = stat.isFile() ? readFileSync(join(folder, name)).toString("base64") : "";
    found[name] = `${(stat.mode & 0o777).toString(8)} ${content}`;
  }
  return found;
}

describe("a backup", () => {
  for (const name of ["copy", "copy.tar"]) {
    test(`(${name}) of a running host opens and goes on in another place, with its secret and terminal token`, async () => {
      const host = await start();
      const done = await claim("done");
      await submit(done);
      await delivered(host, done.continuationId);
      const open = await claim("open");
      const target = join(path, name);
      const made = await cliRun(path, ["backup", target, "--json"]);
      expect([made.code, made.err]).toEqual([0, ""]);
      expect(JSON.parse(made.out)).toMatchObject({ path: target, records: 2, warnings: [] });
      expect(statSync(target).mode & 0o777).toBe(name === "copy" ? 0o700 : 0o600);
      const token = readFileSync(join(path, ".mono-agent/terminal-token"), "utf8");
      await stop();

      const other = join(path, "other");
      configure(other);
      const restored = await cliRun(other, ["restore", target]);
      expect([restored.code, restored.err]).toEqual([0, ""]);
      expect(restored.out).toContain("1 were unfinished");
      for (const [file, entry] of Object.entries(tree(join(other, ".mono-agent")))) {
        expect([file, entry.split(" ")[0]]).toEqual([
          file,
          entry.endsWith(" ") && !file.includes(".") ? "700" : "600",
        ]);
      }
      expect(readFileSync(join(other, ".mono-agent/terminal-token"), "utf8")).toBe(token);
      const again = await start(other);
      expect(again.capturedContinuationText(done.continuationId)).toBe("kept text");
      expect(again.continuationHealth()?.held).toBe(1);
      // The token that the service got from the first host still opens the second; its result waits.
      expect(await submit(open)).toBe(202);
      const owed = await cliRun(other, ["continuations", "owed"]);
      expect([owed.code, owed.out.includes("a release after the restore")]).toEqual([1, true]);
      const doctor = await cliRun(other, ["doctor"], { env });
      expect(doctor.out).toContain("1 continuations wait for a proof or a release");
      const released = await cliRun(other, ["continuations", "release", "--all"]);
      expect([released.code, released.out]).toEqual([0, "1 released\n"]);
      await delivered(again, open.continuationId);
      await until("the end of the hold", async () => !existsSync(join(other, ".mono-agent/restored.json")));
      expect(again.continuationHealth()?.held).toBeUndefined();
    });

    test(`(${name}) is made by the command itself when no host runs`, async () => {
      await start();
      const answer = await claim("one");
      await stop();
      const before = tree(places().stateDir);
      const made = await cliRun(path, ["backup", name]);
      expect([made.code, made.err]).toEqual([0, ""]);
      expect(tree(places().stateDir)).toEqual(before);
      await restoreBackup(join(path, name), places(join(path, "other")));
      configure(join(path, "other"));
      const host = await start(join(path, "other"));
      expect(host.listContinuations().map((row) => row.continuationId)).toEqual([answer.continuationId]);
    });
  }

  test("never replaces anything and never lands inside the continuation state", async () => {
    const host = await start();
    mkdirSync(join(path, "empty"));
    writeFileSync(join(path, "file.tar"), "mine");
    symlinkSync(join(path, "nowhere"), join(path, "link"));
    // Every start empties it.
    const inRuns = ".mono-agent/run-output/x";
    mkdirSync(join(path, ".mono-agent/run-output"));
    for (const name of ["empty", "file.tar", "link", ".mono-agent/continuations/x", "no-folder/x", inRuns]) {
      await expect(host.backup(join(path, name))).rejects.toMatchObject({ code: "backup_refused" });
    }
    await expect(host.backup("relative")).rejects.toMatchObject({ code: "backup_refused" });
    expect(readFileSync(join(path, "file.tar"), "utf8")).toBe("mine");
    const refused = await cliRun(path, ["backup", "empty"]);
    expect([refused.code, refused.err.includes("exists already")]).toEqual([1, true]);
  });

  test("that fails at any of its steps leaves nothing behind", async () => {
    await start();
    await claim("one");
    await stop();
    const real = createFileSystem();
    const before = readdirSync(path).sort();
    const hostBefore = readdirSync(places().hostDir).sort();
    for (const name of ["copy", "copy.tar"]) {
      let failures = 0;
      for (let at = 1; failures === at - 1; at += 1) {
        let count = 0;
        const run = async (steps: Parameters<typeof real.run>[0]) => {
          // Cleaning up is not made to fail: it has nobody to clean up after it.
          for (const step of steps) {
            const counts = step.op !== "unlink" && step.op !== "rmdir" && step.label.startsWith("backup");
            if (counts) count += 1;
            if (counts && count === at) throw new Error("the disk is full");
            real.runSync([step]);
          }
        };
        const fs = { ...real, run, runSync: (steps: Parameters<typeof real.run>[0]) => real.runSync(steps) };
        try {
          await writeBackup({ fs, ...places() }, join(path, name), {
            clock: createClock(),
            ids: createIds(),
          });
        } catch {
          failures += 1;
          expect(readdirSync(path).sort()).toEqual(before);
          expect(readdirSync(places().hostDir).sort()).toEqual(hostBefore);
        }
      }
      expect(failures).toBeGreaterThan(8);
      rmSync(join(path, name), { recursive: true });
    }
  });

  test("refuses a file that others could have put there, and copies the rest when only a snapshot is damaged", async () => {
    await start();
    await claim("one");
    await stop();
    const token = join(places().hostDir, "terminal-token");
    const hidden = join(path, "hidden");
    linkSync(token, hidden);
    expect(backupStoppedHost(places(), join(path, "a"))).rejects.toMatchObject({ code: "backup_failed" });
    rmSync(hidden);
    chmodSync(token, 0o644);
    expect(backupStoppedHost(places(), join(path, "a"))).rejects.toMatchObject({ code: "backup_failed" });
    chmodSync(token, 0o600);
    symlinkSync("/etc/hostname", join(places().stateDir, `origin-context-v1/${"a".repeat(64)}.json`));
    const made = await backupStoppedHost(places(), join(path, "a"));
    expect(made !== "running" && made.warnings.length).toBe(1);
  });

  test("is refused over HTTP without the operator's token, and told of a wrong path", async () => {
    const host = await start();
    const url = `${host.addresses.continuations}/v1/operator/backup`;
    const post = (token: string, body: unknown) =>
      fetch(url, {
        method: "POST",
        headers: { authorization: `Bearer ${token}` },
        body: JSON.stringify(body),
      });
    expect((await post("wrong", { path: join(path, "x") })).status).toBe(401);
    expect(existsSync(join(path, "x"))).toBe(false);
  });
});

describe("a restore", () => {
  const backup = async (name: string): Promise<string> => {
    await start();
    await claim("one");
    await stop();
    await backupStoppedHost(places(), join(path, name));
    return join(path, name);
  };

  test("refuses a folder that is not empty, and says when a host runs there", async () => {
    const source = await backup("copy");
    const before = tree(places().hostDir);
    expect(restoreBackup(source, places())).rejects.toThrow("is not empty");
    expect(tree(places().hostDir)).toEqual(before);
    await start();
    expect(restoreBackup(source, places())).rejects.toThrow("a host runs");
  });

  test("refuses what is not exactly what was backed up, and writes nothing", async () => {
    const source = await backup("copy");
    const other = places(join(path, "other"));
    const record = readdirSync(join(source, "continuations/records-v3"))[0] ?? "";
    const file = join(source, "continuations/records-v3", record);
    const content = readFileSync(file);
    const refused = async (why: string) => {
      await expect(restoreBackup(source, other)).rejects.toThrow(why);
      expect(existsSync(join(path, "other"))).toBe(false);
    };
    writeFileSync(file, content.toString().replace("claimed", "CLAIMED"));
    await refused("its digest differs");
    rmSync(file);
    await refused("is missing");
    symlinkSync("/etc/hostname", file);
    await refused("not a regular file");
    rmSync(file);
    writeFileSync(file, content);
    const manifest = join(source, "backup.json");
    const good = readFileSync(manifest, "utf8");
    writeFileSync(
      manifest,
      good.replace(`continuations/records-v3/${record}`, "continuations/../../escaped"),
    );
    await refused("must be a path inside the backup");
    writeFileSync(manifest, good.replace('"schemaVersion": 1', '"schemaVersion": 2'));
    await refused("not one that this version reads");
    rmSync(manifest);
    await refused("not a finished backup");
    await expect(restoreBackup(join(path, "nothing"), other)).rejects.toThrow("there is no backup");
  });

  test("of a tar refuses every byte that is changed in it, and a cut one", async () => {
    const source = await backup("copy.tar");
    const good = readFileSync(source);
    const other = places(join(path, "other"));
    for (let at = 0; at < good.length - 1024; at += 997) {
      const bad = Buffer.from(good);
      bad[at] = (bad[at] ?? 0) ^ 0x41;
      writeFileSync(source, bad);
      // Padding and the fields that nobody reads may differ; what is restored must not.
      try {
        await restoreBackup(source, other);
        const restored = tree(other.stateDir);
        rmSync(join(path, "other"), { recursive: true });
        writeFileSync(source, good);
        await restoreBackup(source, other);
        expect(tree(other.stateDir)).toEqual(restored);
      } catch (error) {
        expect(error).toMatchObject({ code: "backup_invalid" });
      }
      rmSync(join(path, "other"), { recursive: true, force: true });
    }
    for (const cut of [0, 511, 512, good.length / 2, good.length - 1025]) {
      writeFileSync(source, good.subarray(0, cut));
      await expect(restoreBackup(source, other)).rejects.toMatchObject({ code: "backup_invalid" });
    }
    expect(existsSync(join(path, "other"))).toBe(false);
  });

  test("that was interrupted does not start", async () => {
    const source = await backup("copy");
    const other = join(path, "other");
    await restoreBackup(source, places(other));
    configure(other);
    const mark = join(other, ".mono-agent/restored.json");
    const text = readFileSync(mark, "utf8");
    writeFileSync(mark, text.replace('"complete": true', '"complete": false'));
    await expect(start(other)).rejects.toMatchObject({ code: "restore_incomplete" });
    // A copy of it would have lost the mark that says so.
    await expect(backupStoppedHost(places(other), join(path, "again"))).rejects.toMatchObject({
      code: "restore_incomplete",
    });
    const pruned = await cliRun(other, ["migrate", "--prune-legacy"], { env });
    expect([pruned.code, pruned.err.includes("was interrupted")]).toEqual([1, true]);
    writeFileSync(mark, text.slice(0, 40));
    await expect(start(other)).rejects.toMatchObject({ code: "backup_invalid" });
    const doctor = await cliRun(other, ["doctor"], { env });
    expect([doctor.code, doctor.out.includes("Restored state: error")]).toEqual([1, true]);
  });
});
