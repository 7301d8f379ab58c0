import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { sha256Hex } from "../../src/core/digest.ts";
import { callMcpTool } from "../../src/host/mcp-operator.ts";
import { createClock } from "../../src/platform/clock.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { createIds } from "../../src/platform/ids.ts";
import { type ConfigFolder, configFolder } from "../support/config-folder.ts";
import { never, PROBE, script } from "../support/mcp-host.ts";
import { silentLogger } from "../support/silent-logger.ts";

let folder: ConfigFolder;
beforeAll(() => {
  folder = configFolder();
});
afterAll(() => folder.remove());

const TOKEN = "MONO_AGENT_CONTINUATION_OPS_TOKEN";
const env = { ...process.env, [TOKEN]: "service-token-canary" };
const deps = {
  env,
  clock: createClock(),
  ids: createIds(),
  fs: createFileSystem(),
  logger: silentLogger,
  guardCommand: undefined,
};

describe("a call by a person", () => {
  test("gives the token of a detached service to selected servers only, as a run does", async () => {
    folder.write("mcp.json", { mcpServers: { work: script(PROBE), other: script(PROBE) } });
    const config = folder.load(
      {
        tools: { mcpConfigPath: "mcp.json", continuationServers: ["work"] },
        continuations: { detachedServices: [{ name: "ops", tokenEnv: TOKEN }] },
      },
      { [TOKEN]: env[TOKEN] },
    );
    const seenBy = async (server: string) => {
      const { text } = await callMcpTool(config, deps, { server, tool: "env", input: {}, signal: never });
      return (JSON.parse(text) as { seen: Record<string, string> }).seen;
    };
    expect((await seenBy("work"))[TOKEN]).toBe(sha256Hex(env[TOKEN]));
    expect(Object.keys(await seenBy("other"))).not.toContain(TOKEN);
  }, 15_000);
});
