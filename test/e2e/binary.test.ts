import { afterEach, describe, expect, test } from "bun:test";
import { createHash } from "node:crypto";
import { lstatSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { payloadHash } from "../../src/core/derive.ts";
import type { ClaimAnswer } from "../../src/core/wire.ts";
import { type AgentFolder, agentFolder, BINARY, processesIn, until } from "../support/binary.ts";
import { cliRun } from "../support/cli-run.ts";

/** The built binary as a new user meets it. */

let folder: AgentFolder;
afterEach(() => folder.remove());

const inAnHour = () => new Date(Date.now() + 3_600_000).toISOString();

/** Path, mode and content digest of everything below a folder. */
function tree(root: string): Record<string, string> {
  const seen: Record<string, string> = {};
  const walk = (path: string) => {
    for (const name of readdirSync(path)) {
      const full = join(path, name);
      const stat = lstatSync(full);
      const content = stat.isFile() ? createHash("sha256").update(readFileSync(full)).digest("hex") : "";
      seen[full.slice(root.length)] = `${stat.mode.toString(8)} ${content}`;
      if (stat.isDirectory()) walk(full);
    }
  };
  walk(root);
  return seen;
}

describe("the binary", () => {
  test("starts from any folder and is configured by no .env, bunfig.toml or package.json there", async () => {
    folder = agentFolder();
    folder.write(".env", "MONO_AGENT_MODEL=not-a-model\n");
    folder.write("bunfig.toml", 'preload = ["./does-not-exist.ts"]\n');
    folder.write("package.json", "{ not json");
    folder.write("tsconfig.json", "{ not json");
    const version = await folder.run(["--version"]);
    expect(version).toEqual({ code: 0, out: `${(await import("../../package.json")).version}\n`, err: "" });
    const shown = await folder.run(["config", "show"]);
    expect(shown.code).toBe(0);
    expect(JSON.parse(shown.out)).toMatchObject({ runtime: { model: "demo:assistant" } });
  });

  test("tortures its own store, in memory alone, and finds what the source finds", async () => {
    folder = agentFolder();
    const before = tree(folder.path);
    const args = ["torture", "--states", "500", "--seed", "11", "--json"];
    const { code, out, err } = await folder.run(args);
    expect([code, err]).toEqual([0, "seed 11\n"]);
    const { elapsedMs: _, ...report } = JSON.parse(out);
    expect(report.states).toBeGreaterThanOrEqual(500);
    expect(report.failure).toBeUndefined();
    const { elapsedMs: __, ...ours } = JSON.parse((await cliRun(folder.path, args)).out);
    expect(report).toEqual(ours);
    expect(tree(folder.path)).toEqual(before);
  }, 30_000);

  test("init writes what doctor accepts and serve runs, and never replaces a file without --force", async () => {
    folder = agentFolder();
    for (const name of ["mono-agent.config.json", "mcp.json", "identity.md"]) {
      await Bun.file(join(folder.path, name)).delete();
    }
    const init = await folder.run(["init"]);
    expect([init.code, init.err]).toEqual([0, ""]);
    const before = tree(folder.path);
    const again = await folder.run(["init"]);
    expect([again.code, again.out]).toEqual([1, ""]);
    expect(again.err).toContain("--force");
    expect(tree(folder.path)).toEqual(before);
    expect((await folder.run(["doctor"])).code).toBe(0);
    expect((await folder.run(["init", "--force"])).code).toBe(0);
  });

  test("wrong usage exits with 2 and a hint, a broken configuration with 1 and every problem in it", async () => {
    folder = agentFolder({
      runtime: { model: 7 },
      continuations: { port: 0, prot: 1 },
      tools: { mcpConfigPath: "nowhere.json" },
    });
    const usage = await folder.run(["serv"]);
    expect(usage.code).toBe(2);
    expect(usage.err).toContain("serve");
    for (const command of [["serve"], ["doctor"]]) {
      const broken = await folder.run(command);
      expect(broken.code).toBe(1);
      const said = broken.err + broken.out;
      for (const part of ["runtime.model", "continuations.port", "continuations.prot", "nowhere.json"])
        expect(said).toContain(part);
    }
  });

  test("a second host on the same folder is refused at once, and the first goes on", async () => {
    folder = agentFolder();
    const host = await folder.serve();
    const second = await folder.run(["serve"]);
    expect(second.code).toBe(1);
    expect(second.err).toContain("already owns");
    expect((await folder.health()).status).toBe("healthy");
    expect(await host.kill("SIGTERM")).toBe(0);
  });

  test("doctor changes nothing, while a host runs and while none does", async () => {
    folder = agentFolder();
    const host = await folder.serve();
    await folder.ask('delegate_work {"task": "look"}');
    await folder.continuation((record) => record.originContext.state === "pinned");
    expect((await folder.run(["doctor", "--json"])).code).toBe(0);
    await host.kill("SIGTERM");
    const before = tree(join(folder.path, ".mono-agent"));
    const stopped = await folder.run(["doctor", "--json"]);
    expect([stopped.code, JSON.parse(stopped.out).ok]).toEqual([0, true]);
    expect(tree(join(folder.path, ".mono-agent"))).toEqual(before);
  });

  test("every file is for the owner only, whatever the umask", async () => {
    folder = agentFolder();
    for (const umask of ["000", "077"]) {
      const host = await folder.serve({ command: ["sh", "-c", `umask ${umask}; exec ${BINARY} serve`] });
      await folder.ask(`delegate_work {"task": "under ${umask}"}`);
      await until("the claim", async () =>
        (await folder.list()).some((row) => row.originContext.state === "pinned"),
      );
      const state = join(folder.path, ".mono-agent");
      const walk = (path: string): void => {
        const stat = lstatSync(path);
        expect([path, (stat.mode & 0o777).toString(8)]).toEqual([path, stat.isDirectory() ? "700" : "600"]);
        if (stat.isDirectory()) for (const name of readdirSync(path)) walk(join(path, name));
      };
      walk(state);
      await host.kill("SIGTERM");
    }
  });

  test("fifty restarts, half of them by SIGKILL with a tool server at work, leave no process behind", async () => {
    folder = agentFolder();
    for (let round = 0; round < 50; round += 1) {
      const host = await folder.serve();
      await folder.ask(`list_work ${round}`);
      await until("a process of the tool server", async () => processesIn(folder.path).length > 1);
      await host.kill(round % 2 === 0 ? "SIGKILL" : "SIGTERM");
    }
    await until("the last process to end", async () => processesIn(folder.path).length === 0);
  }, 60_000);
});

describe("a service written with curl alone", () => {
  const curl = async (...args: string[]) => {
    const child = Bun.spawn(["curl", "-sS", "--noproxy", "*", "-w", "\n%{http_code}", ...args], {
      stdout: "pipe",
      stderr: "pipe",
    });
    const out = await new Response(child.stdout).text();
    await child.exited;
    const cut = out.lastIndexOf("\n");
    return {
      status: Number(out.slice(cut + 1)),
      body: JSON.parse(out.slice(0, cut)) as Record<string, unknown>,
    };
  };

  test.skipIf(Bun.which("curl") === null)(
    "claims a named route, submits once, and reads the receipt",
    async () => {
      folder = agentFolder();
      const token = "a-service-token-of-some-length";
      folder.write("mono-agent.config.json", {
        runtime: { model: "demo:assistant" },
        context: { identityPath: "identity.md" },
        continuations: {
          port: folder.ports.continuations,
          namedRoutes: { attention: { mode: "notify_if_actionable", conversationId: "terminal:main" } },
          detachedServices: [{ name: "ops", tokenEnv: "OPS_TOKEN" }],
        },
        terminal: { port: folder.ports.terminal },
      });
      await folder.serve({ env: { OPS_TOKEN: token } });
      const base = `http://127.0.0.1:${folder.ports.continuations}/v1/continuations`;
      const deadline = inAnHour();
      const claim = (bearer: string) =>
        curl(
          "-X",
          "POST",
          `${base}/detached/claim`,
          "-H",
          `Authorization: Bearer ${bearer}`,
          "-H",
          "X-Mono-Agent-Service-Name: ops",
          "-d",
          JSON.stringify({
            route: "attention",
            taskKey: "disk",
            taskHash: "h1",
            deadline,
          }),
        );
      expect((await claim("wrong-token-of-some-length")).status).toBe(401);
      const claimed = await claim(token);
      expect(claimed.status).toBe(200);
      const answer = claimed.body as unknown as ClaimAnswer;
      expect((await claim(token)).body).toMatchObject({
        continuationId: answer.continuationId,
        replayed: true,
      });
      const payload = { summary: "The disk is nearly full." };
      const put = (key: string) =>
        curl(
          "-X",
          "PUT",
          answer.resultUrl,
          "-H",
          `Authorization: Bearer ${answer.token}`,
          "-d",
          JSON.stringify({ idempotencyKey: key, payloadHash: payloadHash(payload), payload }),
        );
      expect((await put("k1")).status).toBe(202);
      expect((await put("k1")).status).toBe(202);
      expect((await put("k2")).status).toBe(409);
      const status = () => curl(answer.statusUrl, "-H", `Authorization: Bearer ${answer.token}`);
      await until("the receipt", async () => (await status()).body.state === "delivered");
      expect((await status()).body.receipt).toMatchObject({ kind: "delivered", historyRecorded: true });
      expect((await folder.messages()).map((message) => message.content)).toEqual([
        "The disk is nearly full.",
      ]);
    },
  );
});

describe("the configuration of seed-000", () => {
  test("starts, with its Slack routes waiting; a claim on one is refused, the silent one works", async () => {
    folder = agentFolder();
    const token = "work-control-continuation-token";
    folder.write("mono-agent.config.json", {
      runtime: { model: "demo:assistant" },
      context: { identityPath: "identity.md" },
      tools: { mcpConfigPath: "./mcp.json", continuationServers: ["work-control"] },
      continuations: {
        enabled: true,
        host: "127.0.0.1",
        port: folder.ports.continuations,
        stateDir: ".mono-agent/continuations",
        limits: {
          maxActiveRecords: 10000,
          maxActivePerOrigin: 500,
          maxConcurrent: 16,
          synthesisTimeoutMs: 600000,
          deliveryTimeoutMs: 120000,
          operatorPageSize: 100,
        },
        retention: {
          terminalMaxRecords: 50000,
          terminalMaxAgeMs: 31536000000,
          capturedTextMaxRecords: 1000,
          capturedTextMaxAgeMs: 2592000000,
        },
        namedRoutes: {
          "daily-attention": { mode: "notify_if_actionable", conversationId: "slack:C_EXAMPLE:T_EXAMPLE" },
          verification: { mode: "capture", conversationId: "slack:C_EXAMPLE:T_EXAMPLE" },
          "background-index": { mode: "silent" },
        },
        detachedServices: [{ name: "work-control", tokenEnv: "WORK_CONTROL_CONTINUATION_TOKEN" }],
      },
      slack: { enabled: true, allowedChannelIds: ["C_EXAMPLE"] },
      terminal: { port: folder.ports.terminal },
    });
    const env = { WORK_CONTROL_CONTINUATION_TOKEN: token };
    await folder.serve({ env });
    const doctor = await folder.run(["doctor", "--json"], { env });
    const report = JSON.parse(doctor.out) as {
      ok: boolean;
      operationallyReady: boolean;
      sections: { id: string; status: string; details: string[] }[];
    };
    expect([doctor.code, report.ok, report.operationallyReady]).toEqual([0, true, false]);
    const section = report.sections.find((one) => one.id === "continuations");
    expect(section?.status).toBe("waiting");
    expect(section?.details.join("\n")).toContain("daily-attention");
    const claim = (route: string) =>
      fetch(`http://127.0.0.1:${folder.ports.continuations}/v1/continuations/detached/claim`, {
        method: "POST",
        headers: { authorization: `Bearer ${token}`, "x-mono-agent-service-name": "work-control" },
        body: JSON.stringify({ route, taskKey: "t", taskHash: "h", deadline: inAnHour() }),
      });
    expect((await claim("daily-attention")).status).toBe(409);
    expect((await claim("background-index")).status).toBe(200);
  });
});

test("the operator's commands tell the truth about a continuation from claim to receipt", async () => {
  folder = agentFolder();
  await folder.serve();
  await folder.ask('delegate_work {"task": "operate"}');
  const { continuationId } = await folder.continuation((record) => record.originContext.state === "pinned");
  const run = (...args: string[]) => folder.run(["continuations", ...args]);
  const list = await run("list");
  expect(list.out).toContain(continuationId);
  expect(JSON.parse((await run("health", "--json")).out)).toMatchObject({
    status: "degraded",
    pending: 1,
    counts: { claimed: 1 },
  });
  const shown = await run("show", continuationId);
  expect(shown.out).toContain("claimed");
  expect(shown.out).not.toContain("operate");
  expect((await run("retry", continuationId)).code).toBe(1);
  expect((await run("resolve", continuationId, "delivered", "x")).err).toContain("not_delivery_unknown");
  expect((await run("list", "--limit", "501")).code).not.toBe(0);
  expect((await run("cancel", continuationId)).code).toBe(0);
  expect((await run("cancel", continuationId)).code).toBe(0);
  const late = await folder.run(["example", "work-control", "submit", "--summary", "too late"]);
  expect([late.code, late.err]).toEqual([1, expect.stringContaining("result_not_accepted")]);
});

test("without a host the operator's command says how to start one", async () => {
  folder = agentFolder();
  const host = await folder.serve();
  await host.kill("SIGTERM");
  const health = await folder.run(["continuations", "health"]);
  expect(health.code).toBe(1);
  expect(health.err).toContain(`no host runs at 127.0.0.1:${folder.ports.continuations}`);
  expect(health.err).toContain("mono-agent serve");
});

test("the demo tells its steps as lines of JSON and exits with 0", async () => {
  folder = agentFolder();
  const demo = await folder.run(["demo", "--json"]);
  expect([demo.code, demo.err]).toEqual([0, ""]);
  const steps = demo.out
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line) as { step: string; ok: boolean });
  expect(steps.map((step) => step.step)).toEqual([
    "folder",
    "init",
    "serve",
    "ask",
    "claim",
    "commit",
    "kill",
    "restart",
    "recovered",
    "result",
    "receipt",
    "history",
    "end",
  ]);
  expect(steps.every((step) => step.ok)).toBe(true);
});
