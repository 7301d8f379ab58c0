import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { readAttachment } from "../../src/cli/chat/attach.ts";
import { createChatClient } from "../../src/cli/chat/client.ts";
import { pipedChat } from "../../src/cli/chat/piped.ts";
import { loadConfig, type MonoAgentApp, startMonoAgent } from "../../src/index.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { createIds } from "../../src/platform/ids.ts";
import { freePort } from "../support/binary.ts";
import { WIRE } from "../support/model-rig.ts";
import { startWireServer, type WireServer } from "../support/model-wire.ts";
import { silentLogger } from "../support/silent-logger.ts";

/** From a person's file to the provider's wire and into the history, through a whole host. */

let path: string;
let app: MonoAgentApp | undefined;
let server: WireServer | undefined;
beforeEach(() => {
  path = mkdtempSync(join(tmpdir(), "mono-agent-attach-"));
  writeFileSync(join(path, "identity.md"), "You are a test.");
});
afterEach(async () => {
  await app?.stop();
  await server?.stop();
  app = undefined;
  rmSync(path, { recursive: true, force: true });
});

const PNG = Buffer.from([137, 80, 78, 71, 13, 10, 26, 10, 1, 2, 3]);

/** Two lines of a piped chat, with a file at the first. */
async function chat(facts: object, name: string, data: Buffer) {
  server = startWireServer({ events: WIRE.compatible.text(["seen"]), after: "end" });
  const local = [
    { id: "box", type: "openai_compat", baseUrl: `${server.url}/v1`, models: [{ id: "m", ...facts }] },
  ];
  writeFileSync(
    join(path, "mono-agent.config.json"),
    JSON.stringify({
      runtime: { model: "box:m" },
      context: { identityPath: "identity.md" },
      providers: { local },
      terminal: { port: freePort() },
    }),
  );
  const config = loadConfig({ cwd: path, env: {} });
  app = await startMonoAgent({ config, logger: silentLogger });
  const token = readFileSync(join(config.host.stateDir, "terminal-token"), "utf8").trim();
  const address = app.addresses.terminal;
  if (address === undefined) throw new Error("the terminal is off");
  writeFileSync(join(path, name), data);
  const out: string[] = [];
  const err: string[] = [];
  const code = await pipedChat({
    client: createChatClient({ address, conversation: "main", token, program: "mono-agent" }),
    attached: [readAttachment(createFileSystem(), path, name)],
    lines: (async function* () {
      yield "what is it?";
      yield "and before?";
    })(),
    uuid: createIds().uuid,
    sleep: Bun.sleep,
    out: (text) => out.push(text),
    err: (text) => err.push(text),
  });
  return { code, out, err, bodies: server.requests.map(({ body }) => JSON.stringify(body)) };
}

test("an image reaches a model that takes it, in its own turn alone; later turns know its name", async () => {
  const { code, out, bodies } = await chat({ images: true }, "cat.png", PNG);
  expect([code, out]).toEqual([0, ["seen\n", "seen\n"]]);
  expect(bodies[0]).toContain(PNG.toString("base64"));
  expect(bodies[1]).not.toContain(PNG.toString("base64"));
  expect(bodies[1]).toContain("what is it?\\n\\n[attached: cat.png, image/png]");
});

test("a model that takes no images is not asked, and the person is told which setting says so", async () => {
  const { code, out, err, bodies } = await chat({}, "cat.png", PNG);
  expect([code, out]).toEqual([1, ["seen\n"]]);
  expect(err[0]).toContain("this model does not take such input (images;");
  expect(err[0]).toContain("providers.local[].models");
  expect(bodies).toHaveLength(1);
});

test("a text reaches any model", async () => {
  const { code, bodies } = await chat({}, "notes.md", Buffer.from("# Grüße"));
  expect(code).toBe(0);
  expect(bodies[0]).toContain("[document notes.md]\\n# Grüße");
});
