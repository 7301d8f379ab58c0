import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { type LoadedConfig, loadConfig } from "../../src/config/load.ts";
import { ConfigError, type ConfigProblem } from "../../src/core/errors.ts";

/** A temporary agent folder with a minimal valid configuration, and what loading it says. */

export interface ConfigFolder {
  readonly path: string;
  write(name: string, content: unknown): void;
  /** Writes the blocks over the minimal ones and loads them. */
  load(blocks: Record<string, unknown>, env?: Record<string, string>): LoadedConfig;
  /** The problems of the blocks, as `path: message`. */
  problems(blocks: Record<string, unknown>, env?: Record<string, string>): string[];
  problemList(blocks: Record<string, unknown>, env?: Record<string, string>): readonly ConfigProblem[];
  remove(): void;
}

export const MINIMAL = { runtime: { model: "demo:assistant" }, context: { identityPath: "identity.md" } };

export function configFolder(): ConfigFolder {
  const path = mkdtempSync(join(tmpdir(), "mono-agent-config-"));
  const write = (name: string, content: unknown) => {
    mkdirSync(dirname(join(path, name)), { recursive: true });
    writeFileSync(join(path, name), typeof content === "string" ? content : JSON.stringify(content));
  };
  write("identity.md", "You are a test.");
  write("mcp.json", {
    mcpServers: {
      "work-control": { command: "work-control", env: { TOKEN: "mcp-env-secret" } },
      local_http: {
        type: "http",
        url: "http://127.0.0.1:9/mcp",
        headers: { authorization: "mcp-header-secret" },
      },
      remote: { url: "https://example.com/mcp" },
      sse: { type: "sse", url: "http://localhost:9/sse" },
      both: { command: "x", url: "http://localhost:9/mcp" },
    },
  });
  const load: ConfigFolder["load"] = (blocks, env = {}) => {
    write("mono-agent.config.json", { ...MINIMAL, ...blocks });
    return loadConfig({ cwd: path, env });
  };
  const problemList: ConfigFolder["problemList"] = (blocks, env = {}) => {
    try {
      load(blocks, env);
      return [];
    } catch (error) {
      if (error instanceof ConfigError) return error.problems;
      throw error;
    }
  };
  return {
    path,
    write,
    load,
    problemList,
    problems: (blocks, env) => problemList(blocks, env).map(({ path: at, message }) => `${at}: ${message}`),
    remove: () => rmSync(path, { recursive: true, force: true }),
  };
}
