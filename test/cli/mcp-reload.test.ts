import { afterEach, beforeEach, expect, test } from "bun:test";
import { join } from "node:path";
import { freePort, until } from "../support/binary.ts";
import { cliRun } from "../support/cli-run.ts";
import { type ConfigFolder, configFolder, MINIMAL } from "../support/config-folder.ts";
import { PROBE, script } from "../support/mcp-host.ts";

let folder: ConfigFolder;
beforeEach(() => {
  folder = configFolder();
});
afterEach(() => folder.remove());

test.each(["continuationServers", "mcpRequestContextServers"])(
  "a SIGHUP is refused when tools.%s has changed, and heeded when only servers have",
  async (key) => {
    const ports = { terminal: freePort(), continuations: freePort() };
    const configure = (selected: string[], probe: object) => {
      folder.write("mcp.json", { mcpServers: { probe } });
      folder.write("mono-agent.config.json", {
        ...MINIMAL,
        terminal: { port: ports.terminal },
        continuations: { port: ports.continuations },
        tools: { mcpConfigPath: "mcp.json", [key]: selected },
      });
    };
    configure(["probe"], script(PROBE));
    let err = "";
    let reload: (() => void) | undefined;
    let stop = () => {};
    const serving = cliRun(folder.path, ["serve"], {
      env: { PATH: process.env.PATH },
      self: [process.execPath, join(import.meta.dir, "../../src/main.ts")],
      err: (text) => {
        err += text;
      },
      onReload: (heed) => {
        reload = heed;
        return () => {};
      },
      onStop: (heed) => {
        stop = heed;
        return () => {};
      },
    });
    await Promise.race([serving, until("the host", async () => reload !== undefined)]);
    configure(["probe"], script(PROBE, ["plain"]));
    reload?.();
    expect(err).toContain("mcp.json was read again");
    expect(err).not.toContain("was not read again");
    configure([], { url: "https://example.com/mcp" });
    reload?.();
    expect(err).toContain("mcp.json was not read again; the servers stay as they are");
    expect(err).toContain(`tools.${key} has changed; a restart is needed`);
    stop();
    expect((await serving).code).toBe(0);
  },
);
