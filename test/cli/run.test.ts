import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import type { CommandDef } from "citty";
import { FileFault } from "../../src/core/ports/platform.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { openTurnStore } from "../../src/turns/turn-store.ts";
import { type CliRun, cliRun } from "../support/cli-run.ts";
import { type ConfigFolder, configFolder, MINIMAL } from "../support/config-folder.ts";
import { admission, createRecordingLogger } from "../support/turns-fixture.ts";

let folder: ConfigFolder;
beforeAll(() => {
  folder = configFolder();
});
afterAll(() => folder.remove());
const run = (...args: string[]) => cliRun(folder.path, args);

describe("the command line", () => {
  test("--version prints one line", async () => {
    expect(await run("--version")).toEqual({ code: 0, out: "0.0.0-dev\n", err: "" });
  });

  test("without a command it prints the usage as an error", async () => {
    const { code, out, err } = await run();
    expect({ code, out }).toEqual({ code: 2, out: "" });
    expect(err).toContain("USAGE mono-agent");
  });

  test.each([
    ["--help", "mono-agent init|serve"],
    ["help config", "mono-agent config show|schema"],
    ["continuations --help", "mono-agent continuations [OPTIONS]"],
    ["continuations resolve -h", "<ID> <OUTCOME> [DELIVERY-ID]"],
    ["help continuations resolve", "not-delivered has it posted again, the others never post"],
  ])("%p prints the usage of that command, without colours, and exits 0", async (line, usage) => {
    const { code, out, err } = await run(...line.split(" "));
    expect({ code, err }).toEqual({ code: 0, err: "" });
    expect(out).toContain(usage);
    expect(out).not.toContain("\u001b");
  });

  test.each([
    ["seve", 'there is no command "seve"; did you mean "serve"?'],
    ["config shw", 'there is no command "config shw"; did you mean "show"?'],
    ["config show extra", '"extra" is one argument too many'],
    ["config show --cofnig x", "there is no option --cofnig; did you mean --config?"],
    ["config show --config", "--config needs a value"],
    ["doctor --no-colour", "there is no option --colour"],
    ["serve --log-level loud", "--log-level must be one of debug, info, warn, error"],
    ["continuations resolve id", "Missing required positional argument: OUTCOME"],
    [
      "continuations resolve id posted",
      'the outcome must be one of delivered, not-delivered, dead-lettered, not "posted"',
    ],
    ["continuations resolve id dead-lettered proof", "a delivery id belongs to delivered"],
    ["continuations list --limit 0", "--limit must be a whole number from 1 to 500"],
    ["continuations list --limit 501", "--limit must be a whole number from 1 to 500"],
    ["continuations list --limit 1e2", "--limit must be a whole number from 1 to 500"],
    ["continuations list --state done", "--state must be one of claimed,"],
    [`continuations list --cursor ${"x".repeat(513)}`, "--cursor has at most 512 characters"],
    ["example work-control submit", "submit needs --summary"],
    ["example work-control --port 80", "--port belongs to --http"],
    ["example work-control --http --port 65536", "--port must be a number from 0 to 65535"],
  ])("%p is wrong usage: exit 2, the reason and where to read on", async (line, reason) => {
    const { code, out, err } = await run(...line.split(" "));
    expect({ code, out }).toEqual({ code: 2, out: "" });
    expect(err).toContain(`error: ${reason}`);
    expect(err).toMatch(/\nsee: mono-agent.* --help\n$/);
  });

  test("what the disk refuses is said with the way out, and only what nobody can explain with its stack", async () => {
    const failing = (errno: string): CommandDef => ({
      subCommands: {
        write: {
          run() {
            throw new FileFault("token.write", "/state/token", errno);
          },
        },
      },
    });
    expect(await cliRun(folder.path, ["write"], { root: failing("ENOSPC") })).toEqual({
      code: 1,
      out: "",
      err: "error: token.write failed at /state/token: ENOSPC; free space on its disk\n",
    });
    const { code, err } = await cliRun(folder.path, ["write"], { root: failing("EBADF") });
    expect(code).toBe(1);
    expect(err).toStartWith("error: this should not happen: FileFault: token.write failed");
  });

  test("an unknown name refers to the usage of the command that it was looked for in", async () => {
    expect((await run("continuations", "shwo")).err).toEndWith("\nsee: mono-agent continuations --help\n");
    expect((await run("seve")).err).toEndWith("\nsee: mono-agent --help\n");
  });

  test("a flag with a value may stand before the command's name", async () => {
    folder.write("other.json", { ...MINIMAL, agent: { name: "other" } });
    for (const line of ["config show --config other.json", "config show --config=other.json"]) {
      const { code, out } = await run(...line.split(" "));
      expect(code).toBe(0);
      expect(JSON.parse(out).agent.name).toBe("other");
    }
  });

  test("a broken configuration exits 1 and names every problem", async () => {
    folder.write("broken.json", { ...MINIMAL, terminal: { prt: 1 }, host: 5 });
    const { code, out, err } = await run("config", "show", "--config", "broken.json");
    expect({ code, out }).toEqual({ code: 1, out: "" });
    expect(err).toMatch(/^error: the configuration has 2 problems:\n/);
    expect(err).toContain("terminal.prt");
  });

  test("config schema prints a JSON Schema", async () => {
    expect(JSON.parse((await run("config", "schema")).out).type).toBe("object");
  });
});

describe("--env-file", () => {
  test("fills in variables, keeps those that are set, and is the only file that is read", async () => {
    folder.write("mono-agent.config.json", MINIMAL);
    folder.write(".env", "MONO_AGENT_MODEL=demo:from-dotenv\n");
    folder.write(
      "my.env",
      '# mine\nexport MONO_AGENT_MODEL="demo:from-file"\nMONO_AGENT_MCP_CALL_TIMEOUT_MS=7\n',
    );
    const shown = async (args: string[], env = {}) =>
      JSON.parse((await cliRun(folder.path, ["config", "show", ...args], { env })).out);
    expect((await shown([])).runtime.model).toBe("demo:assistant");
    const filled = await shown(["--env-file", "my.env"]);
    expect([filled.runtime.model, filled.tools.mcpCallTimeoutMs]).toEqual(["demo:from-file", 7]);
    const kept = await shown(["--env-file", "my.env"], { MONO_AGENT_MODEL: "demo:set" });
    expect(kept.runtime.model).toBe("demo:set");
  });

  test("a missing file or a line that is no assignment is an error that names it, without quoting the line", async () => {
    folder.write("bad.env", "A=1\nsecret value here\n");
    expect((await run("config", "show", "--env-file", "gone.env")).err).toContain(
      "gone.env: there is no such file",
    );
    const { code, err } = await run("config", "show", "--env-file", "bad.env");
    expect(code).toBe(1);
    expect(err).toContain("bad.env: line 2 is not KEY=VALUE");
    expect(err).not.toContain("secret");
  });
});

describe("init", () => {
  test("writes a folder that loads at once, and never over existing files without --force", async () => {
    const fresh = configFolder();
    try {
      const first = await cliRun(fresh.path, ["init"], { self: ["/opt/mono agent"] });
      expect(first.code).toBe(1);
      expect(first.err).toContain("mcp.json, identity.md already there; nothing was written");
      expect(existsSync(join(fresh.path, "mono-agent.config.json"))).toBe(false);

      const forced = await cliRun(fresh.path, ["init", "--force"], { self: ["/opt/mono agent"] });
      expect(forced.code).toBe(0);
      expect(forced.out).toContain("wrote mono-agent.config.json\nwrote mcp.json\nwrote identity.md\n");
      expect(forced.out).toContain("'/opt/mono agent' serve");
      expect(JSON.parse(readFileSync(join(fresh.path, "mcp.json"), "utf8"))).toEqual({
        mcpServers: { "work-control": { command: "/opt/mono agent", args: ["example", "work-control"] } },
      });

      const doctor = await cliRun(fresh.path, ["doctor", "--json"]);
      expect(JSON.parse(doctor.out)).toMatchObject({ ok: true, operationallyReady: true });
      expect((await cliRun(fresh.path, ["init"])).code).toBe(1);
    } finally {
      fresh.remove();
    }
  });

  test("with --force it replaces a link by a file and leaves the link's target alone", async () => {
    const fresh = configFolder();
    try {
      writeFileSync(join(fresh.path, "target"), "precious");
      symlinkSync(join(fresh.path, "target"), join(fresh.path, "mono-agent.config.json"));
      expect((await cliRun(fresh.path, ["init", "--force"])).code).toBe(0);
      expect(readFileSync(join(fresh.path, "target"), "utf8")).toBe("precious");
    } finally {
      fresh.remove();
    }
  });
});

describe("serve", () => {
  test("a configuration that does not load exits 1 before anything starts", async () => {
    folder.write("needs-key.json", { ...MINIMAL, runtime: { model: "anthropic:x" } });
    const { code, err } = await run("serve", "--config", "needs-key.json");
    expect(code).toBe(1);
    expect(err).toContain("ANTHROPIC_API_KEY");
    expect(existsSync(join(folder.path, ".mono-agent"))).toBe(false);
  });

  test("with nothing to serve it exits 1 before anything starts, and what waits is left alone", async () => {
    const home = configFolder();
    try {
      home.write("mono-agent.config.json", {
        ...MINIMAL,
        terminal: { enabled: false },
        continuations: { enabled: false },
      });
      const nothing: CliRun = {
        code: 1,
        out: "",
        err: "error: there is nothing to serve: enable terminal or continuations\n",
      };
      expect(await cliRun(home.path, ["serve"])).toEqual(nothing);
      expect(existsSync(join(home.path, ".mono-agent"))).toBe(false);

      const stateDir = join(home.path, ".mono-agent");
      mkdirSync(stateDir, { mode: 0o700 });
      const openTurns = () =>
        openTurnStore({
          path: join(stateDir, "host.sqlite"),
          fs: createFileSystem(),
          logger: createRecordingLogger(),
        });
      const before = await openTurns();
      await before.admit(admission("waits"));
      await before.close();
      const files = () =>
        readdirSync(stateDir)
          .sort()
          .map((name) => [name, readFileSync(join(stateDir, name)).toString("base64")]);
      const stored = files();
      expect(await cliRun(home.path, ["serve"])).toEqual(nothing);
      expect(files()).toEqual(stored);
      const after = await openTurns();
      expect((await after.getTurn("waits"))?.status).toBe("queued");
      await after.close();
    } finally {
      home.remove();
    }
  });

  test("a damaged record ends the start with its path and the command that says what to do", async () => {
    const home = configFolder();
    try {
      home.write("mono-agent.config.json", { ...MINIMAL, continuations: {} });
      home.write(`.mono-agent/continuations/records-v3/${"a".repeat(64)}.json`, "{");
      chmodSync(join(home.path, `.mono-agent/continuations/records-v3/${"a".repeat(64)}.json`), 0o600);
      const args = ["serve", "--config", "mono-agent.config.json"];
      const { code, err } = await cliRun(home.path, args, { self: ["./dist/mono-agent"] });
      expect(code).toBe(1);
      expect(err).toContain(`${"a".repeat(64)}.json is not valid JSON`);
      expect(err).toContain("`./dist/mono-agent doctor --config mono-agent.config.json` says what to do");
    } finally {
      home.remove();
    }
  });
});

describe("demo", () => {
  test.each([[false], [true]])(
    "names its first step when no folder can be made (--json: %p)",
    async (json) => {
      const main = join(import.meta.dir, "../../src/main.ts");
      const child = Bun.spawn([process.execPath, main, "demo", ...(json ? ["--json"] : [])], {
        env: { ...process.env, TMPDIR: "/nonexistent" },
        stdout: "pipe",
        stderr: "pipe",
      });
      const [out, err, code] = await Promise.all([
        new Response(child.stdout).text(),
        new Response(child.stderr).text(),
        child.exited,
      ]);
      const problem = "no temporary folder can be made in /nonexistent (ENOENT)";
      expect(code).toBe(1);
      expect(err).toStartWith(`demo failed: ${problem}; set TMPDIR`);
      expect(err.trimEnd().split("\n").length).toBe(1);
      if (!json) return expect(out).toContain("✗ a temporary folder");
      const lines = out
        .trim()
        .split("\n")
        .map((line) => JSON.parse(line));
      expect(lines).toMatchObject([
        { step: "folder", ok: false },
        { step: "end", ok: false, error: expect.stringContaining(problem) },
      ]);
    },
  );
});
