// biome-ignore-all lint/suspicious/noTemplateCurlyInString: this is how mcp.json refers to the environment.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { join } from "node:path";
import { loadConfig } from "../../src/config/load.ts";
import { resolveReferences } from "../../src/config/references.ts";
import { isEnabled, isToolAllowed, matchesPattern, serverTransport } from "../../src/core/mcp-servers.ts";
import { cliRun } from "../support/cli-run.ts";
import { type ConfigFolder, configFolder, MINIMAL } from "../support/config-folder.ts";

let folder: ConfigFolder;
beforeAll(() => {
  folder = configFolder();
});
afterAll(() => folder.remove());

const tools = { mcpConfigPath: "servers.json" };
const write = (mcpServers: Record<string, unknown>) => folder.write("servers.json", { mcpServers });
const spec = (name: string, env: Record<string, string> = {}, blocks = {}) =>
  folder.load({ tools, ...blocks }, env).mcpServers.get(name);

describe("references to the environment", () => {
  test.each([
    ["${A}", "a"],
    ["x${A}y${B}", "xayb"],
    ["${NONE:-d}", "d"],
    ["${EMPTY:-d}", "d"],
    ["${A:-d}", "a"],
    ["${NONE:-}", ""],
    ["${EMPTY}", ""],
    ["$A", "$A"],
    ["${}", "${}"],
    ["${input:key}", "${input:key}"],
    ["$${A}", "${A}"],
    ["${REFERS}", "${A}"],
  ])("%p becomes %p", (text, expected) => {
    const env = { A: "a", B: "b", EMPTY: "", REFERS: "${A}" };
    expect(resolveReferences(text, env)).toMatchObject({ value: expected, missing: [] });
  });

  test("are resolved in command, arguments, environment, folder, URL and headers, and nowhere else", () => {
    const env = { DIR: "/opt", KEY: "k", HOST: "localhost:1" };
    write({
      "in-process": {
        command: "${DIR}/run",
        args: ["--key", "${KEY}"],
        env: { K: "${KEY}" },
        cwd: "${DIR}",
        allowTools: ["${KEY}"],
      },
      web: { url: "http://${HOST}/mcp", headers: { authorization: "Bearer ${KEY}" } },
    });
    expect(spec("in-process", env)).toEqual({
      command: "/opt/run",
      args: ["--key", "k"],
      env: { K: "k" },
      cwd: "/opt",
      allowTools: ["${KEY}"],
      substituted: ["/opt", "k", "k", "/opt"],
    });
    expect(spec("web", env)).toEqual({
      url: "http://localhost:1/mcp",
      headers: { authorization: "Bearer k" },
      substituted: ["localhost:1", "k"],
    });
  });

  test("are known by their values, defaults as well, so that no log shows them", () => {
    const env = { A: "a", EMPTY: "" };
    const { substituted } = resolveReferences(["${A}${B:-b}", { c: "${EMPTY}${EMPTY:-e}$${A}" }], env);
    expect(substituted).toEqual(["a", "b", "e"]);
  });

  test("can't be replaced by values that the file itself names", () => {
    write({ one: { command: "${A}", substituted: ["x"] } });
    expect(spec("one", { A: "a" })).toEqual({ command: "a", substituted: ["a"] });
  });

  test("to a variable that is not set are problems that name server and variable, all at once", () => {
    write({
      one: { command: "x", env: { K: "${NOT_SET}" } },
      two: { url: "${NO_URL}", headers: { a: "${NOT_SET}" } },
      off: { command: "${ALSO_NOT}", enabled: false },
    });
    expect(folder.problems({ tools })).toEqual([
      'mcpServers.one.env.K: server "one" needs the environment variable NOT_SET, which is not set; set it, or give a default: ${NOT_SET:-default}',
      'mcpServers.two.url: server "two" needs the environment variable NO_URL, which is not set; set it, or give a default: ${NO_URL:-default}',
      'mcpServers.two.headers.a: server "two" needs the environment variable NOT_SET, which is not set; set it, or give a default: ${NOT_SET:-default}',
    ]);
  });

  test("never show a value in a problem", () => {
    write({ web: { url: "${SECRET_URL}" } });
    const [problem] = folder.problems({ tools }, { SECRET_URL: "nonsense-secret" });
    expect(problem).toContain("mcpServers.web.url");
    expect(problem).not.toContain("nonsense-secret");
  });

  test("that lack a variable hold up no command that needs no server", async () => {
    write({ one: { url: "http://${HOST}/mcp" }, two: { command: "x" } });
    folder.write("mono-agent.config.json", { ...MINIMAL, tools: { ...tools, continuationServers: ["one"] } });
    const config = loadConfig({ cwd: folder.path, env: {}, secretsOptional: true });
    expect([...config.mcpServers.keys()]).toEqual(["two"]);
    expect((await cliRun(folder.path, ["config", "show"])).code).toBe(0);
    const listed = await cliRun(folder.path, ["mcp", "list"]);
    expect([listed.code, listed.out]).toEqual([1, ""]);
    expect(listed.err).toContain('server "one" needs the environment variable HOST');
  });
});

describe("an entry as other hosts write it", () => {
  test.each([
    ["streamable-http", "http"],
    ["streamableHttp", "http"],
    ["http", "http"],
    ["sse", "sse"],
  ])("may have the type %p", (type, kind) => {
    write({ web: { type, url: "http://localhost:1/mcp", autoApprove: [], description: "x" } });
    expect(serverTransport(spec("web") ?? {}).kind).toBe(kind as "http");
  });

  test.each([
    [{}, true],
    [{ enabled: true }, true],
    [{ enabled: false }, false],
    [{ disabled: true }, false],
    [{ disabled: false }, true],
    [{ enabled: true, disabled: true }, false],
  ])("%p takes part: %p", (entry, expected) => {
    expect(isEnabled(entry)).toBe(expected);
  });

  test.each([
    [{ timeoutMs: 0 }, "timeoutMs"],
    [{ allowTools: "all" }, "allowTools"],
    [{ trusted: "yes" }, "trusted"],
    [{ oauth: { callbackPort: 70_000 } }, "oauth.callbackPort"],
  ])("with %p is refused", (extra, path) => {
    write({ x: { command: "x", ...extra } });
    expect(folder.problems({ tools })[0]).toStartWith(`mcpServers.x.${path}: `);
  });
});

describe("allowed tools", () => {
  test.each([
    [{}, "any", true],
    [{ allowTools: [] }, "any", false],
    [{ allowTools: ["read_*"] }, "read_file", true],
    [{ allowTools: ["read_*"] }, "write_file", false],
    [{ allowTools: ["*"], denyTools: ["write_*"] }, "write_file", false],
    [{ allowTools: ["write_file"], denyTools: ["write_file"] }, "write_file", false],
    [{ denyTools: ["*"] }, "any", false],
  ])("by %p: %p is offered: %p", (filter, tool, expected) => {
    expect(isToolAllowed(filter, tool)).toBe(expected);
  });

  test.each([
    ["a*b", "ab", true],
    ["a*b", "axxb", true],
    ["a*b", "a", false],
    ["aba*aba", "aba", false],
    ["*x*", "axb", true],
    ["*x*y*", "yx", false],
    ["a.c", "abc", false],
  ])("%p matches %p: %p", (pattern, name, expected) => {
    expect(matchesPattern(pattern, name)).toBe(expected);
  });
});

describe("tools.mcpRequestContextServers", () => {
  test("takes stdio servers of the file, from the environment too", () => {
    const blocks = { tools: { mcpConfigPath: "mcp.json" } };
    const env = { MONO_AGENT_MCP_REQUEST_CONTEXT_SERVERS: "work-control" };
    expect(folder.load(blocks, env).tools.mcpRequestContextServers).toEqual(["work-control"]);
  });

  test.each([
    ["remote", "it is not a stdio server"],
    ["both", "it has both command and url"],
    ["wrok-control", 'there is no server "wrok-control"'],
  ])("refuses %p: %s", (name, reason) => {
    const [problem] = folder.problems({
      tools: { mcpConfigPath: "mcp.json", mcpRequestContextServers: [name] },
    });
    expect(problem).toStartWith("tools.mcpRequestContextServers[0]: ");
    expect(problem).toContain(reason);
  });

  test("asks for the file when there is none", () => {
    expect(folder.problems({ tools: { mcpRequestContextServers: ["a"] } })[0]).toContain(
      "tools.mcpConfigPath: is required because tools.mcpRequestContextServers selects a",
    );
  });

  test("a selected server that is switched off is a warning", () => {
    write({ a: { command: "x", enabled: false } });
    const { warnings } = folder.load({ tools: { ...tools, mcpRequestContextServers: ["a"] } });
    expect(warnings).toEqual([
      `tools.mcpRequestContextServers: a is switched off in ${join(folder.path, "servers.json")}`,
    ]);
  });
});
