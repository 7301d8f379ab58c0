import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { McpServerSpec } from "../../src/core/mcp-servers.ts";
import type { ToolHost, ToolSession } from "../../src/core/ports/tools.ts";
import { freePort, until } from "../support/binary.ts";
import { never, sessionRequest, toolHost } from "../support/mcp-host.ts";

/** Servers from npm that nobody here wrote, run from node_modules without a network. */

const MODULES = join(import.meta.dir, "../../node_modules/@modelcontextprotocol");
const entry = (name: string) => join(MODULES, name, "dist/index.js");
const stdio = (name: string, args: string[] = [], env: Record<string, string> = {}): McpServerSpec => ({
  command: process.execPath,
  args: [entry(name), ...args],
  env,
});

let folder: string;
beforeAll(() => {
  // The real path: the filesystem server compares paths after links.
  folder = mkdtempSync(join(tmpdir(), "mono-agent-real-"));
  mkdirSync(join(folder, "files"));
  writeFileSync(join(folder, "files", "hello.txt"), "hello from a file\n");
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

async function withSession(
  servers: Record<string, McpServerSpec>,
  work: (session: ToolSession) => Promise<void>,
) {
  const host: ToolHost = toolHost(servers);
  try {
    const session = await host.open(sessionRequest());
    expect(session.warnings).toEqual([]);
    await work(session);
    await session.close();
  } finally {
    await host.close();
  }
}

/** What the server with everything does, whatever carries it. */
async function everything(session: ToolSession): Promise<void> {
  const call = (name: string, input: Record<string, string | number> = {}) =>
    session.call(name, input, never);
  const names = session.tools.map(({ name }) => name);
  expect(names).toContain("echo");
  // It offers these only to clients that can be asked.
  expect(names.filter((name) => name.includes("elicitation") && !name.includes("url"))).toEqual([]);
  expect(await call("echo", { message: "hi" })).toEqual({ isError: false, text: "Echo: hi" });
  expect((await call("get-sum", { a: 2, b: 40 })).text).toContain("42");
  expect((await call("get-sum", { a: 2 })).isError).toBe(true);
  const tiny = await call("get-tiny-image");
  expect(tiny.text).toMatch(/\[image: image\/png, [0-9]+ bytes\]/);
  expect(tiny.images?.map(({ mediaType }) => mediaType)).toEqual(["image/png"]);
  expect((await call("get-structured-content", { location: "Chicago" })).text).toContain("temperature");
  const links = await call("get-resource-links", { count: 2 });
  expect(links.text.match(/\[resource: /g)?.length).toBe(2);
  const embedded = await call("get-resource-reference", { resourceType: "Text", resourceId: 1 });
  expect(embedded.text).toContain("[resource: ");
  const slow = await call("trigger-long-running-operation", { duration: 0.2, steps: 2 });
  expect(slow.text).toContain("completed");
}

describe("server-everything", () => {
  test("over stdio", async () => {
    await withSession({ all: stdio("server-everything", ["stdio"]) }, everything);
  }, 20_000);

  /** Starts it on a port and waits until it listens; `stop` kills it. */
  async function listening(mode: string, port: number) {
    const server = Bun.spawn([process.execPath, entry("server-everything"), mode], {
      env: { ...process.env, PORT: String(port) },
      stdin: "ignore",
      stdout: "ignore",
      stderr: "ignore",
    });
    await until("the server to listen", async () => {
      const probe = await fetch(`http://127.0.0.1:${port}/`).catch(() => undefined);
      await probe?.body?.cancel();
      return probe !== undefined;
    });
    return {
      async stop() {
        server.kill("SIGKILL");
        await server.exited;
      },
    };
  }

  const REMOTE = [
    ["streamableHttp", "http", "/mcp"],
    ["sse", "sse", "/sse"],
  ] as const;

  test.each(REMOTE)(
    "over %s",
    async (mode, type, path) => {
      const port = freePort();
      const server = await listening(mode, port);
      try {
        await withSession({ all: { type, url: `http://127.0.0.1:${port}${path}` } }, everything);
      } finally {
        await server.stop();
      }
    },
    20_000,
  );

  test.each(REMOTE)(
    "over %s that was killed and started again goes on within the run",
    async (mode, type, path) => {
      const port = freePort();
      let server = await listening(mode, port);
      const host = toolHost({ all: { type, url: `http://127.0.0.1:${port}${path}` } });
      try {
        const session = await host.open(sessionRequest());
        const echo = () => session.call("echo", { message: "hi" }, never);
        expect((await echo()).text).toBe("Echo: hi");
        await server.stop();
        server = await listening(mode, port);
        expect(await echo()).toEqual({ isError: false, text: "Echo: hi" });
        expect(await echo()).toEqual({ isError: false, text: "Echo: hi" });
      } finally {
        await host.close();
        await server.stop();
      }
    },
    20_000,
  );
});

test("server-filesystem reads, writes and refuses what lies outside", async () => {
  const root = join(folder, "files");
  await withSession({ files: stdio("server-filesystem", [root]) }, async (session) => {
    const read = await session.call("read_text_file", { path: join(root, "hello.txt") }, never);
    expect(read).toEqual({ isError: false, text: "hello from a file\n" });
    const write = await session.call("write_file", { path: join(root, "new.txt"), content: "x" }, never);
    expect(write.isError).toBe(false);
    expect((await session.call("list_directory", { path: root }, never)).text).toContain("[FILE] new.txt");
    expect((await session.call("read_text_file", { path: "/etc/hostname" }, never)).isError).toBe(true);
  });
}, 20_000);

test("server-memory remembers over the runs that share it", async () => {
  const host = toolHost({
    memory: stdio("server-memory", [], { MEMORY_FILE_PATH: join(folder, "memory.json") }),
  });
  try {
    const first = await host.open(sessionRequest());
    const entities = [{ name: "Ada", entityType: "person", observations: ["likes engines"] }];
    expect((await first.call("create_entities", { entities }, never)).isError).toBe(false);
    await first.close();
    const second = await host.open(sessionRequest());
    expect((await second.call("search_nodes", { query: "Ada" }, never)).text).toContain("likes engines");
    await second.close();
  } finally {
    await host.close();
  }
}, 20_000);

test("allowTools and denyTools keep tools away; a name that matches nothing is told", async () => {
  const root = join(folder, "files");
  const host = toolHost({
    files: {
      ...stdio("server-filesystem", [root]),
      allowTools: ["read_*", "list_directory"],
      denyTools: ["read_file", "delete_everything"],
    },
  });
  try {
    const session = await host.open(sessionRequest());
    const names = session.tools.map(({ name }) => name);
    expect(names).toContain("read_text_file");
    expect(names).toContain("list_directory");
    expect(names).not.toContain("read_file");
    expect(names).not.toContain("write_file");
    expect(session.warnings.map(({ code, message }) => [code, message])).toEqual([
      [
        "mcp_tool_filter_unmatched",
        'files: denyTools names "delete_everything", but the server has no such tool',
      ],
    ]);
    expect(
      (await session.call("write_file", { path: join(root, "no.txt"), content: "" }, never)).isError,
    ).toBe(true);
  } finally {
    await host.close();
  }
}, 20_000);
