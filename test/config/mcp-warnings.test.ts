// biome-ignore-all lint/suspicious/noTemplateCurlyInString: this is how mcp.json refers to the environment.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { join } from "node:path";
import { cliRun } from "../support/cli-run.ts";
import { type ConfigFolder, configFolder, MINIMAL } from "../support/config-folder.ts";

let folder: ConfigFolder;
beforeAll(() => {
  folder = configFolder();
});
afterAll(() => folder.remove());

const tools = { mcpConfigPath: "servers.json" };
const write = (mcpServers: Record<string, unknown>) => folder.write("servers.json", { mcpServers });
/** The warnings about these servers, without the name of the file. */
function warnings(mcpServers: Record<string, unknown>, env: Record<string, string> = {}): string[] {
  write(mcpServers);
  const file = ` (${join(folder.path, "servers.json")})`;
  return folder.load({ tools }, env).warnings.map((warning) => warning.replace(file, ""));
}

describe("a key of a server that has no effect", () => {
  test.each([
    ["denyTool", "denyTools"],
    ["allowTool", "allowTools"],
    ["allowtools", "allowTools"],
    ["disabledTools", "denyTools"],
    ["excludeTools", "denyTools"],
    ["includeTools", "allowTools"],
    ["enabledTools", "allowTools"],
    ["trust", "trusted"],
    ["enable", "enabled"],
  ])("%s is told, with what may be meant: %s", (key, meant) => {
    expect(warnings({ x: { command: "x", [key]: ["secret-value"] } })).toEqual([
      `mcpServers.x.${key}: has no effect here; did you mean "${meant}"?`,
    ]);
  });

  test("is told of oauth as well", () => {
    expect(warnings({ x: { url: "http://localhost:1", oauth: { client_id: "secret-value" } } })).toEqual([
      'mcpServers.x.oauth.client_id: has no effect here; did you mean "clientId"?',
    ]);
  });

  test("and that other hosts have is passed over", () => {
    const others = { description: "x", autoApprove: [], alwaysAllow: [], icon: "x", name: "x" };
    expect(warnings({ x: { command: "x", ...others } })).toEqual([]);
  });

  test("is told by doctor, mcp list and mcp test", async () => {
    write({ x: { command: "/no/such/command", denyTool: ["a"] } });
    folder.write("mono-agent.config.json", { ...MINIMAL, tools });
    for (const args of [["doctor"], ["mcp", "list"], ["mcp", "test", "x"]]) {
      const { out, err } = await cliRun(folder.path, args);
      expect(out + err).toContain("mcpServers.x.denyTool");
    }
  });
});

describe("a ${…} that is no reference", () => {
  test("is told where it stands, and named where it is a name", () => {
    const args = ["${env:HOME}", "${A}", "$${env:B}"];
    expect(
      warnings(
        { x: { command: "x", args, env: { K: "p ${input:tok} q", L: "${a secret", M: "${N:secret}" } } },
        { A: "a" },
      ),
    ).toEqual([
      "mcpServers.x.args[0]: ${env:HOME} is no reference here and is taken literally; write ${HOME} for the variable, or $${…} if it is meant so",
      "mcpServers.x.env.K: ${input:tok} is no reference here and is taken literally; write ${NAME} for a variable, or $${…} if it is meant so",
      "mcpServers.x.env.L: a ${ is no reference here and is taken literally; write ${NAME} for a variable, or $${…} if it is meant so",
      "mcpServers.x.env.M: a ${ is no reference here and is taken literally; write ${NAME} for a variable, or $${…} if it is meant so",
    ]);
  });

  test("is not looked for in values, nor in a server that is off", () => {
    expect(warnings({ x: { command: "${V}" } }, { V: "${env:A}" })).toEqual([]);
    expect(warnings({ x: { command: "${env:A}", enabled: false } })).toEqual([]);
  });
});

describe("a problem of mcp.json names the rule", () => {
  test.each([
    [
      { "my files": { command: "x" } },
      'mcpServers["my files"]: is not a name that is allowed here; allowed: a server name of 1 to 128 letters, digits, _ and -',
    ],
    [
      { x: { url: "ftp://x" } },
      "mcpServers.x.url: found a text of 7 characters; allowed: an http or https URL",
    ],
  ] as const)("%j", (servers, problem) => {
    write(servers);
    expect(folder.problems({ tools })).toEqual([problem]);
  });

  test("also of a server that is called __proto__", () => {
    folder.write("servers.json", '{"mcpServers": {"__proto__": {"command": "x"}, "a": {"command": "x"}}}');
    expect(folder.problems({ tools })).toEqual([
      "mcpServers.__proto__: is not a name that is allowed here; allowed: any other name",
    ]);
  });
});

test("a broken mcp.json holds up no command that needs no server", async () => {
  folder.write("servers.json", '{"mcpServers": {"x": {}}}');
  folder.write("mono-agent.config.json", {
    ...MINIMAL,
    tools: { ...tools, continuationServers: ["x"] },
  });
  for (const args of [["chat"], ["continuations", "list"]]) {
    const { err } = await cliRun(folder.path, args);
    expect(err).toContain("`mono-agent serve`");
    expect(err).not.toContain("mcpServers");
  }
  expect((await cliRun(folder.path, ["mcp", "list"])).err).toContain("needs a command (stdio) or a url");
});
