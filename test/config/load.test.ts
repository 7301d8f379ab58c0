import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { join } from "node:path";
import { inspect } from "node:util";
import { loadConfig } from "../../src/config/load.ts";
import { effectiveConfig, printJsonSchema } from "../../src/config/show.ts";
import { ConfigError } from "../../src/core/errors.ts";
import { type ConfigFolder, configFolder, MINIMAL } from "../support/config-folder.ts";

let folder: ConfigFolder;
beforeAll(() => {
  folder = configFolder();
});
afterAll(() => folder.remove());

const tools = (...continuationServers: string[]) => ({
  tools: { mcpConfigPath: "mcp.json", continuationServers },
});

describe("defaults", () => {
  test("the effective configuration equals the documented defaults", () => {
    expect(effectiveConfig(folder.load({ continuations: {} }))).toEqual({
      configPath: join(folder.path, "mono-agent.config.json"),
      agent: {},
      runtime: {
        model: "demo:assistant",
        fallbacks: [],
        retry: { primaryAttempts: 2, backoffMs: 1000, maxBackoffMs: 15_000 },
        modelCallTimeoutMs: 300_000,
        modelCallMaxTotalTimeoutMs: 1_800_000,
        maxTurns: 50,
        workspace: folder.path,
        session: { rollover: "none" },
      },
      context: { identityPath: join(folder.path, "identity.md") },
      concurrency: { maxConcurrentRuns: 4 },
      tools: {
        continuationServers: [],
        mcpRequestContextServers: [],
        mcpCallTimeoutMs: 120_000,
        mcpCallMaxTotalTimeoutMs: 2_700_000,
      },
      mcpServers: {},
      providers: {
        local: [],
        anthropic: { apiKeyEnv: "ANTHROPIC_API_KEY" },
        openai: { apiKeyEnv: "OPENAI_API_KEY", api: "responses" },
        google: { apiKeyEnv: "GEMINI_API_KEY" },
      },
      continuations: {
        host: "127.0.0.1",
        port: 4319,
        stateDir: join(folder.path, ".mono-agent/continuations"),
        limits: {
          maxActiveRecords: 10_000,
          maxActivePerOrigin: 500,
          maxConcurrent: 16,
          synthesisTimeoutMs: 600_000,
          deliveryTimeoutMs: 120_000,
          operatorPageSize: 100,
        },
        retention: {
          terminalMaxRecords: 50_000,
          terminalMaxAgeMs: 31_536_000_000,
          capturedTextMaxRecords: 1_000,
          capturedTextMaxAgeMs: 2_592_000_000,
          deadLetterTextMaxRecords: 1_000,
          deadLetterTextMaxAgeMs: 2_592_000_000,
        },
        namedRoutes: {},
        detachedServices: [],
      },
      terminal: { enabled: true, host: "127.0.0.1", port: 4320 },
      host: { stateDir: join(folder.path, ".mono-agent"), backupBeforeMigration: true },
      warnings: [],
    });
  });

  test("each continuation limit and retention value can be set", () => {
    const limits = {
      maxActiveRecords: 9,
      maxActivePerOrigin: 8,
      maxConcurrent: 7,
      synthesisTimeoutMs: 6,
      deliveryTimeoutMs: 5,
      operatorPageSize: 4,
    };
    const retention = {
      terminalMaxRecords: 0,
      terminalMaxAgeMs: 1,
      capturedTextMaxRecords: 2,
      capturedTextMaxAgeMs: 3,
      deadLetterTextMaxRecords: 4,
      deadLetterTextMaxAgeMs: 5,
    };
    const config = folder.load({ continuations: { limits, retention } });
    expect(config.continuations?.limits).toEqual(limits);
    expect(config.continuations?.retention).toEqual(retention);
  });

  test("the value is frozen at every level", () => {
    const config = folder.load({ continuations: {} });
    expect(Object.isFrozen(config)).toBe(true);
    expect(Object.isFrozen(config.continuations?.limits)).toBe(true);
  });
});

describe("when the continuation service is on", () => {
  test("neither a block nor a selected server: off", () => {
    expect(folder.load({}).continuations).toBeUndefined();
  });
  test("a selected server alone turns it on at the default address", () => {
    const config = folder.load(tools("work-control"));
    expect(config.continuations).toMatchObject({ host: "127.0.0.1", port: 4319 });
    expect(config.tools.continuationServers).toEqual(["work-control"]);
  });
  test("enabled false removes the service and the authority of selected servers", () => {
    const config = folder.load({ ...tools("work-control"), continuations: { enabled: false } });
    expect(config.continuations).toBeUndefined();
    expect(config.tools.continuationServers).toEqual([]);
  });
});

describe("environment", () => {
  test("a variable overrides the file and the file the default, each field by itself", () => {
    const env = {
      MONO_AGENT_MODEL: "demo:other",
      MONO_AGENT_WORKSPACE: "work",
      MONO_AGENT_SESSION_ROLLOVER: "daily",
      MONO_AGENT_SESSION_ROLLOVER_TIMEZONE: "Europe/Berlin",
      MONO_AGENT_MCP_CONFIG_PATH: "../mcp.json",
      MONO_AGENT_CONTINUATION_SERVERS: "work-control, local_http,",
      MONO_AGENT_MCP_CALL_TIMEOUT_MS: "7",
      MONO_AGENT_MCP_CALL_MAX_TOTAL_TIMEOUT_MS: "",
    };
    const config = folder.load({ tools: { mcpCallTimeoutMs: 5, mcpCallMaxTotalTimeoutMs: 6 } }, env);
    expect(config.runtime).toMatchObject({
      model: "demo:other",
      maxTurns: 50,
      workspace: join(folder.path, "work"),
      session: { rollover: "daily", rolloverTimezone: "Europe/Berlin" },
    });
    expect(config.tools).toEqual({
      mcpConfigPath: join(folder.path, "mcp.json"),
      continuationServers: ["work-control", "local_http"],
      mcpRequestContextServers: [],
      mcpCallTimeoutMs: 7,
      mcpCallMaxTotalTimeoutMs: 6,
    });
  });

  test("a problem names the variable that the value came from", () => {
    const [problem] = folder.problemList({}, { MONO_AGENT_MCP_CALL_TIMEOUT_MS: "soon" });
    expect(problem).toEqual({
      source: "MONO_AGENT_MCP_CALL_TIMEOUT_MS",
      path: "tools.mcpCallTimeoutMs",
      message: 'found "soon"; allowed: an integer from 1 to 86400000',
    });
  });

  test("mcpConfigPath is relative to the workspace, other paths to the agent folder", () => {
    folder.write("inner/mcp.json", { mcpServers: {} });
    const config = folder.load({
      runtime: { model: "demo:a", workspace: "inner" },
      tools: { mcpConfigPath: "mcp.json" },
    });
    expect(config.tools.mcpConfigPath).toBe(join(folder.path, "inner/mcp.json"));
    expect(config.context.identity).toBe("You are a test.");
  });
});

describe("secrets", () => {
  const secretEnv = {
    SERVICE_TOKEN: "  detached-secret-0123456789  ",
    ANTHROPIC_API_KEY: "api-secret-value",
  };
  const blocks = {
    ...tools("work-control"),
    continuations: { detachedServices: [{ name: "svc", tokenEnv: "SERVICE_TOKEN" }] },
  };

  test("are reachable by name and in no dump of the configuration", () => {
    const config = folder.load(blocks, secretEnv);
    expect(config.secrets.detachedToken("svc")).toBe("detached-secret-0123456789");
    expect(config.secrets.detachedToken("other")).toBeUndefined();
    expect(config.secrets.apiKey("ANTHROPIC_API_KEY")).toBe("api-secret-value");
    const dumps = [
      JSON.stringify(config),
      JSON.stringify(effectiveConfig(config)),
      inspect(config.secrets, { depth: 9, showHidden: true }),
    ];
    for (const dump of dumps)
      expect(dump).not.toMatch(/detached-secret|api-secret|mcp-env-secret|mcp-header-secret/);
  });

  test("a token written where its variable's name belongs is refused without being printed", () => {
    const token = "super-secret-token-in-json";
    const found = folder.problems({
      continuations: { detachedServices: [{ name: "svc", tokenEnv: token }] },
      providers: { local: [{ id: "a", type: "ollama", baseUrl: "http://me:hunter2@localhost/v1" }] },
    });
    expect(found.length).toBe(2);
    expect(found.join()).not.toContain(token);
    expect(found.join()).not.toContain("hunter2");
  });

  test("values of a broken mcp.json are never printed", () => {
    folder.write("bad-mcp.json", {
      mcpServers: { "a b": { url: "nope-secret" }, c: { command: 5, args: "args-secret" } },
    });
    const found = folder.problems({ tools: { mcpConfigPath: "bad-mcp.json" } });
    expect(found.length).toBeGreaterThanOrEqual(3);
    expect(found.join()).not.toMatch(/nope-secret|args-secret/);
  });

  test("an operator's shell need not hold them", () => {
    folder.write("mono-agent.config.json", { ...MINIMAL, ...blocks, runtime: { model: "anthropic:x" } });
    const options = { cwd: folder.path, env: {} };
    expect(() => loadConfig(options)).toThrow(ConfigError);
    expect(loadConfig({ ...options, secretsOptional: true }).secrets.detachedToken("svc")).toBeUndefined();
  });
});

describe("other hosts' configurations", () => {
  test("a top-level block that only other hosts have is one warning", () => {
    const config = folder.load({ slack: { enabled: true, botToken: "x" }, memory: 5 });
    expect(config.warnings).toEqual([
      "slack: this host has no such block; it is ignored",
      "memory: this host has no such block; it is ignored",
    ]);
  });

  test("the sample of the continuations document starts, its Slack routes included", () => {
    const config = folder.load(
      {
        ...tools("work-control"),
        continuations: {
          enabled: true,
          host: "127.0.0.1",
          port: 4319,
          stateDir: ".mono-agent/continuations",
          namedRoutes: {
            "daily-attention": { mode: "notify_if_actionable", conversationId: "slack:C_EXAMPLE:T_EXAMPLE" },
            verification: { mode: "capture", conversationId: "slack:C_EXAMPLE:T_EXAMPLE" },
            "background-index": { mode: "silent" },
          },
          detachedServices: [{ name: "work-control", tokenEnv: "WORK_CONTROL_CONTINUATION_TOKEN" }],
        },
      },
      { WORK_CONTROL_CONTINUATION_TOKEN: "0123456789abcdef" },
    );
    expect(Object.keys(config.continuations?.namedRoutes ?? {}).length).toBe(3);
  });

  test("an unknown time zone falls back to the system's with a warning", () => {
    const config = folder.load({
      runtime: { model: "demo:a", session: { rollover: "daily", rolloverTimezone: "Mars/Olympus" } },
    });
    expect(config.runtime.session.rolloverTimezone).toBeUndefined();
    expect(config.warnings).toEqual([
      "runtime.session.rolloverTimezone: no such time zone; the system's is used",
    ]);
  });
});

test("the JSON Schema is made from the same definition", () => {
  const schema = JSON.parse(printJsonSchema());
  expect(schema.required).toEqual(["runtime", "context"]);
  expect(schema.properties.continuations.properties.port).toMatchObject({
    minimum: 1,
    maximum: 65_535,
    default: 4319,
  });
});

test("a file that is not there names the way to make one, unless another was asked for", () => {
  const missing = (more: { configPath?: string; program?: string }) => {
    try {
      loadConfig({ cwd: join(folder.path, "nowhere"), env: {}, ...more });
    } catch (error) {
      if (error instanceof ConfigError) return error.message;
    }
    throw new Error("it loaded");
  };
  expect(missing({})).toContain("`mono-agent init`");
  expect(missing({ program: "./dist/mono-agent" })).toContain("`./dist/mono-agent init`");
  expect(missing({ configPath: "/nope/x.json" })).toBe("there is no configuration at /nope/x.json");
});
