import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { z } from "zod";
import { checkedOptions, checkedStoreOptions } from "../../src/config/embedded.ts";
import { BLOCKS, configSchema } from "../../src/config/schema.ts";
import { ConfigError } from "../../src/core/errors.ts";
import { isJsonObject, type JsonValue } from "../../src/core/json.ts";
import { mcpServerSchema } from "../../src/core/mcp-servers.ts";
import { type ConfigFolder, configFolder, MINIMAL } from "../support/config-folder.ts";

/** A value of a wrong shape, wherever it stands, is a problem with its path, or does no harm. It never is a bug of ours. */

let folder: ConfigFolder;
beforeAll(() => {
  folder = configFolder();
});
afterAll(() => folder.remove());

type Path = readonly (string | number)[];

const WRONG: readonly JsonValue[] = [{}, [], "", 0, null, true];

const model = { id: "m", contextTokens: 2_000, images: true, documents: true };
const hosted = { apiKeyEnv: "A_KEY", baseUrl: "http://a", models: [model, { ...model, id: "n" }] };
/** A configuration in which every key is set. */
const FULL = {
  $schema: "./schema.json",
  agent: { name: "it" },
  runtime: {
    model: "demo:assistant",
    fallbacks: [
      { model: "demo:a", effort: "low", attempts: 1 },
      { model: "demo:b", effort: "low", attempts: 1 },
    ],
    retry: { primaryAttempts: 2, backoffMs: 1, maxBackoffMs: 2 },
    effort: "low",
    modelCallTimeoutMs: 1,
    modelCallMaxTotalTimeoutMs: 1,
    maxTurns: 1,
    workspace: ".",
    session: { rollover: "daily", rolloverTimezone: "UTC" },
  },
  context: { identityPath: "identity.md" },
  concurrency: { maxConcurrentRuns: 1 },
  tools: {
    mcpConfigPath: "mcp.json",
    continuationServers: ["work-control", "local_http"],
    mcpRequestContextServers: ["work-control"],
    mcpCallTimeoutMs: 1,
    mcpCallMaxTotalTimeoutMs: 1,
  },
  providers: {
    local: ["a", "b"].map((id) => ({
      id,
      type: "ollama",
      baseUrl: "http://localhost:1/v1",
      apiKeyEnv: "A_KEY",
      models: [{ ...model, thinksFirst: true }, "n"],
    })),
    anthropic: hosted,
    openai: { apiKeyEnv: "A_KEY", models: [model], api: "chat" },
    google: { apiKeyEnv: "A_KEY", models: [model] },
  },
  continuations: {
    enabled: true,
    host: "localhost",
    port: 1,
    stateDir: "s",
    limits: {
      maxActiveRecords: 5,
      maxActivePerOrigin: 5,
      maxConcurrent: 1,
      synthesisTimeoutMs: 1,
      deliveryTimeoutMs: 1,
      operatorPageSize: 1,
    },
    retention: Object.fromEntries(
      Object.keys(BLOCKS.continuations.unwrap().shape.retention.unwrap().shape).map((key) => [key, 1]),
    ),
    namedRoutes: { a: { mode: "capture", conversationId: "x:y" }, b: { mode: "silent" } },
    detachedServices: ["a", "b"].map((name) => ({ name, tokenEnv: "A_TOKEN" })),
  },
  terminal: { enabled: true, host: "::1", port: 2, allow: ["a"] },
  host: { stateDir: "h", backupBeforeMigration: false },
} satisfies Record<string, JsonValue>;

const SERVER = {
  type: "stdio",
  command: "work-control",
  args: ["a"],
  env: { A: "a" },
  cwd: "/",
  headers: { A: "a" },
  enabled: true,
  disabled: false,
  allowTools: ["a"],
  denyTools: ["b"],
  timeoutMs: 1,
  trusted: true,
  oauth: { clientId: "a", clientSecret: "b", scope: "c", callbackPort: 1 },
} satisfies Record<string, JsonValue>;

const OPTIONS = {
  listen: { host: "::1", port: 1 },
  limits: FULL.continuations.limits,
  retention: FULL.continuations.retention,
  namedRoutes: FULL.continuations.namedRoutes,
  detachedServices: { a: "0123456789abcdef" },
  continuationServers: ["a"],
  stateDir: "s",
} satisfies Record<string, JsonValue>;

const env = { A_KEY: "k", A_TOKEN: "0123456789abcdef" };

/** Every path into the value, its own root left out. */
function pathsOf(value: JsonValue, at: Path = []): Path[] {
  const inner: [string | number, JsonValue][] = Array.isArray(value)
    ? [...value.entries()]
    : isJsonObject(value)
      ? Object.entries(value)
      : [];
  return inner.flatMap(([key, member]) => [[...at, key], ...pathsOf(member, [...at, key])]);
}

function withValue(target: JsonValue, [key, ...rest]: Path, value: JsonValue): JsonValue {
  if (key === undefined) return value;
  if (Array.isArray(target)) {
    return target.map((member, index) => (index === key ? withValue(member, rest, value) : member));
  }
  if (!isJsonObject(target)) throw new Error("no such path");
  return { ...target, [key]: withValue(target[key] ?? null, rest, value) };
}

/** What happens to each wrong value at each path, if it is neither accepted nor refused in words. */
function crashesOf(
  full: Record<string, JsonValue>,
  load: (value: Record<string, JsonValue>) => void,
): string[] {
  const crashes: string[] = [];
  for (const path of pathsOf(full)) {
    for (const wrong of WRONG) {
      const blocks = withValue(full, path, wrong);
      if (!isJsonObject(blocks)) throw new Error("a path leads to its own root");
      try {
        load(blocks);
      } catch (error) {
        if (error instanceof ConfigError && error.problems.every(({ message }) => message !== "")) continue;
        crashes.push(`${path.join(".")} = ${JSON.stringify(wrong)}: ${error}`);
      }
    }
  }
  return crashes;
}

/** Names of keys in a schema, wherever they stand. */
function keysOf(node: unknown): string[] {
  if (typeof node !== "object" || node === null) return [];
  const own = "properties" in node ? Object.keys(node.properties ?? {}) : [];
  return [...own, ...Object.values(node).flatMap(keysOf)];
}

test("every key of the configuration and of mcp.json is tried below", () => {
  const tried = new Set(pathsOf({ ...FULL, SERVER }).map((path) => String(path.at(-1))));
  const known = [configSchema, mcpServerSchema].flatMap((schema) =>
    keysOf(z.toJSONSchema(schema, { io: "input", unrepresentable: "any" })),
  );
  // These have a rule about what may stand beside them.
  const apart = ["apiKey", "url"];
  expect(known.filter((key) => !tried.has(key) && !apart.includes(key))).toEqual([]);
  expect(folder.problems(FULL, env)).toEqual([]);
});

describe("a wrong shape is told in words", () => {
  test.each(Object.entries(FULL))("in %s", (name, block) => {
    expect(crashesOf({ [name]: block }, (blocks) => folder.load({ ...FULL, ...blocks }, env))).toEqual([]);
  });

  test("with the environment laid over it", () => {
    const overlaid = {
      ...env,
      MONO_AGENT_MODEL: "demo:a",
      MONO_AGENT_CONTINUATION_SERVERS: "work-control",
      MONO_AGENT_SESSION_ROLLOVER: "none",
    };
    expect(crashesOf({ ...MINIMAL, tools: {} }, (blocks) => folder.load(blocks, overlaid))).toEqual([]);
  });

  test("in mcp.json", () => {
    const tools = { mcpConfigPath: "shapes.json", continuationServers: ["one"] };
    const load = (file: JsonValue) => {
      folder.write("shapes.json", file);
      folder.load({ tools }, env);
    };
    const remote = { type: "http", url: "http://localhost:1/mcp", headers: { a: "b" } };
    expect(crashesOf({ mcpServers: { one: SERVER, two: remote } }, load)).toEqual([]);
  });

  test("in the options of an embedded service", () => {
    expect(crashesOf(OPTIONS, checkedOptions)).toEqual([]);
    expect(crashesOf(OPTIONS, checkedStoreOptions)).toEqual([]);
  });
});

test.each([
  ["continuations.detachedServices", { continuations: { detachedServices: {} } }],
  ["providers.local", { providers: { local: {} } }],
  ["providers.google.models", { providers: { google: { models: {} } } }],
])("an object where a list belongs is a problem of its own: %s", (path, blocks) => {
  const [problem, ...more] = folder.problems(blocks);
  expect(problem).toStartWith(`${path}: found an object; allowed: a list`);
  expect(more).toEqual([]);
});
