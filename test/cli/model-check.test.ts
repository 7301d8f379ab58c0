import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import type { ModelCheck } from "../../src/host/model-check.ts";
import { cliRun } from "../support/cli-run.ts";
import { type ConfigFolder, configFolder, MINIMAL } from "../support/config-folder.ts";
import { KEY, WIRE } from "../support/model-rig.ts";
import { openaiWire, type Reply, startWireServer, type WireServer } from "../support/model-wire.ts";

let folder: ConfigFolder;
let server: WireServer | undefined;
beforeEach(() => {
  folder = configFolder();
});
afterEach(async () => {
  folder.remove();
  await server?.stop();
  server = undefined;
});

const numbers: Reply = { events: WIRE.compatible.text(["one, ", "two, ", "CANARY ANSWER"]), after: "end" };
const tool = (input: string): Reply => ({
  events: [...openaiWire.tool("c", "report_number", [input]), ...openaiWire.finish("tool_calls")],
  after: "end",
});
const red: Reply = { events: WIRE.compatible.text(["Red."]), after: "end" };

async function check(
  replies: [Reply, ...Reply[]],
  blocks: (url: string) => Record<string, unknown> = box,
  args: readonly string[] = [],
) {
  server = startWireServer(...replies);
  folder.write("mono-agent.config.json", { ...MINIMAL, ...blocks(server.url) });
  const run = await cliRun(folder.path, ["model", "check", "--json", ...args], { env: { BOX_KEY: KEY } });
  expect(run.out + run.err).not.toContain(KEY);
  expect(run.out + run.err).not.toContain("CANARY");
  const { models } = JSON.parse(run.out) as { models: ModelCheck[] };
  return { ...run, models, requests: server.requests };
}

function box(url: string, fields: object = {}) {
  return {
    runtime: { model: "box:m" },
    providers: {
      local: [{ id: "box", type: "openai_compat", baseUrl: `${url}/v1`, apiKeyEnv: "BOX_KEY", ...fields }],
    },
  };
}

describe("model check", () => {
  test("asks three questions once each, and says what works and how fast", async () => {
    const { code, models, requests } = await check([numbers, tool('{"number": 7}'), red], (url) =>
      box(url, { models: [{ id: "m", images: true }] }),
    );
    expect(code).toBe(0);
    expect(models).toHaveLength(1);
    expect(models[0]).toMatchObject({
      model: "box:m",
      usable: true,
      text: { works: true, detail: expect.stringMatching(/^first text after \d+ ms, all after \d+ ms/) },
      streaming: { works: true, detail: "the answer came in 3 pieces" },
      tools: { works: true },
      images: { works: true, detail: "seen" },
    });
    expect(models[0]?.totalMs).toBeGreaterThanOrEqual(models[0]?.firstTextMs ?? 0);
    expect(requests).toHaveLength(3);
    expect(JSON.stringify(requests[1]?.body)).toContain("report_number");
    expect(JSON.stringify(requests[2]?.body)).toContain("data:image/png;base64,iVBOR");
  });

  test("finds out that a local model takes images although the configuration does not say so", async () => {
    const { models } = await check([numbers, tool('{"number": 7}'), red]);
    expect(models[0]?.images).toMatchObject({ works: true, detail: expect.stringContaining("images: true") });
  });

  test("tells a model without tools, without streaming and without eyes", async () => {
    const oneBlock: Reply = { events: WIRE.compatible.text(["all at once"]), after: "end" };
    const words: Reply = { events: WIRE.compatible.text(["I would call it"]), after: "end" };
    const { code, models } = await check([oneBlock, words, { status: 400, body: "{}" }]);
    expect(code).toBe(1);
    expect(models[0]).toMatchObject({
      usable: false,
      text: { works: true },
      streaming: { works: false },
      tools: { works: false, detail: "it answered in words instead of calling the tool" },
      images: { works: false, detail: expect.stringContaining("HTTP 400") },
    });
    const wrong = await check([numbers, tool('{"number": 8}'), words]);
    expect(wrong.models[0]?.tools.detail).toBe("it called a tool, but not as it was asked to");
    expect(wrong.models[0]?.images.detail).toBe("it did not see the image");
  });

  test("counts no reasoning of a model that thinks first as its answer", async () => {
    const thought: Reply = { events: WIRE.compatible.text(["hm ", "</think>one, ", "two"]), after: "end" };
    const blocks = (url: string) => box(url, { models: [{ id: "m", thinksFirst: true }] });
    const { models } = await check([thought, tool('{"number": 7}'), red], blocks);
    expect(models[0]?.streaming.detail).toBe("the answer came in 2 pieces");
  });

  test("asks nothing more of a model that does not answer, and does not retry", async () => {
    const { code, models, requests } = await check([{ status: 503, body: "{}" }]);
    expect(code).toBe(1);
    expect(models[0]?.text.detail).toContain("HTTP 503");
    expect(models[0]?.tools.detail).toContain("not tried");
    expect(requests).toHaveLength(1);
  });

  const failing: [string, Reply, RegExp][] = [
    ["a key that is refused", { status: 401, body: "{}" }, /refused the API key \(HTTP 401\).*apiKeyEnv/],
    ["what a key may not do", { status: 403, body: "{}" }, /does not allow.*HTTP 403.*may do/],
    ["an unknown model or path", { status: 404, body: "{}" }, /no such model or address.*\/v1/],
    ["a refused request", { status: 400, body: "{}" }, /refused the request.*tools, images.*log/],
    ["a limit", { status: 429, body: "{}" }, /limits requests.*wait/],
    ["a fault", { status: 500, body: "{}" }, /has a fault.*later/],
    ["an overload", { status: 529, body: "{}" }, /overloaded.*later/],
    ["a redirect", { status: 302, body: "", headers: { location: "/v2" } }, /redirects.*correct its baseUrl/],
    ["a web page", { status: 200, body: "<html>" }, /web page.*correct its baseUrl/],
    ["an answer in one piece", { status: 200, body: "{}" }, /in one piece.*streams/],
    [
      "a stream that ends early",
      { events: WIRE.compatible.unfinished(["x"]), after: "end" },
      /broke off.*again/,
    ],
    ["a stream that is none", { events: ["data: {not json\n\n"], after: "end" }, /not be read.*type/],
    ["no credit", { status: 402, body: "{}" }, /no credit left.*add credit/],
    ["a proxy", { status: 407, body: "" }, /the proxy.*HTTPS_PROXY/],
  ];
  test.each(failing)("says of %s what it is, at which address, and the way out", async (_, reply, detail) => {
    const { code, models, requests } = await check([reply]);
    expect(code).toBe(1);
    expect(models[0]?.text.detail).toMatch(detail);
    expect(models[0]?.address).toBe(`${server?.url}/v1`);
    expect(requests).toHaveLength(1);
  });

  test("says so of an address where nothing listens, and names the address", async () => {
    const gone = startWireServer(numbers);
    await gone.stop();
    folder.write("mono-agent.config.json", { ...MINIMAL, ...box(gone.url) });
    const { code, out, err } = await cliRun(folder.path, ["model", "check"], { env: { BOX_KEY: KEY } });
    expect(code).toBe(1);
    expect(out).toMatch(
      new RegExp(`^box:m at ${gone.url}/v1\n {2}✗ text {7}box:m: .*can't be reached.*start it`),
    );
    expect(out + err).not.toContain(KEY);
  });

  test("checks the fallbacks too, and a missing key is a finding about its model alone", async () => {
    const blocks = (url: string) => ({
      ...box(url),
      runtime: { model: "openai:gpt-5", fallbacks: [{ model: "box:m" }, { model: "openai:gpt-5" }] },
    });
    const { code, models } = await check([numbers, tool('{"number": 7}'), red], blocks);
    expect(code).toBe(1);
    expect(models.map(({ model, usable }) => [model, usable])).toEqual([
      ["openai:gpt-5", false],
      ["box:m", true],
    ]);
    const [first] = models;
    expect(first?.text.detail).toContain("OPENAI_API_KEY");
    const others = [first?.streaming, first?.tools, first?.images];
    expect(others.map((finding) => finding?.detail)).toEqual(["not tried", "not tried", "not tried"]);
    const only = await check([numbers, tool('{"number": 7}'), red], blocks, ["--model", "box:m"]);
    expect(only.code).toBe(0);
    expect(only.models.map(({ model }) => model)).toEqual(["box:m"]);
  });

  test("a stop ends the call under way and says so", async () => {
    server = startWireServer({ events: WIRE.compatible.unfinished(["one"]), after: "hang" });
    folder.write("mono-agent.config.json", { ...MINIMAL, ...box(server.url) });
    let stop = () => {};
    const run = cliRun(folder.path, ["model", "check"], {
      env: { BOX_KEY: KEY },
      onStop: (listener) => {
        stop = listener;
        return () => {};
      },
    });
    while (server.requests.length === 0) await new Promise((resolve) => setImmediate(resolve));
    stop();
    const { code, err } = await run;
    expect(code).toBe(1);
    expect(err).toContain("stopped before everything was checked");
    await server.clientGone;
  });

  test("prints a line for each finding", async () => {
    folder.write("mono-agent.config.json", MINIMAL);
    const { code, out } = await cliRun(folder.path, ["model", "check"]);
    expect(code).toBe(0);
    expect(out).toMatch(/^demo:assistant\n {2}✓ text {7}first text after \d+ ms/);
    expect(out).toContain("✓ tools");
    expect(out).toEndWith("✗ images     demo:assistant: this model does not take such input (images)\n");
  });
});
