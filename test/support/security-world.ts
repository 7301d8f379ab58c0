import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { operatorToken } from "../../src/core/derive.ts";
import { CLAIM_ENV } from "../../src/core/mcp-servers.ts";
import type { ConversationEvent, Message } from "../../src/core/turn.ts";
import type { ClaimAnswer } from "../../src/core/wire.ts";
import { loadConfig, type MonoAgentApp, startMonoAgent } from "../../src/index.ts";
import { freePort } from "./binary.ts";
import { afterTool, type ModelServer, modelBlocks, startModelServer } from "./model-server.ts";
import { createRecordingLogger } from "./silent-logger.ts";

/** A real host in this process with two selected tool servers and one that is not, a scripted model, and every token. */

export const SERVICE_TOKEN = "canary-detached-5f0c2d7e9b1a";
export const API_KEY = "canary-api-key-77aa01";
export const MCP_SECRET = "canary-mcp-env-31bd9c";
export const SERVERS = ["alpha", "beta", "gamma"] as const;

export interface ToolReport {
  readonly server: string;
  readonly env: Readonly<Record<string, string>>;
  readonly params: { readonly name: string; readonly arguments?: Record<string, unknown> };
}

export interface Capability {
  readonly url: string;
  readonly token: string;
  readonly fingerprint: string;
  readonly mode: string;
}

export interface SecurityWorld {
  readonly path: string;
  readonly ports: { readonly continuations: number; readonly terminal: number };
  readonly model: ModelServer;
  readonly logger: ReturnType<typeof createRecordingLogger>;
  readonly app: MonoAgentApp;
  readonly reports: ToolReport[];
  /** What the tool answers; the run goes on when it resolves. */
  onReport: (report: ToolReport) => Promise<string> | string;
  /** What the model calls, given the person's text `use <server>`; the arguments of the call. */
  toolInput: Record<string, unknown>;
  /** What the synthesis answers. */
  synthesis: string;
  send(
    port: number,
    method: string,
    path: string,
    token: string | undefined,
    body?: unknown,
    more?: object,
  ): Promise<Response>;
  /** Of the continuation port. */
  call(
    method: string,
    path: string,
    token: string | undefined,
    body?: unknown,
    more?: object,
  ): Promise<Response>;
  claim(token: string, taskKey: string): Promise<Response>;
  detached(token: string, taskKey: string, route?: string, service?: string): Promise<Response>;
  submit(claimed: ClaimAnswer, payload: unknown): Promise<Response>;
  /** Asks in a terminal conversation and waits for the turn's answer. */
  ask(text: string, conversation?: string): Promise<Message>;
  messages(conversation?: string): Promise<Message[]>;
  operator(): string;
  terminal(): string;
  secret(): string;
  remove(): Promise<void>;
}

export function capabilityOf(report: ToolReport): Capability | undefined {
  const token = report.env[CLAIM_ENV.token];
  if (token === undefined || token === "") return undefined;
  return {
    url: report.env[CLAIM_ENV.url] ?? "",
    token,
    fingerprint: report.env[CLAIM_ENV.fingerprint] ?? "",
    mode: report.env[CLAIM_ENV.mode] ?? "",
  };
}

/** One for the whole process, so that a repeated claim is the same claim. */
const IN_AN_HOUR = new Date(Date.now() + 3_600_000).toISOString();
export const inAnHour = () => IN_AN_HOUR;

/** Blocks of a configuration beside the ports and the model. `tools` is left out where no run needs one. */
export function securityBlocks(withTools: boolean) {
  return {
    context: { identityPath: "identity.md" },
    ...(withTools ? { tools: { mcpConfigPath: "mcp.json", continuationServers: ["alpha", "beta"] } } : {}),
    continuations: {
      namedRoutes: {
        keep: { mode: "capture", conversationId: "terminal:kept-place" },
        tell: { mode: "notify_if_actionable", conversationId: "terminal:told-place" },
        quiet: { mode: "silent" },
      },
      detachedServices: [
        { name: "ops", tokenEnv: "OPS_TOKEN" },
        { name: "other", tokenEnv: "OTHER_TOKEN" },
      ],
    },
  };
}

export const SECURITY_ENV = {
  PATH: process.env.PATH ?? "",
  OPS_TOKEN: SERVICE_TOKEN,
  OTHER_TOKEN: "another-services-token-0123",
  BOX_KEY: API_KEY,
};

async function firstMessage(
  stream: ReadableStream<Uint8Array>,
  wanted: (message: Message) => boolean,
): Promise<Message> {
  let text = "";
  const decoder = new TextDecoder();
  for await (const piece of stream) {
    text += decoder.decode(piece, { stream: true });
    const blocks = text.split("\n\n");
    text = blocks.pop() ?? "";
    for (const block of blocks) {
      const data = /^data: (.*)$/m.exec(block)?.[1];
      const event = data === undefined ? undefined : (JSON.parse(data) as ConversationEvent);
      if (event?.type === "message" && wanted(event.message)) return event.message;
    }
  }
  throw new Error("the event stream ended");
}

export async function securityWorld(options: { withTools?: boolean } = {}): Promise<SecurityWorld> {
  const path = mkdtempSync(join(tmpdir(), "mono-agent-security-"));
  const ports = { continuations: freePort(), terminal: freePort() };
  const model = startModelServer();
  const logger = createRecordingLogger();
  const reports: ToolReport[] = [];
  const receiver = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    async fetch(request) {
      const report = (await request.json()) as ToolReport;
      reports.push(report);
      return new Response(await world.onReport(report));
    },
  });
  const blocks = securityBlocks(options.withTools ?? true);
  const provider = modelBlocks(model);
  const write = (name: string, content: unknown) =>
    writeFileSync(join(path, name), typeof content === "string" ? content : JSON.stringify(content));
  write("identity.md", "You are a test agent.");
  write("mcp.json", {
    mcpServers: Object.fromEntries(
      SERVERS.map((name) => [
        name,
        {
          command: process.execPath,
          args: [join(import.meta.dir, "security-tool-server.ts"), name],
          env: { REPORT_URL: `http://127.0.0.1:${receiver.port}/`, MCP_SECRET },
        },
      ]),
    ),
  });
  write("mono-agent.config.json", {
    ...blocks,
    runtime: provider.runtime,
    providers: { local: [{ ...(provider.providers as { local: object[] }).local[0], apiKeyEnv: "BOX_KEY" }] },
    continuations: { ...blocks.continuations, port: ports.continuations },
    terminal: { port: ports.terminal },
  });
  const config = loadConfig({ cwd: path, env: SECURITY_ENV });
  const file = (name: string) => readFileSync(join(path, ".mono-agent", name), "utf8").trim();

  const world: SecurityWorld = {
    path,
    ports,
    model,
    logger,
    reports,
    app: await startMonoAgent({ config, logger, env: SECURITY_ENV }),
    onReport: () => "seen",
    toolInput: {},
    synthesis: "the synthesized answer",
    send: (port, method, route, token, body, more = {}) =>
      fetch(`http://127.0.0.1:${port}${route}`, {
        method,
        headers: { ...(token === undefined ? {} : { authorization: `Bearer ${token}` }), ...more },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      }),
    call: (...args) => world.send(ports.continuations, ...args),
    claim: (token, taskKey) =>
      world.call("POST", "/v1/continuations/claim", token, { taskKey, taskHash: "h", deadline: inAnHour() }),
    detached: (token, taskKey, route = "keep", service = "ops") =>
      world.call(
        "POST",
        "/v1/continuations/detached/claim",
        token,
        { route, taskKey, taskHash: "h", deadline: inAnHour() },
        { "x-mono-agent-service-name": service },
      ),
    submit: (claimed, payload) =>
      world.call("PUT", new URL(claimed.resultUrl).pathname, claimed.token, { idempotencyKey: "k", payload }),
    async ask(text, conversation = "main") {
      const route = `/v1/terminal/conversations/${conversation}`;
      const observer = new AbortController();
      const events = await fetch(`http://127.0.0.1:${ports.terminal}${route}/events`, {
        headers: { authorization: `Bearer ${world.terminal()}` },
        signal: observer.signal,
      });
      const asked = await world.send(ports.terminal, "POST", `${route}/turns`, world.terminal(), {
        requestId: crypto.randomUUID(),
        text,
      });
      if (asked.status !== 202 || events.body === null) throw new Error(await asked.text());
      const { turnId } = (await asked.json()) as { turnId: string };
      try {
        return await firstMessage(events.body, (row) => row.turnId === turnId && row.role !== "user");
      } finally {
        observer.abort();
      }
    },
    async messages(conversation = "main") {
      const route = `/v1/terminal/conversations/${conversation}/messages?limit=500`;
      const response = await world.send(ports.terminal, "GET", route, world.terminal());
      return ((await response.json()) as { messages: Message[] }).messages;
    },
    operator: () => operatorToken(Buffer.from(world.secret(), "base64url")),
    terminal: () => file("terminal-token"),
    secret: () => file("continuations/continuation-secret"),
    async remove() {
      await world.app.stop();
      await model.stop();
      await receiver.stop(true);
      rmSync(path, { recursive: true, force: true });
    },
  };
  model.reply = (request) => {
    const last = String(request.messages.at(-1)?.content ?? "");
    const server = /^use (\w+)/.exec(last)?.[1];
    if (request.tools.length === 0) return { text: world.synthesis };
    if (server === undefined || afterTool(request)) return { text: "the turn's answer" };
    return { tool: `report_${server}`, input: world.toolInput };
  };
  return world;
}
