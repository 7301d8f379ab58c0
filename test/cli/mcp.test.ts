// biome-ignore-all lint/suspicious/noTemplateCurlyInString: this is how mcp.json refers to the environment.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { chmodSync } from "node:fs";
import { join } from "node:path";
import { until } from "../support/binary.ts";
import { cliRun } from "../support/cli-run.ts";
import { type ConfigFolder, configFolder, MINIMAL } from "../support/config-folder.ts";
import { children, PROBE } from "../support/mcp-host.ts";
import { type OAuthServer, startOAuthServer } from "../support/mcp-oauth-server.ts";

const RAW = join(import.meta.dir, "../support/mcp-raw-server.ts");
const MAIN = join(import.meta.dir, "../../src/main.ts");

let folder: ConfigFolder;
let remote: OAuthServer;
beforeAll(() => {
  folder = configFolder();
  remote = startOAuthServer();
  const probe = {
    command: process.execPath,
    args: [PROBE, "plain"],
    env: { OWN: "${OWN:-configured-secret}" },
  };
  folder.write("mcp.json", {
    mcpServers: {
      probe: { ...probe, trusted: true },
      off: { command: "x", enabled: false },
      remote: { url: remote.url },
      dead: { command: "/no/such/command" },
      typo: { ...probe, denyTools: ["ecko"] },
      unset: { command: "${NOT_SET}" },
    },
  });
  folder.write("mono-agent.config.json", {
    ...MINIMAL,
    tools: { mcpConfigPath: "mcp.json", continuationServers: ["probe"] },
  });
});
afterAll(async () => {
  await remote.stop();
  folder.remove();
});

const run = (args: string[], over: Parameters<typeof cliRun>[2] = {}) =>
  cliRun(folder.path, ["mcp", ...args], {
    env: { PATH: process.env.PATH, NOT_SET: "x" },
    self: [process.execPath, MAIN],
    ...over,
  });

describe("mcp list", () => {
  test("names every server with what it is allowed, and shows no value that may be secret", async () => {
    const { code, out, err } = await run(["list"]);
    expect({ code, err }).toEqual({ code: 0, err: "" });
    expect(out.split("\n").slice(0, 3)).toEqual([
      `probe  stdio  ${process.execPath}  trusted, may answer later`,
      "off  stdio  x  off",
      `remote  http  ${new URL(remote.url).origin}`,
    ]);
    const json = await run(["--json"]);
    expect(json.out).not.toContain("configured-secret");
    expect(JSON.parse(json.out)).toMatchObject({
      servers: [{ name: "probe", continuations: true }, {}, { login: false }, {}, {}, {}],
    });
  });
});

describe("mcp test", () => {
  test("shows version, protocol and tools", async () => {
    const { code, out, err } = await run(["test", "probe"]);
    expect({ code, err }).toEqual({ code: 0, err: "" });
    expect(out).toMatch(/^probe: probe@1, protocol 2025-11-25, ready after [0-9]+ ms\n/);
    expect(out).toContain("\n  echo  does echo\n");
    const report = JSON.parse((await run(["test", "probe", "--json"])).out) as { tools: object[] };
    expect(report.tools[0]).toMatchObject({ name: "echo", digest: expect.stringMatching(/^[0-9a-f]{64}$/) });
    expect(children()).toEqual([]);
  });

  test.each([
    ["dead", "dead: the command or its working folder was not found"],
    ["remote", "mono-agent mcp login"],
    ["nobody", 'there is no server "nobody"; mcp.json declares: probe, off'],
  ])("%s fails clearly", async (name, reason) => {
    const { code, out, err } = await run(["test", name]);
    expect({ code, out }).toEqual({ code: 1, out: "" });
    expect(err).toContain(reason);
  });

  test("needs the variables of that server only", async () => {
    const env = { PATH: process.env.PATH };
    expect((await run(["test", "probe"], { env })).code).toBe(0);
    const { code, err } = await run(["test", "unset"], { env });
    expect(code).toBe(1);
    expect(err).toContain('server "unset" needs the environment variable NOT_SET');
  });

  test("exits 1 when the configuration names a tool that is not there", async () => {
    const { code, err } = await run(["test", "typo"]);
    expect(code).toBe(1);
    expect(err).toContain('typo: denyTools names "ecko", but the server has no such tool');
  });

  test("with --verbose shows the server's standard error, without its secrets", async () => {
    const { err } = await run(["call", "probe", "leak", "--verbose"]);
    expect(err).toContain("my token is");
    expect(err).not.toContain("configured-secret");
  });
});

describe("mcp call", () => {
  test("prints the result as the model would read it", async () => {
    expect(await run(["call", "probe", "echo", '{"a":1}'])).toEqual({ code: 0, out: '{"a":1}\n', err: "" });
    const json = await run(["call", "probe", "refuse", "--json"]);
    expect([json.code, JSON.parse(json.out)]).toEqual([1, { text: "it can't be done", isError: true }]);
    const failed = await run(["call", "probe", "refuse"]);
    expect(failed).toEqual({ code: 1, out: "", err: "error: it can't be done\n" });
  });

  test.each([
    [["call", "probe", "echo", "{"], 2, "the arguments are not JSON"],
    [["call", "probe", "echo", "[]"], 2, "the arguments must be one JSON object"],
    [["call", "probe", "ecko"], 1, 'probe offers no tool "ecko"; it offers: echo, env'],
    [["call", "probe"], 2, "Missing required positional argument: TOOL"],
    [["call", "probe", "crash"], 1, "the outcome is unknown"],
  ])("%p fails clearly", async (args, code, reason) => {
    const ran = await run(args);
    expect(ran.code).toBe(code as 1);
    expect(ran.err).toContain(reason);
  });
});

describe("mcp login", () => {
  /** The person reads the page from standard error and follows it in a browser. */
  const consenting = (said: (err: string) => void = () => {}) => {
    let err = "";
    return (text: string) => {
      err += text;
      said(err);
      const page = /^http\S+authorize\S+$/m.exec(err)?.[0];
      if (page !== undefined) void fetch(remote.consent(page));
    };
  };

  test("shows the page, keeps the tokens, and the server works from then on", async () => {
    let err = "";
    const read = consenting((text) => {
      err = text;
    });
    const { code, out } = await run(["login", "remote", "--json"], { err: read });
    expect([code, err]).toEqual([0, expect.stringContaining("open this page to log in to remote")]);
    expect(JSON.parse(out)).toMatchObject({ server: "remote", loggedIn: true });
    for (const token of remote.issued) expect(out + err).not.toContain(token);
    expect((await run(["call", "remote", "hello"])).out).toBe("hello, person\n");
    expect((await run(["list"])).out).toContain("logged in");
  });

  test("is refreshed once by two processes that need it at once", async () => {
    await run(["login", "remote", "--json"], { err: consenting() });
    const grants = remote.grants.length;
    const refused = remote.unauthorized();
    remote.expireAccess();
    const release = remote.holdTokens();
    const calls = [1, 2].map(() =>
      Bun.spawn([process.execPath, MAIN, "mcp", "call", "remote", "hello"], {
        cwd: folder.path,
        env: { PATH: process.env.PATH, NOT_SET: "x" },
        stdout: "pipe",
        stderr: "pipe",
      }),
    );
    await until("both refusals", async () => remote.unauthorized() === refused + 2);
    await until("the refresh", async () => remote.grants.length > grants);
    release();
    expect(await Promise.all(calls.map(({ stdout }) => new Response(stdout).text()))).toEqual(
      Array(2).fill("hello, person\n"),
    );
    expect(remote.grants.slice(grants)).toEqual(["refresh_token"]);
  });

  test("whose file others can read spoils only its own row of the list", async () => {
    const login = JSON.parse((await run(["login", "remote", "--json"], { err: consenting() })).out) as {
      path: string;
    };
    chmodSync(login.path, 0o644);
    const { code, out, err } = await run(["list"]);
    expect(code).toBe(0);
    expect(out).toContain("dead  stdio  /no/such/command");
    expect(out).not.toContain("logged in");
    expect(err).toBe(`warning: remote: ${login.path} has mode 644, not 600; delete it and log in again\n`);
    const { servers } = JSON.parse((await run(["list", "--json"])).out) as { servers: object[] };
    expect(servers[2]).toMatchObject({ login: false, loginProblem: expect.stringContaining("mode 644") });
  });

  test("of a stdio server is refused", async () => {
    expect((await run(["login", "probe"])).err).toContain("only a remote server has a login");
  });
});

test("what a server says of itself steers no terminal", async () => {
  const own = configFolder();
  own.write("mcp.json", { mcpServers: { raw: { command: process.execPath, args: [RAW, "twins"] } } });
  own.write("mono-agent.config.json", { ...MINIMAL, tools: { mcpConfigPath: "mcp.json" } });
  try {
    for (const args of [
      ["test", "raw"],
      ["call", "raw", "none"],
      ["call", "raw", "twin"],
    ]) {
      const { out, err } = await cliRun(own.path, ["mcp", ...args], {
        env: { PATH: process.env.PATH },
        self: [process.execPath, MAIN],
      });
      expect(out + err).toContain("[2J");
      expect(out + err).not.toContain("\u001b");
    }
  } finally {
    own.remove();
  }
});

test("the guard is not among the commands that are shown", async () => {
  const { out } = await cliRun(folder.path, ["--help"]);
  expect(out).toContain("mcp");
  expect(out).not.toContain("mcp-guard");
});
