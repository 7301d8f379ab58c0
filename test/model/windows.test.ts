import { describe, expect, test } from "bun:test";
import { inputsOf } from "../../src/model/inputs.ts";
import { resolveModel } from "../../src/model/resolve.ts";
import { failure, modelAt, providersAt, request } from "../support/model-rig.ts";

function windowOf(name: string): number | undefined {
  return inputsOf(resolveModel(name, providersAt("http://127.0.0.1:1"))).contextTokens;
}

describe("the window of a hosted model", () => {
  test.each([
    ["openai:gpt-3.5-turbo", 16_385],
    ["openai_chat:gpt-3.5-turbo-0125", 16_385],
    ["openai_chat:ft:gpt-3.5-turbo-0125:acme::abc", 16_385],
    ["openai:gpt-4", 8_192],
    ["openai_chat:gpt-4-0613", 8_192],
    ["openai_chat:gpt-4-32k", 32_768],
    ["openai:gpt-4-turbo-2024-04-09", 128_000],
    ["openai:gpt-4-1106-preview", 128_000],
    ["openai:gpt-4o-mini", 128_000],
    ["openai:gpt-4.1-nano", 1_000_000],
    ["openai:ft:gpt-4.1-mini-2025-04-14:acme::abc", 1_000_000],
    ["openai:o1-mini", 128_000],
    ["openai:o3", 200_000],
    ["openai:o4-mini-2025-04-16", 200_000],
    ["openai:gpt-5", 272_000],
    ["openai:gpt-5.2-codex", 272_000],
    ["openai:gpt-5-chat-latest", 128_000],
    ["openai:gpt-5.3-chat-latest", 128_000],
    ["openai:a-model-of-later", 128_000],
    ["anthropic:claude-sonnet-4-5", 200_000],
    ["anthropic:a-model-of-later", 200_000],
    ["google:gemini-2.5-pro", 1_000_000],
    ["google:models/gemini-3-pro-preview", 1_000_000],
    ["google:gemini-2.5-flash-image", 32_768],
    ["google:gemini-3-pro-image-preview", 65_536],
    ["google:gemini-2.5-computer-use-preview-10-2025", 128_000],
    ["google:gemma-3-27b-it", 128_000],
    ["google:gemma-3n-e4b-it", 32_768],
    ["google:models/gemma-3-1b-it", 32_768],
  ])("%s is %i tokens", (name, tokens) => {
    expect(windowOf(name)).toBe(tokens);
  });

  test("of an old model refuses what a new one takes, before anything is sent", async () => {
    const messages = [{ role: "user" as const, content: "word ".repeat(8_000) }];
    const call = modelAt("http://127.0.0.1:1", "chat", { name: "openai_chat:gpt-4" }).call(
      request({ messages }),
    );
    expect((await failure(call)).message).toMatch(/8192 tokens; the message to answer has about 100/);
  });

  test("is what the configuration says where it says something", () => {
    const providers = providersAt("http://127.0.0.1:1").map((each) => ({
      ...each,
      models: [{ id: "gpt-4", contextTokens: 50_000 }],
    }));
    expect(inputsOf(resolveModel("openai:gpt-4", providers)).contextTokens).toBe(50_000);
  });
});
