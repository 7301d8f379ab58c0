import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { inspect } from "node:util";
import { loadConfig } from "../../src/config/load.ts";
import { effectiveConfig } from "../../src/config/show.ts";
import { configuredModel, singleModel, takesImages } from "../../src/host/models.ts";
import { type ConfigFolder, configFolder } from "../support/config-folder.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { recordingLogger, request, WIRE } from "../support/model-rig.ts";
import { startWireServer } from "../support/model-wire.ts";

let folder: ConfigFolder;
beforeAll(() => {
  folder = configFolder();
});
afterAll(() => folder.remove());

const model = "demo:a";
const box = (fields: object) => ({
  runtime: { model },
  providers: { local: [{ id: "box", type: "openai_compat", baseUrl: "http://127.0.0.1:1/v1", ...fields }] },
});

const picture = () =>
  request({
    messages: [
      {
        role: "user",
        content: "?",
        attachments: [{ kind: "image", mediaType: "image/png", name: "a.png", data: new Uint8Array([1]) }],
      },
    ],
  });

describe("models in the configuration", () => {
  test("take fallbacks, retries and an effort, with the documented defaults", () => {
    const { runtime } = folder.load({
      runtime: {
        model,
        effort: "ultra",
        fallbacks: [{ model: "demo:b" }, { model: "ollama:llama3", effort: "none", attempts: 10 }],
        retry: { primaryAttempts: 1 },
      },
    });
    expect(runtime).toMatchObject({
      effort: "ultra",
      fallbacks: [
        { model: "demo:b", attempts: 1 },
        { model: "ollama:llama3", effort: "none", attempts: 10 },
      ],
      retry: { primaryAttempts: 1, backoffMs: 1000, maxBackoffMs: 15_000 },
    });
  });

  test.each([
    [
      { model, fallbacks: [{ model: "nowhere:x" }] },
      /^runtime\.fallbacks\[0\]\.model: there is no provider "nowhere"/,
    ],
    [
      { model, fallbacks: [{ model: "openai:x" }] },
      /^runtime\.fallbacks\[0\]\.model: needs an API key: set the environment variable OPENAI_API_KEY$/,
    ],
    [{ model: "openai_chat:x" }, /^runtime\.model: needs an API key: .* OPENAI_API_KEY$/],
    [{ model: "google:x" }, /^runtime\.model: needs an API key: .* GEMINI_API_KEY$/],
    [
      { model, fallbacks: [{ model: "demo:x", attempts: 11 }] },
      /^runtime\.fallbacks\[0\]\.attempts: found 11; allowed: an integer from 1 to 10$/,
    ],
    [{ model, fallbacks: Array(11).fill({ model: "demo:x" }) }, /^runtime\.fallbacks/],
    [{ model, effort: "huge" }, /^runtime\.effort: found "huge"; allowed: "none", "minimal",/],
    [{ model, retry: { primaryAttempts: 0 } }, /^runtime\.retry\.primaryAttempts: found 0/],
    [{ model, retry: { backoff: 1 } }, /^runtime\.retry\.backoff: unknown key; did you mean "backoffMs"/],
    [{ model, modelCallTimeoutMs: 0 }, /^runtime\.modelCallTimeoutMs: found 0/],
  ])("refuse %j", (runtime, expected) => {
    const problems = folder.problems({ runtime });
    expect(problems).toHaveLength(1);
    expect(problems[0]).toMatch(expected);
  });

  test("describe the models of a local provider by name or with what they take", () => {
    const { providers } = folder.load(
      box({ models: ["a", { id: "b", contextTokens: 32_768, images: true, thinksFirst: true }] }),
    );
    expect(providers.local[0]?.models).toEqual([
      { id: "a" },
      { id: "b", contextTokens: 32_768, images: true, thinksFirst: true },
    ]);
    expect(folder.problems(box({ models: [{ id: "b", contextTokens: 1 }] }))[0]).toMatch(
      /^providers\.local\[0\]\.models\[0\]\.contextTokens: found 1; allowed: an integer from 1024 to/,
    );
    expect(folder.problems(box({ models: [7] }))[0]).toMatch(
      /^providers\.local\[0\]\.models\[0\]: found 7; allowed: a model name, or \{id, contextTokens\?/,
    );
    const listed = { ...box({ models: [{ id: "b" }] }), runtime: { model: "box:c" } };
    expect(folder.problems(listed)).toEqual(['runtime.model: provider "box" lists other models: b']);
  });

  test("say of a hosted provider's models what they take, without a list of those that may be named", () => {
    const models = [{ id: "gpt-4", contextTokens: 8_192, images: false }, { id: "gpt-5" }];
    const { providers } = folder.load(
      { runtime: { model: "openai:another" }, providers: { openai: { models } } },
      { OPENAI_API_KEY: "k" },
    );
    expect(providers.openai.models).toEqual(models);
    const problem = (entries: unknown[]) =>
      folder.problems({ runtime: { model }, providers: { google: { models: entries } } });
    expect(problem(["gemini"])[0]).toMatch(/^providers\.google\.models\[0\]: found "gemini"; allowed: /);
    expect(problem([{ id: "a", contextTokens: 1 }])[0]).toMatch(
      /^providers\.google\.models\[0\]\.contextTokens: found 1; allowed: an integer from 1024 to/,
    );
    expect(problem([{ id: "a", context: 9_000 }])[0]).toMatch(
      /^providers\.google\.models\[0\]\.context: unknown key/,
    );
    expect(problem([{ id: "a" }, { id: "a" }])).toEqual([
      expect.stringContaining("providers.google.models[1].id: is there twice"),
    ]);
  });

  test("are warned of, once each, where nobody says how much a local one holds", () => {
    const unsized = (path: string, name: string) =>
      `${path}: nobody says how many tokens ${name} holds, so a long conversation is never cut to fit; set contextTokens in providers.local[].models`;
    const sized = { id: "b", contextTokens: 32_768 };
    const config = folder.load({
      ...box({ models: ["a", sized] }),
      runtime: {
        model: "box:a",
        fallbacks: ["demo:x", "box:b", "openai_compat:b", "box:a", "ollama:llama3"].map((each) => ({
          model: each,
        })),
      },
    });
    expect(config.warnings).toEqual([
      unsized("runtime.model", "box:a"),
      unsized("runtime.fallbacks[4].model", "ollama:llama3"),
    ]);
    const own = [{ id: "lm", type: "lmstudio", models: [{ id: "c", images: true }] }];
    const typed = folder.load({ runtime: { model: "lmstudio:c" }, providers: { local: own } });
    expect(typed.warnings).toEqual([unsized("runtime.model", "lmstudio:c")]);
    const operator = loadConfig({ cwd: folder.path, env: {}, secretsOptional: true });
    expect(operator.warnings).toEqual([]);
  });

  test("take a local key from the file with a warning, show it nowhere, and not beside a variable", () => {
    const config = folder.load(box({ apiKey: "sk-in-the-file" }));
    expect(config.secrets.localApiKey("box")).toBe("sk-in-the-file");
    expect(config.warnings).toEqual([
      "providers.local[0].apiKey: a secret stands in the file; name its variable in apiKeyEnv instead",
    ]);
    const dumps = [
      JSON.stringify(config),
      JSON.stringify(effectiveConfig(config)),
      inspect(config, { depth: 9, showHidden: true }),
    ];
    for (const dump of dumps) expect(dump).not.toContain("sk-in-the-file");
    const both = folder.problems(box({ apiKey: "sk-in-the-file", apiKeyEnv: "BOX_KEY" }), { BOX_KEY: "x" });
    expect(both).toEqual([expect.stringContaining("providers.local[0].apiKey: stands beside apiKeyEnv")]);
    expect(both.join()).not.toContain("sk-in");
  });
});

describe("the model that a configuration makes", () => {
  const deps = () => ({ clock: createFakeClock(), logger: recordingLogger() });

  test("goes to the fallback with its own effort, key and address", async () => {
    const server = startWireServer(
      { status: 404, body: "{}" },
      { events: WIRE.chat.text(["from the fallback"]), after: "end" },
    );
    const config = folder.load(
      {
        runtime: {
          model: "box:m",
          effort: "max",
          fallbacks: [{ model: "openai:gpt-5", effort: "low" }],
        },
        providers: {
          local: [{ id: "box", type: "openai_compat", baseUrl: `${server.url}/box`, apiKeyEnv: "BOX_KEY" }],
          openai: { baseUrl: `${server.url}/v1`, api: "chat" },
        },
      },
      { BOX_KEY: "box-key", OPENAI_API_KEY: "openai-key" },
    );
    const configured = configuredModel(config, deps());
    expect(configured.name).toBe("box:m");
    expect((await configured.call(request())).text).toBe("from the fallback");
    const [first, second] = server.requests;
    expect(first?.path).toBe("/box/chat/completions");
    expect(first?.body.reasoning_effort).toBe("high");
    expect(first?.headers.get("authorization")).toBe("Bearer box-key");
    expect(second?.path).toBe("/v1/chat/completions");
    expect(second?.body.reasoning_effort).toBe("low");
    expect(second?.headers.get("authorization")).toBe("Bearer openai-key");
    await server.stop();
  });

  test("knows what a local model takes, and a single model has no fallback", async () => {
    const server = startWireServer({ status: 503, body: "{}" });
    const config = folder.load({
      runtime: { model: "box:m", fallbacks: [{ model: "demo:b" }] },
      providers: {
        local: [
          {
            id: "box",
            type: "openai_compat",
            baseUrl: `${server.url}/v1`,
            models: [{ id: "m", contextTokens: 2_000 }],
          },
        ],
      },
    });
    const long = request({ messages: [{ role: "user", content: "word".repeat(3_000) }] });
    await expect(singleModel(config, "box:m", deps()).call(long)).rejects.toThrow("it holds 2000 tokens");
    expect(server.requests).toHaveLength(0);
    await expect(singleModel(config, "box:m", deps()).call(request())).rejects.toThrow("HTTP 503");
    expect(server.requests).toHaveLength(1);
    await server.stop();
  });

  test.each(["anthropic", "openai", "openai_chat", "google"])(
    "%s keeps to what its models are said to take",
    async (provider) => {
      const entry = {
        baseUrl: "http://127.0.0.1:9/v1",
        models: [{ id: "old:1", contextTokens: 4_096, images: false }],
      };
      const config = folder.load(
        {
          runtime: { model: `${provider}:old:1` },
          providers: { [provider === "openai_chat" ? "openai" : provider]: entry },
        },
        { ANTHROPIC_API_KEY: "k", OPENAI_API_KEY: "k", GEMINI_API_KEY: "k" },
      );
      const configured = configuredModel(config, deps());
      const long = request({ messages: [{ role: "user", content: "word".repeat(6_000) }] });
      await expect(configured.call(long)).rejects.toThrow("it holds 4096 tokens");
      await expect(configured.call(picture())).rejects.toThrow("does not take such input (images)");
      expect(takesImages(config, `${provider}:old:1`)).toBe(false);
      expect(takesImages(config, `${provider}:another`)).toBe(true);
    },
  );

  test.each([
    ["ollama", undefined],
    ["lmstudio", undefined],
    ["ollama", { id: "box", type: "ollama" }],
    ["openai_compat", { id: "box", type: "openai_compat" }],
  ])("a single model of %s gets an image, whatever its entry %j says of it", async (provider, entry) => {
    const config = folder.load({
      runtime: { model: "demo:a" },
      providers: { local: entry === undefined ? [] : [{ ...entry, baseUrl: "http://127.0.0.1:9/v1" }] },
    });
    const sent: unknown[] = [];
    const model = singleModel(config, `${provider}:seer`, {
      ...deps(),
      fetch: (input, init) => {
        sent.push(String(input), String(init?.body));
        const headers = { "content-type": "text/event-stream" };
        return Promise.resolve(new Response(WIRE.compatible.text(["red"]).join(""), { headers }));
      },
    });
    expect((await model.call(picture())).text).toBe("red");
    expect(sent[0]).toMatch(entry === undefined ? /:(11434|1234)\/v1\// : /:9\/v1\//);
    expect(sent[1]).toContain("image_url");
  });
});
