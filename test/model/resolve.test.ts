import { describe, expect, test } from "bun:test";
import { ModelError } from "../../src/core/errors.ts";
import { type ModelProvider, modelAddress, resolveModel } from "../../src/model/resolve.ts";

function refusal(name: string, providers: readonly ModelProvider[] = []): ModelError {
  try {
    resolveModel(name, providers);
  } catch (error) {
    if (error instanceof ModelError) return error;
    throw error;
  }
  throw new Error(`${name} was resolved`);
}

describe("which model a name means", () => {
  test("a configured id wins, and the model part keeps its colons", () => {
    const providers: ModelProvider[] = [{ id: "gpu", type: "openai_compat", baseUrl: "http://gpu:8000/v1/" }];
    expect(resolveModel("gpu:qwen:32b", providers)).toEqual({
      kind: "openai_compat",
      provider: "gpu",
      model: "qwen:32b",
      baseUrl: "http://gpu:8000/v1",
    });
  });

  test("ollama and lmstudio work without configuration at their documented addresses", () => {
    expect(resolveModel("ollama:llama3", [])).toMatchObject({ baseUrl: "http://127.0.0.1:11434/v1" });
    expect(resolveModel("lmstudio:phi", [])).toMatchObject({ baseUrl: "http://127.0.0.1:1234/v1" });
  });

  test("a bare host of a local server gets /v1, any other path is kept", () => {
    const at = (baseUrl: string) => [{ id: "o", type: "ollama", baseUrl } as const];
    expect(resolveModel("o:x", at("http://box:11434"))).toMatchObject({ baseUrl: "http://box:11434/v1" });
    expect(resolveModel("o:x", at("http://box:11434/"))).toMatchObject({ baseUrl: "http://box:11434/v1" });
    expect(resolveModel("o:x", at("http://box/api/v1"))).toMatchObject({ baseUrl: "http://box/api/v1" });
  });

  test("openai_compat means the only provider of that type, and is refused when there are two", () => {
    const one: ModelProvider = { id: "a", type: "openai_compat", baseUrl: "http://a/v1" };
    expect(resolveModel("openai_compat:m", [one])).toMatchObject({ baseUrl: "http://a/v1" });
    const error = refusal("openai_compat:m", [one, { ...one, id: "b" }]);
    expect(error.code).toBe("model_unconfigured");
    expect(error.message).toContain("a, b");
  });

  test("what is missing is named", () => {
    expect(refusal("anthropic:claude").message).toContain("ANTHROPIC_API_KEY");
    expect(refusal("openai_compat:m").code).toBe("model_unconfigured");
    expect(refusal("nowhere:m").message).toContain('no provider "nowhere"');
    expect(refusal("a:m", [{ id: "a", type: "openai_compat" }]).message).toContain("baseUrl");
    for (const name of ["", "anthropic", ":m", "demo:"])
      expect(refusal(name).message).toContain("<provider>:<model>");
  });

  test.each([
    ["an inner newline", "sk-canary\n5f1d"],
    ["an invisible character from a web page", "sk-canary\u200b5f1d"],
    ["a non-ASCII letter", "sk-canäry-canary5f1d"],
  ])("a key with %s is refused by the name of its variable, and never shown", (_, apiKey) => {
    const keyed: ModelProvider[] = [
      { id: "anthropic", type: "anthropic", apiKey },
      { id: "openai", type: "openai", apiKey },
      { id: "google", type: "google", apiKey },
      { id: "box", type: "openai_compat", baseUrl: "http://box/v1", apiKey },
    ];
    for (const [name, variable] of [
      ["anthropic:m", "ANTHROPIC_API_KEY"],
      ["openai_chat:m", "OPENAI_API_KEY"],
      ["google:m", "GEMINI_API_KEY"],
      ["box:m", "providers.local[]"],
    ] as const) {
      const error = refusal(name, keyed);
      expect(error.code).toBe("model_unconfigured");
      expect(error.message).toContain(variable);
      expect(error.message).not.toContain("canary");
      expect(error.message).not.toContain("5f1d");
    }
  });

  test("a key with a space is refused for a hosted provider, and is any word for a local one", () => {
    const apiKey = "not needed";
    for (const type of ["anthropic", "openai", "google"] as const) {
      const { message } = refusal(`${type}:m`, [{ id: type, type, apiKey }]);
      expect(message).toContain("holds a character that no key has (a space,");
      expect(message).not.toContain(apiKey);
    }
    for (const type of ["ollama", "lmstudio", "openai_compat"] as const) {
      const local: ModelProvider = { id: "box", type, baseUrl: "http://box/v1", apiKey };
      expect(resolveModel("box:m", [local])).toMatchObject({ apiKey });
    }
  });
});

test("the address of a model is shown without what may be secret in it", () => {
  const at = (baseUrl: string) =>
    modelAddress("box:m", [{ id: "box", type: "openai_compat", baseUrl, apiKey: "k" }]);
  expect(at("https://user:password@box.example:8443/v1/?key=secret#part")).toBe(
    "https://box.example:8443/v1/",
  );
  expect(at("http://127.0.0.1:8000")).toBe("http://127.0.0.1:8000");
  expect(modelAddress("demo:any", [])).toBeUndefined();
});
