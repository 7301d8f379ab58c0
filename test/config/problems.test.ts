import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { loadConfig } from "../../src/config/load.ts";
import { ConfigError } from "../../src/core/errors.ts";
import { type ConfigFolder, configFolder, MINIMAL } from "../support/config-folder.ts";

let folder: ConfigFolder;
beforeAll(() => {
  folder = configFolder();
});
afterAll(() => folder.remove());

const tools = (...continuationServers: unknown[]) => ({
  tools: { mcpConfigPath: "mcp.json", continuationServers },
});
const local = (fields: object) => ({
  providers: { local: [{ id: "box", type: "ollama", baseUrl: "http://localhost:1/v1", ...fields }] },
});

/** One hostile configuration per rule: the blocks, the environment, and the only problem expected. */
const RULES: [string, Record<string, unknown>, RegExp, Record<string, string>?][] = [
  ["model is required", { runtime: {} }, /^runtime\.model: is required; allowed: <provider>:<model>/],
  [
    "model needs its provider",
    { runtime: { model: "gpt" } },
    /^runtime\.model: found "gpt"; allowed: <provider>:<model>/,
  ],
  [
    "provider must exist",
    { runtime: { model: "open:x" } },
    /^runtime\.model: there is no provider "open"; known: demo, anthropic, openai, openai_chat, google, ollama, lmstudio/,
  ],
  [
    "model must be listed",
    { ...local({ models: ["a"] }), runtime: { model: "box:b" } },
    /^runtime\.model: provider "box" lists other models: a$/,
  ],
  [
    "selected model needs its key",
    { runtime: { model: "anthropic:x" } },
    /^runtime\.model: needs an API key: set the environment variable ANTHROPIC_API_KEY$/,
  ],
  [
    "local model needs its key",
    { ...local({ apiKeyEnv: "BOX_KEY" }), runtime: { model: "box:b" } },
    /BOX_KEY$/,
  ],
  [
    "maxTurns is bounded",
    { runtime: { model: "demo:a", maxTurns: 1001 } },
    /^runtime\.maxTurns: found 1001; allowed: a number of model calls/,
  ],
  [
    "maxTurns is an integer",
    { runtime: { model: "demo:a", maxTurns: 1.5 } },
    /^runtime\.maxTurns: found 1\.5/,
  ],
  [
    "rollover is one of two",
    { runtime: { model: "demo:a", session: { rollover: "weekly" } } },
    /^runtime\.session\.rollover: found "weekly"; allowed: "none", "daily"$/,
  ],
  ["identityPath is required", { context: {} }, /^context\.identityPath: is required; allowed: a path$/],
  [
    "identity file must exist",
    { context: { identityPath: "gone.md" } },
    /^context\.identityPath: \/.*gone\.md: there is no such file$/,
  ],
  [
    "identity must be a file",
    { context: { identityPath: "." } },
    /^context\.identityPath: .*not a regular file$/,
  ],
  [
    "agent name has no control characters",
    { agent: { name: "a\u0007" } },
    /^agent\.name: found "a\\u0007"; allowed: a name of 1 to 80/,
  ],
  [
    "maxConcurrentRuns is positive",
    { concurrency: { maxConcurrentRuns: 0 } },
    /^concurrency\.maxConcurrentRuns: found 0; allowed: an integer from 1 to 256$/,
  ],
  ["call time-out is positive", { tools: { mcpCallTimeoutMs: 0 } }, /^tools\.mcpCallTimeoutMs: found 0/],
  [
    "mcp file must exist",
    { tools: { mcpConfigPath: "gone.json" } },
    /^: there is no such file \(named by tools\.mcpConfigPath\)$/,
  ],
  [
    "selection needs an mcp file",
    { tools: { continuationServers: ["work-control"] } },
    /^tools\.mcpConfigPath: is required because tools\.continuationServers selects work-control/,
  ],
  [
    "selected server must exist",
    tools("work-contol"),
    /^tools\.continuationServers\[0\]: there is no server "work-contol" in .*mcp\.json; did you mean "work-control"\?/,
  ],
  [
    "selected server must not be remote",
    tools("remote"),
    /^tools\.continuationServers\[0\]: "remote" can't hold continuation authority: its host is not localhost.*take it off this list$/,
  ],
  [
    "selected server must not be SSE",
    tools("sse"),
    /^tools\.continuationServers\[0\]: "sse" can't hold continuation authority: it uses SSE/,
  ],
  [
    "selected server must not be contradictory",
    tools("both"),
    /"both" can't hold continuation authority: it has both command and url/,
  ],
  [
    "server names are plain",
    tools("a b"),
    /^tools\.continuationServers\[0\]: found "a b"; allowed: a server name/,
  ],
  [
    "server list is a list",
    { tools: { continuationServers: "x" } },
    /^tools\.continuationServers: found "x"; allowed: a list, each a server name/,
  ],
  [
    "local provider id is not built in",
    local({ id: "demo" }),
    /^providers\.local\[0\]\.id: is the name of a built-in provider; found "demo"$/,
  ],
  [
    "local provider type is known",
    local({ type: "vllm" }),
    /^providers\.local\[0\]\.type: found "vllm"; allowed: "ollama", "lmstudio", "openai_compat"$/,
  ],
  [
    "local provider URL is http",
    local({ baseUrl: "ftp://x" }),
    /^providers\.local\[0\]\.baseUrl: found a text of 7 characters; allowed: an http or https URL/,
  ],
  [
    "openai_compat has no usual address",
    { providers: { local: [{ id: "box", type: "openai_compat" }] } },
    /^providers\.local\[0\]\.baseUrl: is required for type openai_compat$/,
  ],
  [
    "a type names a provider only when there is one of it",
    {
      runtime: { model: "ollama:x" },
      providers: { local: ["a", "b"].map((id) => ({ id, type: "ollama" })) },
    },
    /^runtime\.model: several providers are of type ollama; name one by its id$/,
  ],
  [
    "terminal names are plain",
    { terminal: { allow: ["ok", "not ok"] } },
    /^terminal\.allow\[1\]: is no name of a terminal conversation; found "not ok"$/,
  ],
  [
    "local provider key is a name",
    local({ apiKeyEnv: "sk-123" }),
    /^providers\.local\[0\]\.apiKeyEnv: found a text of 6 characters; allowed: the name of an environment variable/,
  ],
  [
    "local provider ids are unique",
    { providers: { local: [1, 2].map(() => ({ id: "a", type: "ollama", baseUrl: "http://a" })) } },
    /^providers\.local\[1\]\.id: is there twice; found "a"$/,
  ],
  [
    "LAN address is refused",
    { continuations: { host: "192.168.0.1" } },
    /^continuations\.host: found "192\.168\.0\.1"; allowed: "localhost", "127\.0\.0\.1", "::1"$/,
  ],
  ["all interfaces are refused", { continuations: { host: "0.0.0.0" } }, /^continuations\.host/],
  [
    "port 0 is refused",
    { continuations: { port: 0 } },
    /^continuations\.port: found 0; allowed: an integer from 1 to 65535$/,
  ],
  ["port 65536 is refused", { continuations: { port: 65_536 } }, /^continuations\.port: found 65536/],
  [
    "enabled is a boolean",
    { continuations: { enabled: "no" } },
    /^continuations\.enabled: found "no"; allowed: true or false$/,
  ],
  [
    "limit has a maximum",
    { continuations: { limits: { maxConcurrent: 257 } } },
    /^continuations\.limits\.maxConcurrent: found 257; allowed: an integer from 1 to 256$/,
  ],
  [
    "per origin is at most all",
    { continuations: { limits: { maxActiveRecords: 5, maxActivePerOrigin: 6 } } },
    /^continuations\.limits\.maxActivePerOrigin: must be at most maxActiveRecords \(5\); found 6$/,
  ],
  [
    "retention is not negative",
    { continuations: { retention: { terminalMaxRecords: -1 } } },
    /^continuations\.retention\.terminalMaxRecords: found -1; allowed: an integer from 0$/,
  ],
  [
    "route name is not empty",
    { continuations: { namedRoutes: { "": { mode: "silent" } } } },
    /^continuations\.namedRoutes\[""\]: is not a name that is allowed here; allowed: a route name of 1 to 128/,
  ],
  [
    "token variable must be set",
    { continuations: { detachedServices: [{ name: "s", tokenEnv: "S_TOKEN" }] } },
    /^continuations\.detachedServices\[0\]\.tokenEnv: the environment variable S_TOKEN is not set/,
  ],
  [
    "15 characters are too few",
    { continuations: { detachedServices: [{ name: "s", tokenEnv: "S_TOKEN" }] } },
    /the token in S_TOKEN has 15 characters; allowed: at least 16$/,
    { S_TOKEN: " 123456789012345 " },
  ],
  [
    "service names are unique",
    { continuations: { detachedServices: [1, 2].map(() => ({ name: "s", tokenEnv: "S_TOKEN" })) } },
    /^continuations\.detachedServices\[1\]\.name: is there twice; found "s"$/,
    { S_TOKEN: "1234567890123456" },
  ],
  ["terminal is loopback only", { terminal: { host: "::" } }, /^terminal\.host: found "::"/],
  [
    "two services can't share a port",
    { terminal: { port: 5000 }, continuations: { port: 5000 } },
    /^terminal\.port: 5000 is the port of the continuation service too/,
  ],
  ["a block is an object", { terminal: 5 }, /^terminal: found 5; allowed: an object$/],
  [
    "unknown key in a block of ours",
    { runtime: { model: "demo:a", modle: 1 } },
    /^runtime\.modle: unknown key; did you mean "model"\?; allowed here: model, fallbacks, retry, effort, modelCallTimeoutMs, modelCallMaxTotalTimeoutMs, maxTurns, workspace, session$/,
  ],
  [
    "unknown key without a neighbour",
    { terminal: { zzzzzz: 1 } },
    /^terminal\.zzzzzz: unknown key; allowed here: enabled, host, port, allow$/,
  ],
  [
    "unknown top-level block",
    { contination: {} },
    /^contination: unknown key; did you mean "continuations"\?/,
  ],
];

describe("each rule refuses its hostile configuration, by its path", () => {
  for (const [rule, blocks, expected, env] of RULES) {
    test(rule, () => {
      const found = folder.problems(blocks, env);
      expect(found[0]).toMatch(expected);
      expect(found.length).toBe(1);
    });
  }
});

describe("named routes", () => {
  const id = "slack:C1";
  test.each([
    [{ mode: "notify_if_actionable", conversationId: id }, true],
    [{ mode: "notify_if_actionable" }, false],
    [{ mode: "capture", conversationId: id }, true],
    [{ mode: "capture" }, false],
    [{ mode: "silent" }, true],
    [{ mode: "silent", conversationId: id }, false],
    [{ mode: "reply", conversationId: id }, false],
    [{ mode: "reply" }, false],
  ])("%p is accepted: %p", (route, accepted) => {
    const found = folder.problems({ continuations: { namedRoutes: { r: route } } });
    expect(found.length).toBe(accepted ? 0 : 1);
    if (!accepted) expect(found[0]).toMatch(/^continuations\.namedRoutes\.r\.(mode|conversationId): /);
  });
});

test("all problems are reported at once, whatever block or file they are in", () => {
  folder.write("broken-mcp.json", '{"mcpServers": {"x": {}}}');
  const found = folder.problems({
    runtime: { modle: "x" },
    context: { identityPath: "gone.md" },
    tools: { mcpConfigPath: "broken-mcp.json", mcpCallTimeoutMs: -1 },
    continuations: { port: 0, detachedServices: [{ name: "s", tokenEnv: "NOT_SET" }] },
    nonsense: 1,
  });
  const paths = found.map((line) => line.slice(0, line.indexOf(": "))).sort();
  expect(paths).toEqual([
    "context.identityPath",
    "continuations.detachedServices[0].tokenEnv",
    "continuations.port",
    "mcpServers.x",
    "nonsense",
    "runtime.model",
    "runtime.modle",
    "tools.mcpCallTimeoutMs",
  ]);
});

test("the message of the error lists every problem with its source", () => {
  folder.write("mono-agent.config.json", { ...MINIMAL, terminal: { prot: 1 }, host: { statedir: "x" } });
  try {
    loadConfig({ cwd: folder.path, env: {} });
    expect.unreachable();
  } catch (error) {
    expect(error).toBeInstanceOf(ConfigError);
    const { code, message } = error as ConfigError;
    expect(code).toBe("config_invalid");
    expect(message.split("\n").length).toBe(3);
    expect(message).toContain("terminal.prot (");
    expect(message).toContain('did you mean "stateDir"?');
  }
});

test.each([
  ["[]", /must be an object/],
  ['{"runtime": }', /is not JSON: line 1, column 13/],
  ["\u0000", /is not JSON/],
])("a file with %p is refused by its name", (text, message) => {
  folder.write("mono-agent.config.json", text);
  expect(() => loadConfig({ cwd: folder.path, env: {} })).toThrow(message);
});

describe("a rule over several keys", () => {
  const service = { name: "a", tokenEnv: "A_TOKEN" };
  test.each([
    [
      "maxActivePerOrigin",
      { continuations: { limits: { maxActiveRecords: 5, maxActivePerOrigin: 6, maxConcurrent: "many" } } },
      ["continuations.limits.maxConcurrent", "continuations.limits.maxActivePerOrigin"],
    ],
    [
      "the default of maxActiveRecords",
      { continuations: { limits: { maxActivePerOrigin: 10_001, maxConcurrent: null } } },
      ["continuations.limits.maxConcurrent", "continuations.limits.maxActivePerOrigin"],
    ],
    [
      "a provider's address",
      { providers: { local: [{ id: "box", type: "openai_compat", models: 5 }] } },
      ["providers.local[0].models", "providers.local[0].baseUrl"],
    ],
    [
      "a route's conversation",
      { continuations: { namedRoutes: { r: { mode: "silent", conversationId: 5 } } } },
      ["continuations.namedRoutes.r.conversationId", "continuations.namedRoutes.r.conversationId"],
    ],
    [
      "names that are there twice",
      { continuations: { enabled: false, detachedServices: [service, { ...service, tokenEnv: "a" }, 5] } },
      [
        "continuations.detachedServices[1].tokenEnv",
        "continuations.detachedServices[2]",
        "continuations.detachedServices[1].name",
      ],
    ],
    [
      "ids that are there twice",
      { providers: { local: [1, 2].map(() => ({ id: "a", type: "ollama", models: 5 })) } },
      ["providers.local[0].models", "providers.local[1].models", "providers.local[1].id"],
    ],
  ])("is reported beside another problem: %s", (_, blocks, paths) => {
    expect(folder.problemList(blocks).map((problem) => problem.path)).toEqual(paths);
  });

  test.each([
    ["a list", { continuations: { limits: [] } }],
    ["a text", { continuations: { limits: { maxActiveRecords: "5", maxActivePerOrigin: 6 } } }],
    ["an unknown mode", { continuations: { namedRoutes: { r: { mode: "reply" } } } }],
    ["nothing", { providers: { local: [null] } }],
  ])("says nothing of its own about a value of a wrong type: %s", (_, blocks) => {
    expect(folder.problems(blocks).length).toBe(1);
  });
});

test("a misspelled block of another host gets its name as a hint, and is not listed as allowed here", () => {
  const [problem] = folder.problems({ slak: {} });
  expect(problem).toStartWith('slak: unknown key; did you mean "slack"?; allowed here: ');
  expect(problem?.match(/slack/g)?.length).toBe(1);
});
