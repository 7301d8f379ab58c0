import { afterEach, beforeEach, expect, test } from "bun:test";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { operatorToken } from "../../src/core/derive.ts";
import type { FileSystem } from "../../src/core/ports/platform.ts";
import { loadConfig, startMonoAgent } from "../../src/index.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { freePort, until } from "../support/binary.ts";
import { writeDemoFolder } from "../support/demo-folder.ts";
import { silentLogger } from "../support/silent-logger.ts";

/** A host that is told to stop while a backup is under way. */

let path: string;
beforeEach(() => {
  path = mkdtempSync(join(tmpdir(), "mono-agent-stop-"));
  writeDemoFolder(path, {
    continuations: { port: freePort() },
    terminal: { port: freePort() },
  });
});
afterEach(() => rmSync(path, { recursive: true, force: true }));

test("it ends the backup instead of waiting for it, and whoever asked for it is told", async () => {
  const real = createFileSystem();
  const reached = Promise.withResolvers<void>();
  const gate = Promise.withResolvers<void>();
  const fs: FileSystem = {
    ...real,
    async run(steps) {
      if (steps.some((step) => step.op === "write" && step.label === "backup")) {
        reached.resolve();
        await gate.promise;
      }
      await real.run(steps);
    },
  };
  const app = await startMonoAgent({
    config: loadConfig({ cwd: path, env: {} }),
    logger: silentLogger,
    fs,
  });
  try {
    const secret = join(path, ".mono-agent/continuations/continuation-secret");
    const token = operatorToken(Buffer.from(readFileSync(secret, "utf8").trim(), "base64url"));
    const url = app.addresses.continuations ?? "";
    const answer = fetch(`${url}/v1/operator/backup`, {
      method: "POST",
      headers: { authorization: `Bearer ${token}` },
      body: JSON.stringify({ path: join(path, "copy") }),
    });
    await reached.promise;
    const stopped = app.stop();
    await until("the listener's stop", () =>
      fetch(url, { keepalive: false }).then(
        () => false,
        () => true,
      ),
    );
    gate.resolve();
    const response = await answer;
    expect(await response.json()).toMatchObject({ error: { code: "backup_failed" } });
    await stopped;
    expect(existsSync(join(path, "copy"))).toBe(false);
  } finally {
    gate.resolve();
    await app.stop();
    await real.close?.();
  }
});
