import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { InMemoryTransport } from "@modelcontextprotocol/sdk/inMemory.js";
import { sha256Hex } from "../../src/core/digest.ts";
import { canonicalJson } from "../../src/core/json.ts";
import type { ClaimCapability } from "../../src/core/ports/tools.ts";
import { submitStoredWork } from "../../src/mcp/example/submit.ts";
import { createWorkControlServer } from "../../src/mcp/example/work-control.ts";
import { openWorkFiles } from "../../src/mcp/example/work-files.ts";
import { createFakeClock, type FakeClock } from "../support/fake-clock.ts";
import { type ClaimServer, startClaimServer } from "../support/mcp-claim-server.ts";
import { capability, never, script, sessionRequest, toolHost, WORK_CONTROL } from "../support/mcp-host.ts";

let folder: string;
let host: ClaimServer;
let clock: FakeClock;
const pauses: number[] = [];
const pause = (ms: number) => {
  pauses.push(ms);
  return Promise.resolve();
};

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "work-control-"));
  host = startClaimServer();
  clock = createFakeClock();
  pauses.length = 0;
});
afterEach(async () => {
  await host.stop();
  rmSync(folder, { recursive: true });
});

const granted = (over: Partial<ClaimCapability> = {}): ClaimCapability => ({
  ...capability,
  url: host.claimUrl,
  ...over,
});

async function connect(grant: ClaimCapability | undefined) {
  const server = createWorkControlServer({ capability: grant, files: openWorkFiles(folder), clock, pause });
  const [near, far] = InMemoryTransport.createLinkedPair();
  const client = new Client({ name: "test", version: "1" });
  await Promise.all([server.connect(far), client.connect(near)]);
  return async (name: string, args: Record<string, unknown> = {}) => {
    const result = await client.callTool({ name, arguments: args });
    const content = result.content as { type: "text"; text: string }[];
    return { text: content[0]?.text ?? "", isError: result.isError === true };
  };
}

describe("delegate_work", () => {
  test("claims with the request's token and keeps the claim in an owner-only file before it says accepted", async () => {
    const previous = process.umask(0);
    try {
      const call = await connect(granted());
      const answer = await call("delegate_work", { task: "count invoices", minutes: 30 });
      expect(answer.isError).toBe(false);
      expect(answer.text).toContain("accepted");
      expect(answer.text).not.toContain("canary");
    } finally {
      process.umask(previous);
    }
    const taskHash = sha256Hex(canonicalJson({ task: "count invoices", minutes: 30 }));
    const deadline = new Date(clock.now() + 30 * 60_000).toISOString();
    expect(host.claims).toEqual([
      {
        token: `Bearer ${capability.token}`,
        body: { taskKey: `task-${taskHash.slice(0, 24)}`, taskHash, deadline },
      },
    ]);
    const files = readdirSync(folder);
    expect(files).toHaveLength(1);
    expect(statSync(join(folder, files[0]!)).mode & 0o777).toBe(0o600);
    expect(statSync(folder).mode & 0o777).toBe(0o700);
    expect(readFileSync(join(folder, files[0]!), "utf8")).toContain("result-token-canary");
  });

  test("asked again in the same run, later, gives the same claim without a second one", async () => {
    const call = await connect(granted());
    const first = await call("delegate_work", { task: "t" });
    clock.advance(5_000);
    expect(await call("delegate_work", { task: "t" })).toEqual(first);
    expect(host.claims).toHaveLength(1);
  });

  test("after a claim whose answer was lost, sends the very same claim again", async () => {
    host.next.push(...Array(4).fill({ status: 503, code: "service_stopping" }));
    const lost = await (await connect(granted()))("delegate_work", { task: "t" });
    expect(lost).toMatchObject({ isError: true, text: expect.stringContaining("503 (service_stopping)") });
    const deadline = new Date(clock.now() + 60 * 60_000).toISOString();
    clock.advance(60_000);
    const again = await (await connect(granted()))("delegate_work", { task: "t" });
    expect(again.isError).toBe(false);
    expect(host.claims.map((claim) => claim.body.deadline)).toEqual([deadline]);
  });

  test("in another run is another claim", async () => {
    await (await connect(granted()))("delegate_work", { task: "t" });
    await (await connect(granted({ fingerprint: "another" })))("delegate_work", { task: "t" });
    expect(host.claims).toHaveLength(2);
    expect(readdirSync(folder)).toHaveLength(2);
  });

  test("says what is wrong when the run holds no capability, and keeps nothing", async () => {
    const answer = await (await connect(undefined))("delegate_work", { task: "t" });
    expect(answer).toMatchObject({
      isError: true,
      text: expect.stringContaining("tools.continuationServers"),
    });
    expect(readdirSync(folder)).toEqual([]);
  });

  test("does not repeat a claim that the host refuses, and tells its code only", async () => {
    host.next.push({ status: 401, code: "invalid_claim_capability" });
    const answer = await (await connect(granted()))("delegate_work", { task: "t" });
    expect(answer.text).toBe("The work was not accepted: the host answered 401 (invalid_claim_capability).");
    expect(pauses).toEqual([]);
  });

  test("list_work shows what is under way", async () => {
    const call = await connect(granted());
    expect((await call("list_work")).text).toBe("No work was delegated.");
    await call("delegate_work", { task: "count invoices" });
    expect((await call("list_work")).text).toMatch(/^task-[0-9a-f]{24} \[accepted\] due .*: count invoices$/);
  });
});

describe("submitting the result", () => {
  const submit = (summary: string, task?: string) =>
    submitStoredWork(openWorkFiles(folder), { summary, task }, { clock, pause });

  test("sends one immutable result, again with the same key after transient failures", async () => {
    await (await connect(granted()))("delegate_work", { task: "count" });
    host.next.push({ status: 429, code: "active_origin_limit" }, { status: 500, code: "internal_error" });
    const result = await submit("3 are open");
    expect(result).toMatchObject({ ok: true, value: { state: "result_received" } });
    expect(pauses).toEqual([1000, 1000]);
    const payload = { task: "count", summary: "3 are open" };
    const continuationId = result.ok ? result.value.continuationId : "";
    const sent = {
      token: "Bearer result-token-canary",
      body: {
        idempotencyKey: `work-control:${continuationId}`,
        payloadHash: sha256Hex(canonicalJson(payload)),
        payload,
      },
    };
    expect(host.results).toEqual([sent]);
    // Repeated by hand: the same again; another summary: refused before anything is sent.
    expect((await submit("3 are open", "count")).ok).toBe(true);
    expect(host.results).toEqual([sent, sent]);
    expect(await submit("4 are open", "count")).toMatchObject({
      ok: false,
      refusal: { code: "operation_failed" },
    });
    expect(host.results).toHaveLength(2);
  });

  test("gives up after bounded attempts when the host stays away, and can be repeated", async () => {
    await (await connect(granted()))("delegate_work", { task: "count" });
    host.next.push(...Array(8).fill({ status: 503, code: "service_stopping" }));
    expect(await submit("done")).toMatchObject({ ok: false });
    expect(pauses).toHaveLength(7);
    expect((await submit("done")).ok).toBe(true);
  });

  test("wants to know which work is meant when several wait, and says when none does", async () => {
    expect(await submit("x")).toMatchObject({ ok: false, refusal: { code: "not_found" } });
    const call = await connect(granted());
    await call("delegate_work", { task: "one" });
    clock.advance(1);
    await call("delegate_work", { task: "two" });
    expect(await submit("x")).toMatchObject({ ok: false, refusal: { code: "usage" } });
    expect((await submit("x", "one")).ok).toBe(true);
    expect((await submit("y")).ok).toBe(true);
    expect(host.results.map((result) => (result.body.payload as { task: string }).task)).toEqual([
      "one",
      "two",
    ]);
  });
});

describe("as a process", () => {
  const env = () => ({ WORK_CONTROL_STATE_DIR: folder });

  test("over stdio: delegates with the values of its environment, then submits from the command line", async () => {
    const tools = toolHost(
      { "work-control": script(WORK_CONTROL, [], env()) },
      { continuationServers: ["work-control"] },
    );
    const session = await tools.open(sessionRequest({ "work-control": granted() }));
    expect(session.warnings).toEqual([]);
    expect(session.tools.map((tool) => tool.name)).toEqual(["delegate_work", "list_work"]);
    const outcome = await session.call("delegate_work", { task: "count" }, never);
    expect(outcome).toMatchObject({ isError: false, text: expect.stringContaining("accepted") });
    await tools.close();
    const child = Bun.spawn([process.execPath, WORK_CONTROL, "submit", "3 are open"], {
      env: { ...process.env, ...env() },
      stdout: "pipe",
    });
    expect(JSON.parse(await child.stdout.text())).toMatchObject({
      ok: true,
      value: { state: "result_received" },
    });
    expect(host.results).toHaveLength(1);
  });

  test("over stdio without a capability: answers with a clear error", async () => {
    const tools = toolHost({ w: script(WORK_CONTROL, [], env()) }, { continuationServers: ["w"] });
    const session = await tools.open(sessionRequest());
    expect((await session.call("delegate_work", { task: "t" }, never)).isError).toBe(true);
    await tools.close();
  });

  test("over loopback HTTP: each run brings its own values in headers, configured fakes never arrive", async () => {
    const child = Bun.spawn([process.execPath, WORK_CONTROL, "--http"], {
      env: { ...process.env, ...env() },
      stdout: "pipe",
    });
    const reader = child.stdout.getReader();
    const url = new TextDecoder().decode((await reader.read()).value).trim();
    try {
      const headers = { "X-Mono-Agent-Continuation-Claim-Token": "fake", "x-own": "1" };
      const servers = { w: { type: "http" as const, url, headers } };
      const tools = toolHost(servers, { continuationServers: ["w"] });
      const first = await tools.open(
        sessionRequest({ w: granted({ token: "token-of-run-1", fingerprint: "1" }) }),
      );
      const second = await tools.open(
        sessionRequest({ w: granted({ token: "token-of-run-2", fingerprint: "2" }) }),
      );
      await second.call("delegate_work", { task: "t" }, never);
      await first.call("delegate_work", { task: "t" }, never);
      expect(host.claims.map((claim) => claim.token)).toEqual([
        "Bearer token-of-run-2",
        "Bearer token-of-run-1",
      ]);
      const bare = await tools.open(sessionRequest());
      expect((await bare.call("delegate_work", { task: "t" }, never)).isError).toBe(true);
      const unlisted = toolHost(servers);
      const other = await unlisted.open(sessionRequest({ w: granted() }));
      expect((await other.call("delegate_work", { task: "t" }, never)).isError).toBe(true);
      expect(host.claims).toHaveLength(2);
      await Promise.all([tools.close(), unlisted.close()]);

      const page = await fetch(url, {
        method: "POST",
        headers: { origin: "http://evil.example" },
        body: "{}",
      });
      expect(page.status).toBe(403);
    } finally {
      child.kill("SIGTERM");
      expect(await child.exited).toBe(0);
    }
  });
});

test("a damaged work file is named, not passed over", () => {
  const files = openWorkFiles(folder);
  writeFileSync(join(folder, "x.json"), "{");
  expect(() => files.list()).toThrow("x.json is not a work file");
});
