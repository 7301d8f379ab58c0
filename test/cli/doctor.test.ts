import { afterEach, beforeEach, expect, test } from "bun:test";
import { chmodSync, existsSync, mkdirSync, readdirSync } from "node:fs";
import { join } from "node:path";
import type { DoctorReport } from "../../src/host/doctor.ts";
import { cliRun } from "../support/cli-run.ts";
import { type ConfigFolder, configFolder, MINIMAL } from "../support/config-folder.ts";

let folder: ConfigFolder;
beforeEach(() => {
  folder = configFolder();
});
afterEach(() => folder.remove());

const doctor = async (blocks: Record<string, unknown>) => {
  folder.write("mono-agent.config.json", { ...MINIMAL, ...blocks });
  const { code, out } = await cliRun(folder.path, ["doctor", "--json"]);
  const report: DoctorReport = JSON.parse(out);
  return { code, report, status: Object.fromEntries(report.sections.map(({ id, status }) => [id, status])) };
};

test("a minimal configuration is ready, and looking at it creates nothing", async () => {
  const before = readdirSync(folder.path).length;
  const { code, report, status } = await doctor({});
  expect(code).toBe(0);
  expect(report).toMatchObject({ ok: true, structurallyValid: true, operationallyReady: true });
  expect(status).toEqual({
    config: "ok",
    runtime: "ok",
    tools: "disabled",
    continuations: "disabled",
    turns: "ok",
    terminal: "ok",
  });
  expect(readdirSync(folder.path).length).toBe(before + 1);
  expect(existsSync(join(folder.path, ".mono-agent"))).toBe(false);
});

test("a broken configuration is an error with every problem, and exits 1", async () => {
  const { code, report } = await doctor({ terminal: { port: 0 }, host: { x: 1 } });
  expect(code).toBe(1);
  expect(report).toMatchObject({ ok: false, structurallyValid: false, operationallyReady: false });
  expect(report.sections[0]?.details.length).toBe(2);
});

test("a missing configuration is an error that says how to make one", async () => {
  const { code, out } = await cliRun(folder.path, ["doctor"]);
  expect(code).toBe(1);
  expect(out).toContain("mono-agent init");
});

test("a route to a channel that this host does not have waits and does not fail", async () => {
  const { code, report, status } = await doctor({
    slack: {},
    continuations: {
      namedRoutes: {
        daily: { mode: "notify_if_actionable", conversationId: "slack:C:T" },
        here: { mode: "notify_if_actionable", conversationId: "terminal:main" },
        kept: { mode: "capture", conversationId: "slack:C:T" },
      },
    },
  });
  expect(code).toBe(0);
  expect(status.continuations).toBe("waiting");
  expect(report).toMatchObject({ ok: true, operationallyReady: false });
  const details = report.sections.flatMap((section) => section.details);
  expect(details.filter((detail) => detail.includes("waits"))).toEqual([
    "route daily waits: no slack channel is configured",
  ]);
  expect(details).toContain("warning: slack: this host has no such block; it is ignored");
});

test("an unsafe state directory is an error that names it", async () => {
  const stateDir = join(folder.path, ".mono-agent/continuations");
  mkdirSync(stateDir, { recursive: true, mode: 0o700 });
  folder.write(".mono-agent/continuations/continuation-secret", "short\n");
  chmodSync(join(stateDir, "continuation-secret"), 0o666);
  const { code, report, status } = await doctor({ continuations: {} });
  expect(code).toBe(1);
  expect(status.continuations).toBe("error");
  expect(report.sections.flatMap((section) => section.details).join("\n")).toContain("continuation-secret");
});

test("a ledger that is not a database is an error", async () => {
  folder.write(".mono-agent/host.sqlite", "not a database, but longer than its header would be".repeat(20));
  chmodSync(join(folder.path, ".mono-agent/host.sqlite"), 0o600);
  const { code, status } = await doctor({});
  expect({ code, turns: status.turns }).toEqual({ code: 1, turns: "error" });
});

test("the text for people marks each section and ends with a verdict", async () => {
  folder.write("mono-agent.config.json", MINIMAL);
  const { out } = await cliRun(folder.path, ["doctor"]);
  expect(out).toContain("✓ Configuration: ok\n");
  expect(out).toContain("– Continuations: disabled\n");
  expect(out.trimEnd().endsWith("ready")).toBe(true);
});
