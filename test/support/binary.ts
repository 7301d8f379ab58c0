import {
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { operatorToken } from "../../src/core/derive.ts";
import type { Message } from "../../src/core/turn.ts";
import type { ContinuationDetail, ContinuationHealth, ListAnswer } from "../../src/core/wire.ts";

/** The built binary in an empty folder, with real processes; everything that is started here is ended here. */

export const BINARY = join(import.meta.dir, "../../dist/mono-agent");
const WAIT_MS = 15_000;

export interface Ran {
  readonly code: number;
  readonly out: string;
  readonly err: string;
}

export interface Host {
  readonly pid: number;
  kill(signal?: "SIGKILL" | "SIGTERM"): Promise<number | null>;
}

export interface AgentFolder {
  readonly path: string;
  readonly ports: { readonly continuations: number; readonly terminal: number };
  run(args: string[], options?: { env?: Record<string, string>; stdin?: string; cwd?: string }): Promise<Ran>;
  /** Starts `serve` (or another command that starts a host) and waits until the terminal answers. */
  serve(options?: { env?: Record<string, string>; command?: string[] }): Promise<Host>;
  write(name: string, content: unknown): void;
  terminal(path: string, init?: RequestInit): Promise<Response>;
  operator(path: string, init?: RequestInit): Promise<Response>;
  ask(text: string, requestId?: string): Promise<void>;
  messages(): Promise<Message[]>;
  list(): Promise<ListAnswer["continuations"]>;
  show(id: string): Promise<ContinuationDetail>;
  health(): Promise<ContinuationHealth>;
  /** Waits for a continuation that satisfies the condition. */
  continuation(wanted: (record: ContinuationDetail) => boolean): Promise<ContinuationDetail>;
  remove(): Promise<void>;
}

export async function until<T>(what: string, probe: () => Promise<T | undefined | false>): Promise<T> {
  const deadline = performance.now() + WAIT_MS;
  for (;;) {
    const value = await probe();
    if (value !== undefined && value !== false) return value;
    if (performance.now() > deadline) throw new Error(`waited ${WAIT_MS} ms for ${what}`);
    await new Promise((resolve) => setImmediate(resolve));
  }
}

export function freePort(): number {
  for (;;) {
    const probe = Bun.serve({ hostname: "127.0.0.1", port: 0, fetch: () => new Response(null) });
    const port = probe.port ?? 0;
    void probe.stop(true);
    if (given.has(port)) continue;
    given.add(port);
    return port;
  }
}

/** The system may give a port again that was only probed, and two listeners of one test need two. */
const given = new Set<number>();

/** Blocks of a configuration that runs with the given model; ports are free ones. */
export function agentFolder(blocks: Record<string, unknown> = {}): AgentFolder {
  const path = mkdtempSync(join(tmpdir(), "mono-agent-e2e-"));
  const ports = { continuations: freePort(), terminal: freePort() };
  const hosts = new Set<Bun.Subprocess>();
  const write = (name: string, content: unknown) =>
    writeFileSync(join(path, name), typeof content === "string" ? content : JSON.stringify(content));

  write("identity.md", "You are a test agent.");
  write("mcp.json", {
    mcpServers: { "work-control": { command: BINARY, args: ["example", "work-control"] } },
  });
  write("mono-agent.config.json", {
    runtime: { model: "demo:assistant" },
    context: { identityPath: "identity.md" },
    tools: { mcpConfigPath: "mcp.json", continuationServers: ["work-control"] },
    continuations: { port: ports.continuations },
    terminal: { port: ports.terminal },
    ...blocks,
  });

  const environment = (extra: Record<string, string> = {}) => ({
    PATH: process.env.PATH ?? "",
    HOME: path,
    ...extra,
  });
  const stateFile = (name: string) => join(path, ".mono-agent", name);
  const text = (name: string) => readFileSync(stateFile(name), "utf8").trim();

  const folder: AgentFolder = {
    path,
    ports,
    write,
    async run(args, options = {}) {
      const child = Bun.spawn([BINARY, ...args], {
        cwd: options.cwd ?? path,
        env: environment(options.env),
        stdin: options.stdin === undefined ? "ignore" : new Blob([options.stdin]),
        stdout: "pipe",
        stderr: "pipe",
      });
      const [out, err, code] = await Promise.all([
        new Response(child.stdout).text(),
        new Response(child.stderr).text(),
        child.exited,
      ]);
      return { code, out, err };
    },
    async serve(options = {}) {
      const child = Bun.spawn(options.command ?? [BINARY, "serve"], {
        cwd: path,
        env: environment(options.env),
        stdin: "ignore",
        stdout: "ignore",
        stderr: Bun.file(join(path, "serve.log")),
      });
      hosts.add(child);
      await until("the host to be up", async () => {
        if (child.exitCode !== null) {
          throw new Error(
            `serve ended with ${child.exitCode}: ${readFileSync(join(path, "serve.log"), "utf8")}`,
          );
        }
        if (!existsSync(stateFile("terminal-token"))) return false;
        try {
          return (await folder.terminal("/health")).ok;
        } catch {
          return false;
        }
      });
      return {
        pid: child.pid,
        async kill(signal = "SIGKILL") {
          child.kill(signal);
          await child.exited;
          hosts.delete(child);
          return child.exitCode;
        },
      };
    },
    terminal: (route, init = {}) =>
      fetch(`http://127.0.0.1:${ports.terminal}/v1/terminal${route}`, {
        ...init,
        headers: { authorization: `Bearer ${text("terminal-token")}`, ...(init.headers as object) },
      }),
    operator: (route, init = {}) => {
      const secret = Buffer.from(text("continuations/continuation-secret"), "base64url");
      return fetch(`http://127.0.0.1:${ports.continuations}/v1/operator${route}`, {
        ...init,
        headers: { authorization: `Bearer ${operatorToken(secret)}`, ...(init.headers as object) },
      });
    },
    async ask(question, requestId = crypto.randomUUID()) {
      const response = await folder.terminal("/conversations/main/turns", {
        method: "POST",
        body: JSON.stringify({ requestId, text: question }),
      });
      if (response.status !== 202) throw new Error(`turn refused: ${await response.text()}`);
    },
    async messages() {
      const answer = (await (await folder.terminal("/conversations/main/messages?limit=500")).json()) as {
        messages: Message[];
      };
      return answer.messages;
    },
    async list() {
      return ((await (await folder.operator("/continuations")).json()) as ListAnswer).continuations;
    },
    async show(id) {
      return (await (await folder.operator(`/continuations/${id}`)).json()) as ContinuationDetail;
    },
    async health() {
      return (await (await folder.operator("/health")).json()) as ContinuationHealth;
    },
    continuation: (wanted) =>
      until("the continuation", async () => {
        for (const { continuationId } of await folder.list()) {
          const detail = await folder.show(continuationId);
          if (wanted(detail)) return detail;
        }
        return undefined;
      }),
    async remove() {
      for (const child of hosts) {
        child.kill("SIGKILL");
        await child.exited;
      }
      rmSync(path, { recursive: true, force: true });
    },
  };
  return folder;
}

/** Processes whose working folder is this one (Linux). */
export function processesIn(path: string): number[] {
  return readdirSync("/proc")
    .filter((name) => /^[0-9]+$/.test(name))
    .filter((pid) => {
      try {
        return readlinkSync(`/proc/${pid}/cwd`) === path;
      } catch {
        return false;
      }
    })
    .map(Number);
}
