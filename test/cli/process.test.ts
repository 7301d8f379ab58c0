import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { freePort, until } from "../support/binary.ts";
import { type ConfigFolder, configFolder, MINIMAL } from "../support/config-folder.ts";

/** The operator's commands as processes, where a terminal or a pipe decides: their host is a stand-in. */

const MAIN = join(import.meta.dir, "../../src/main.ts");
const CHANGE = { continuationId: "x", state: "claimed", at: "2030-01-02T03:04:05.000Z", what: "claimed" };

let folder: ConfigFolder;
let asked: string[];
let server: ReturnType<typeof Bun.serve>;
beforeEach(() => {
  asked = [];
  server = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    fetch(request) {
      asked.push(request.method);
      if (request.method === "POST") return Response.json({ released: 3 });
      const line = new TextEncoder().encode(`data: ${JSON.stringify(CHANGE)}\n\n`);
      return new Response(new ReadableStream({ pull: (controller) => controller.enqueue(line) }));
    },
  });
  folder = configFolder();
  folder.write("mono-agent.config.json", { ...MINIMAL, continuations: { port: server.port } });
  const stateDir = join(folder.path, ".mono-agent/continuations");
  mkdirSync(stateDir, { recursive: true, mode: 0o700 });
  writeFileSync(join(stateDir, "continuation-secret"), Buffer.alloc(32, 7).toString("base64url"), {
    mode: 0o600,
  });
});
afterEach(async () => {
  await server.stop(true);
  folder.remove();
});

describe("the question at a terminal", () => {
  const answered = async (keys: string) => {
    let screen = "";
    const child = Bun.spawn([process.execPath, MAIN, "continuations", "release", "--all"], {
      cwd: folder.path,
      env: { PATH: process.env.PATH ?? "", TERM: "xterm" },
      terminal: {
        cols: 100,
        rows: 20,
        data(terminal, bytes) {
          const before = screen;
          screen += new TextDecoder().decode(bytes);
          if (screen.includes("[y/N] ") && !before.includes("[y/N] ")) terminal.write(keys);
        },
      },
    });
    const code = await child.exited;
    child.terminal?.close();
    return { code, screen };
  };

  test.each([["n\n"], ["\n"], ["yess\n"], ["\x03"], ["\x04"]])(
    "that is answered with %j does nothing, says so and exits with 1",
    async (keys) => {
      const { code, screen } = await answered(keys);
      expect(screen).toEndWith("\r\nnothing was done\r\n");
      expect(screen).not.toContain("should not happen");
      expect(code).toBe(1);
      expect(asked).toEqual([]);
    },
  );

  test("that is answered with yes is heeded", async () => {
    const { code, screen } = await answered("Y\n");
    expect(screen).toContain("3 released");
    expect([code, asked]).toEqual([0, ["POST"]]);
  });
});

test("watch ends with its reader", async () => {
  const shell = Bun.spawn(
    ["sh", "-c", '"$0" "$@" | head -n 1', process.execPath, MAIN, "continuations", "watch"],
    {
      cwd: folder.path,
      env: { PATH: process.env.PATH ?? "" },
      stdout: "pipe",
      stderr: "pipe",
    },
  );
  const [out, err] = await Promise.all([
    new Response(shell.stdout).text(),
    new Response(shell.stderr).text(),
  ]);
  expect([out, err]).toEqual([`${CHANGE.at}  x  claimed\n`, ""]);
  expect(await shell.exited).toBe(0);
}, 15_000);

describe.skipIf(!existsSync("/dev/full"))("where nothing can be written", () => {
  test.each([
    ["an answer", ["continuations", "release", "--all", "--json"]],
    ["a usage", ["--help"]],
  ])("%s that is lost is an error with exit code 1, told in one line", async (_, args) => {
    const child = Bun.spawn([process.execPath, MAIN, ...args], {
      cwd: folder.path,
      env: { PATH: process.env.PATH ?? "" },
      stdout: Bun.file("/dev/full"),
      stderr: "pipe",
    });
    const err = await new Response(child.stderr).text();
    expect([await child.exited, err]).toEqual([1, "error: standard output can't be written (ENOSPC)\n"]);
  });

  test("a lost error message leaves the exit code as it is", async () => {
    const child = Bun.spawn([process.execPath, MAIN, "continuations", "shwo"], {
      stdout: "ignore",
      stderr: Bun.file("/dev/full"),
    });
    expect(await child.exited).toBe(2);
  });

  test("a host whose log is full goes on, and stops in order", async () => {
    const ports = { continuations: freePort(), terminal: freePort() };
    folder.write("mono-agent.config.json", {
      ...MINIMAL,
      continuations: { port: ports.continuations },
      terminal: { port: ports.terminal },
    });
    const host = Bun.spawn([process.execPath, MAIN, "serve", "--log-level", "debug"], {
      cwd: folder.path,
      env: { PATH: process.env.PATH ?? "" },
      stdout: "ignore",
      stderr: Bun.file("/dev/full"),
    });
    const status = () =>
      fetch(`http://127.0.0.1:${ports.continuations}/v1/operator/health`).then(
        (response) => response.status,
        () => undefined,
      );
    await until("the host", async () => host.exitCode !== null || (await status()) === 401);
    expect([host.exitCode, await status()]).toEqual([null, 401]);
    host.kill("SIGTERM");
    expect(await host.exited).toBe(0);
  });
});
