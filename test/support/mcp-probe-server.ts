/**
 * A stdio MCP server that shows what it was given and can misbehave. Modes (first argument):
 * `plain`, `stubborn` (ignores end of input and SIGTERM, and so does a helper it starts), `dies` (exits before it
 * answers), `wrapper` (ends at SIGTERM only, its helper not even then), `helped` (starts a helper that outlives it), `nolist` (its tools/list is an error), `mute` (reads and never answers), `old` (speaks the first protocol only).
 * `VERSION` in its environment is the version that it tells; `evolve` changes the schema of `echo`, the second time only its `readOnlyHint`; `ask` asks a person.
 */
import { createHash } from "node:crypto";
import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import {
  CallToolRequestSchema,
  ElicitResultSchema,
  InitializeRequestSchema,
  ListToolsRequestSchema,
} from "@modelcontextprotocol/sdk/types.js";

const mode = process.argv[2] ?? "plain";
if (mode === "dies") {
  console.error("cannot start");
  process.exit(3);
}
if (mode === "stubborn" || mode === "wrapper") {
  process.on("SIGTERM", () => {
    if (mode === "wrapper") process.exit(0);
  });
  Bun.spawn(["sh", "-c", "trap '' TERM; while :; do sleep 1; done"], { stdout: "inherit" });
  setInterval(() => {}, 1000);
}
if (mode === "helped") Bun.spawn(["sleep", "600"], { stdout: "inherit" });
if (mode === "mute") setInterval(() => {}, 1000);

const server = new Server(
  { name: "probe", version: process.env.VERSION ?? "1" },
  { capabilities: { tools: { listChanged: true } } },
);
const inputSchema = { type: "object" as const };
const pages = [
  ["echo", "env", "slow"],
  ["steady", "stray.name", "picture"],
  ["refuse", "crash", "leak"],
  ...(process.env.MORE === undefined ? [] : [["evolve", "ask", "context", "fail"]]),
];
let evolved = 0;

if (mode === "old") {
  server.setRequestHandler(InitializeRequestSchema, () => ({
    protocolVersion: "2024-10-07",
    capabilities: { tools: {} },
    serverInfo: { name: "old probe", version: "0" },
  }));
}

server.setRequestHandler(ListToolsRequestSchema, ({ params }) => {
  if (mode === "nolist") throw new Error("no list today");
  const page = Number(params?.cursor ?? "0");
  return {
    tools: (pages[page] ?? []).map((name) => ({
      name,
      description: `does ${name}`,
      ...(name === "echo" ? { annotations: { readOnlyHint: evolved < 2 } } : {}),
      inputSchema:
        name === "echo" && evolved > 0 ? { ...inputSchema, properties: { evolved: {} } } : inputSchema,
    })),
    ...(page + 1 < pages.length ? { nextCursor: String(page + 1) } : {}),
  };
});

const text = (value: string, isError = false) => ({
  content: [{ type: "text" as const, text: value }],
  isError,
});

server.setRequestHandler(CallToolRequestSchema, async ({ params }, extra) => {
  switch (params.name) {
    case "echo":
      return text(JSON.stringify(params.arguments));
    case "env": {
      // By digest: the host takes its token out of every result.
      const seen = Object.entries(process.env)
        .filter(([name]) => name.toUpperCase().startsWith("MONO_AGENT_CONTINUATION"))
        .map(([name, value]) => [
          name,
          value === ""
            ? ""
            : createHash("sha256")
                .update(value ?? "")
                .digest("hex"),
        ]);
      const { OWN: own } = process.env;
      return text(
        JSON.stringify({ seen: Object.fromEntries(seen), own, pid: process.pid, cwd: process.cwd() }),
      );
    }
    case "slow":
      await new Promise<void>((resolve) => extra.signal.addEventListener("abort", () => resolve()));
      console.error("slow was cancelled");
      return text("never read");
    case "steady": {
      const progressToken = extra._meta?.progressToken ?? "";
      for (let progress = 1; progress <= 15; progress += 1) {
        await Bun.sleep(100);
        await extra.sendNotification({
          method: "notifications/progress",
          params: { progressToken, progress },
        });
      }
      return text("finished");
    }
    case "evolve":
      evolved += 1;
      await extra.sendNotification({ method: "notifications/tools/list_changed" });
      return text("evolved");
    case "ask": {
      const request = {
        method: "elicitation/create" as const,
        params: { message: "your name?", requestedSchema: { type: "object" as const, properties: {} } },
      };
      const answer = await extra.sendRequest(request, ElicitResultSchema);
      return text(`the answer: ${answer.action}`);
    }
    case "context": {
      const names = Object.keys(process.env).filter((name) => /^MONO_AGENT_(MCP|INTERACTION)_/.test(name));
      return text(JSON.stringify(Object.fromEntries(names.map((name) => [name, process.env[name]]))));
    }
    case "picture":
      return {
        content: [
          { type: "text", text: "see" },
          { type: "image", data: btoa("12345"), mimeType: "image/png" },
        ],
      };
    case "crash":
      process.exit(4);
      break;
    case "leak":
      console.error(`my arguments are ${process.argv.slice(2).join(" ")}`);
      console.error(`my token is ${process.env.MONO_AGENT_CONTINUATION_CLAIM_TOKEN} and ${process.env.OWN}`);
      return text(
        `${params.arguments?.before ?? ""}token ${process.env.MONO_AGENT_CONTINUATION_CLAIM_TOKEN}${params.arguments?.after ?? ""}`,
      );
    case "refuse":
      return text("it can't be done", true);
  }
  const { message = "no such tool here" } = params.arguments ?? {};
  throw Object.assign(new Error(String(message)), { code: -32602 });
});

if (mode === "mute") process.stdin.resume();
else await server.connect(new StdioServerTransport());
