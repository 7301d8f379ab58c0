import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { chmodSync, existsSync, linkSync, mkdirSync, readdirSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { recordFileName } from "../../src/core/record.ts";
import type { DoctorReport } from "../../src/host/doctor.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { cliRun } from "../support/cli-run.ts";
import { type ConfigFolder, configFolder, MINIMAL } from "../support/config-folder.ts";
import { recordIn } from "../support/records.ts";
import { openStore } from "../support/store-harness.ts";

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

test("an IPv6 address is shown as it stands in a URL", async () => {
  const { report } = await doctor({
    terminal: { host: "::1", port: 4320 },
    continuations: { host: "::1", port: 8787 },
  });
  const details = report.sections.flatMap((section) => section.details);
  expect(details).toContain("[::1]:4320");
  expect(details).toContain("address [::1]:8787");
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

describe("what the start would refuse or repair", () => {
  const HOST = ".mono-agent";
  const STORE = ".mono-agent/continuations";
  const TOKEN = `${HOST}/terminal-token`;
  const at = (name: string) => join(folder.path, name);
  const detailsOf = (report: DoctorReport, id: string) =>
    report.sections.find((section) => section.id === id)?.details.join("\n") ?? "";

  test.each([
    ["a loose mode", (path: string) => chmodSync(path, 0o644), "has mode 644, not 600"],
    ["a second name", (path: string) => linkSync(path, at("other")), "has 2 names"],
    ["other content", () => folder.write(TOKEN, "short\n"), "does not hold a token"],
  ])("a terminal token with %s is an error that names it", async (_, spoil, reason) => {
    mkdirSync(at(HOST), { mode: 0o700 });
    folder.write(TOKEN, `${"t".repeat(43)}\n`);
    chmodSync(at(TOKEN), 0o600);
    expect((await doctor({})).status.terminal).toBe("ok");
    spoil(at(TOKEN));
    const { code, status, report } = await doctor({});
    expect([code, status.terminal]).toEqual([1, "error"]);
    expect(detailsOf(report, "terminal")).toContain(`${at(TOKEN)} ${reason}`);
    expect(detailsOf(report, "terminal")).not.toContain("ttt");
    expect((await doctor({ terminal: { enabled: false } })).status.terminal).toBe("disabled");
  });

  test("loose folders wait for the next start, which repairs them", async () => {
    mkdirSync(at(STORE), { recursive: true });
    chmodSync(at(HOST), 0o755);
    chmodSync(at(STORE), 0o750);
    const { code, status, report } = await doctor({ continuations: {} });
    expect(code).toBe(0);
    expect(status).toMatchObject({ turns: "waiting", continuations: "waiting" });
    for (const [id, name] of [
      ["turns", HOST],
      ["continuations", STORE],
    ] as const) {
      expect(detailsOf(report, id)).toContain(
        `${at(name)} does not have mode 0700; the next start repairs it`,
      );
    }
    chmodSync(at(HOST), 0o700);
    chmodSync(at(STORE), 0o700);
    expect((await doctor({ continuations: {} })).report.operationallyReady).toBe(true);
  });

  test("a link in place of the state folder is an error", async () => {
    mkdirSync(at("elsewhere"), { mode: 0o700 });
    symlinkSync(at("elsewhere"), at(HOST));
    const { code, status, report } = await doctor({});
    expect([code, status.turns]).toEqual([1, "error"]);
    expect(detailsOf(report, "turns")).toContain("host.stateDir");
  });

  test.each([
    ["a file", () => writeFileSync(at(STORE), "x")],
    ["a link", () => symlinkSync(at("elsewhere"), at(STORE))],
  ])(
    "%s in place of the continuation state is an error, not a state that is still to be made",
    async (_, put) => {
      mkdirSync(at(HOST), { mode: 0o700 });
      mkdirSync(at("elsewhere"), { mode: 0o700 });
      put();
      const { code, status, report } = await doctor({ continuations: {} });
      expect([code, status.continuations]).toEqual([1, "error"]);
      expect(detailsOf(report, "continuations")).toContain("must be a folder");
      expect(detailsOf(report, "continuations")).not.toContain("no state yet");
    },
  );

  test("continuations that are turned off say so", async () => {
    const { report } = await doctor({ continuations: { enabled: false } });
    expect(detailsOf(report, "continuations")).toBe("continuations.enabled is false");
  });

  const stored = async (...records: ReturnType<typeof recordIn>[]) => {
    const store = await openStore({ fs: createFileSystem(), stateDir: at(STORE) });
    await store.commit({ puts: records });
    await store.close();
    chmodSync(at(HOST), 0o700);
  };

  test("what an operator should look at waits: unknown, dead-lettered, and answers that history lacks", async () => {
    const degraded = recordIn("delivered", {
      continuationId: "c-3",
      taskKey: "c",
      receipt: { kind: "delivered", deliveredAt: "2026-11-30T12:00:00.000Z", historyRecorded: false },
    });
    await stored(degraded);
    const one = await doctor({ continuations: {} });
    expect([one.code, one.status.continuations]).toEqual([0, "waiting"]);
    await stored(
      recordIn("delivery_unknown", { continuationId: "c-1", taskKey: "a" }),
      recordIn("dead_lettered", { continuationId: "c-2", taskKey: "b" }),
    );
    const details = detailsOf((await doctor({ continuations: {} })).report, "continuations");
    expect(details).toContain("1 with an unknown delivery");
    expect(details).toContain("1 dead-lettered");
    expect(details).toContain("1 delivered, but not recorded in the conversation's history");
  });

  test.each([
    ["a loose mode", (path: string) => chmodSync(path, 0o644)],
    ["a second name", (path: string) => linkSync(path, at("other"))],
  ])("a secret with %s is one finding with one way out, and is not called damaged", async (_, spoil) => {
    await stored(recordIn("claimed"));
    spoil(at(`${STORE}/continuation-secret`));
    const { code, report } = await doctor({ continuations: {} });
    expect(code).toBe(1);
    const found = detailsOf(report, "continuations")
      .split("\n")
      .filter((line) => line.includes("continuation-secret"));
    expect(found.length).toBe(1);
    expect(found[0]).toContain("make it a regular file");
    expect(found[0]).not.toMatch(/backup|damaged/);
  });

  test("more than twenty damaged files are counted in the text, and each is named in JSON", async () => {
    const ids = Array.from({ length: 23 }, (_, index) => `c-${index}`);
    await stored(...ids.map((id) => recordIn("claimed", { continuationId: id, taskKey: id })));
    const names = ids.map(recordFileName);
    for (const name of names) folder.write(`${STORE}/records-v3/${name}`, "{");
    const named = (text: string) => names.filter((name) => text.includes(`${name} is `)).length;
    const { report } = await doctor({ continuations: {} });
    expect(named(detailsOf(report, "continuations"))).toBe(23);
    const { code, out } = await cliRun(folder.path, ["doctor"]);
    expect(code).toBe(1);
    expect(named(out)).toBe(20);
    expect(out).toContain("\n    and 3 more; `mono-agent doctor --json` lists all\n");
  });

  test("so are more than twenty reasons why an older format can't be converted", async () => {
    mkdirSync(at(`${STORE}/records-v2`), { recursive: true, mode: 0o700 });
    chmodSync(at(STORE), 0o700);
    const names = Array.from({ length: 22 }, (_, index) => recordFileName(`c-${index}`));
    for (const name of names) {
      folder.write(`${STORE}/records-v2/${name}`, "{");
      chmodSync(at(`${STORE}/records-v2/${name}`), 0o600);
    }
    const named = (text: string) => names.filter((name) => text.includes(name)).length;
    const { report } = await doctor({ continuations: {} });
    expect(named(detailsOf(report, "continuations"))).toBe(22);
    const { out } = await cliRun(folder.path, ["doctor"]);
    expect(named(out)).toBe(20);
    expect(out).toContain("\n    and 2 more; `mono-agent doctor --json` lists all\n");
  });

  test("a damaged secret has its way out once", async () => {
    await stored(recordIn("claimed"));
    folder.write(`${STORE}/continuation-secret`, "");
    const details = detailsOf((await doctor({ continuations: {} })).report, "continuations");
    expect(details).toContain("is empty or damaged");
    expect(details.match(/backup/g)?.length).toBe(1);
  });
});

test("a key in the file waits to be moved, and fallbacks are named", async () => {
  const { code, report } = await doctor({
    runtime: { model: "demo:a", fallbacks: [{ model: "ollama:llama3" }] },
    providers: { local: [{ id: "box", type: "ollama", apiKey: "sk-in-the-file" }] },
  });
  const section = report.sections.find(({ id }) => id === "runtime");
  expect(code).toBe(0);
  expect(report.operationallyReady).toBe(false);
  expect(section?.status).toBe("waiting");
  expect(section?.details).toContain("when it fails: ollama:llama3");
  expect(section?.details.join()).toContain("key of provider box");
  expect(JSON.stringify(report)).not.toContain("sk-in-the-file");
});
