import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { ClaimAnswer } from "../../src/core/wire.ts";
import { until } from "../support/binary.ts";
import { cliRun } from "../support/cli-run.ts";
import {
  API_KEY,
  MCP_SECRET,
  SECURITY_ENV,
  SERVICE_TOKEN,
  type SecurityWorld,
  securityWorld,
} from "../support/security-world.ts";

/** What a host and its commands say when files are damaged or mistyped: never what stood in them. */

// Real processes start here, on machines that may be busy.
setDefaultTimeout(60_000);

/** An identifier, because engines quote those in their messages about JSON. */
const CANARY = "canary_in_file_4d1e";
const PAYLOAD = "canary-payload-aa02";

let world: SecurityWorld;
let secrets: string[];
let ids: string[];
/** What the commands say when nothing is wrong. */
let undamaged: string;
beforeAll(async () => {
  world = await securityWorld();
  const claims: ClaimAnswer[] = [];
  for (const [key, route] of [
    ["a", "keep"],
    ["b", "quiet"],
    ["c", "keep"],
  ] as const) {
    claims.push((await (await world.detached(SERVICE_TOKEN, key, route)).json()) as ClaimAnswer);
  }
  const [first] = claims;
  if (first !== undefined) await world.submit(first, { text: PAYLOAD });
  ids = claims.map(({ continuationId }) => continuationId);
  secrets = [
    ...claims.map(({ token }) => token),
    world.operator(),
    world.terminal(),
    world.secret(),
    SERVICE_TOKEN,
    API_KEY,
    MCP_SECRET,
    PAYLOAD,
    CANARY,
    "terminal:kept-place",
  ];
  await world.app.stop();
  undamaged = await outputsOf(() => {});
});
afterAll(() => world.remove());

type Damage = (folder: string) => void;
const change =
  (name: string, edit: (text: string) => string): Damage =>
  (folder) => {
    const path = join(folder, name);
    writeFileSync(path, edit(readFileSync(path, "latin1")), { encoding: "latin1", mode: 0o600 });
  };
const STATE = ".mono-agent/continuations";
const eachRecord =
  (edit: (text: string) => string): Damage =>
  (folder) => {
    const records = join(STATE, "records-v3");
    for (const name of readdirSync(join(folder, records))) change(join(records, name), edit)(folder);
  };
const config = (edit: (parsed: Record<string, Record<string, unknown>>) => void): Damage =>
  change("mono-agent.config.json", (text) => {
    const parsed = JSON.parse(text) as Record<string, Record<string, unknown>>;
    edit(parsed);
    return JSON.stringify(parsed);
  });

const DAMAGES: Record<string, Damage> = {
  "a record that is no JSON": eachRecord((text) => text.replace('"state": ', `"state": ${CANARY} `)),
  "a record with an unknown state": eachRecord((text) =>
    text.replace(/"state": "\w+"/, `"state": "${CANARY}"`),
  ),
  "a record with a secret as a number": eachRecord((text) =>
    text.replace(/"deliveryAttempts": \d/, `"deliveryAttempts": "${CANARY}"`),
  ),
  "a record of half the length": eachRecord((text) => text.slice(0, text.length / 2)),
  "records whose destination was altered": eachRecord((text) => text.replaceAll("kept-place", CANARY)),
  "records with other keys": eachRecord((text) => text.replace("{", `{"${CANARY}": "${CANARY}",`)),
  "a manifest that is no JSON": change(`${STATE}/continuation-store-v3.json`, (text) =>
    text.replace("{", `{${CANARY}`),
  ),
  "a transaction that is no JSON": (folder) =>
    writeFileSync(join(folder, STATE, "continuation-transaction-v3.json"), `{${CANARY}`, { mode: 0o600 }),
  "a short service secret": change(`${STATE}/continuation-secret`, () => CANARY),
  "a terminal token that is none": change(".mono-agent/terminal-token", () => `${CANARY}\n`),
  "a ledger that is no database": change(".mono-agent/host.sqlite", () => CANARY.repeat(500)),
  "mcp.json that is no JSON": change("mcp.json", (text) => text.replace(`"${MCP_SECRET}"`, CANARY)),
  "mcp.json with a secret of a wrong type": change("mcp.json", (text) =>
    text.replaceAll(`"${MCP_SECRET}"`, `["${CANARY}"]`),
  ),
  "a configuration that is no JSON": change("mono-agent.config.json", (text) =>
    text.replace('"BOX_KEY"', CANARY),
  ),
  "a key where its variable's name belongs": config((parsed) => {
    parsed.providers = { anthropic: { apiKeyEnv: CANARY }, local: [] };
  }),
  "a token where its variable's name belongs": config((parsed) => {
    Object.assign(parsed.continuations ?? {}, {
      detachedServices: [{ name: "ops", tokenEnv: CANARY }],
    });
  }),
  "a key beside its variable's name": config((parsed) => {
    parsed.providers = { anthropic: { apiKey: CANARY } };
  }),
};

async function outputs(folder: string, env: Record<string, string>) {
  let text = "";
  const commands = [
    ["serve", "--log-level", "debug"],
    ["doctor"],
    ["config", "show"],
    ["continuations", "health"],
    ["continuations", "owed"],
    ...ids.map((id) => ["continuations", "verify", id]),
  ];
  for (const command of commands) {
    const ran = await cliRun(folder, command, {
      env,
      // A host that starts in spite of the damage starts its guard by this command.
      self: [process.execPath, join(import.meta.dir, "../../src/main.ts")],
      // A host that starts in spite of the damage ends at once.
      onStop: (stop) => {
        stop();
        return () => {};
      },
    });
    text += `$ ${command.join(" ")}\n${ran.out}${ran.err}`;
  }
  return text;
}

/** With the folder's random name taken out. */
async function outputsOf(damage: Damage): Promise<string> {
  const folder = mkdtempSync(join(tmpdir(), "mono-agent-damaged-"));
  try {
    cpSync(world.path, folder, { recursive: true });
    damage(folder);
    const text = await outputs(folder, SECURITY_ENV);
    return text.replaceAll(folder, "FOLDER").replaceAll(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, "TIME");
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

describe("no command repeats a file's content about", () => {
  for (const [name, damage] of Object.entries(DAMAGES)) {
    test(name, async () => {
      const text = await outputsOf(damage);
      expect(secrets.filter((secret) => text.includes(secret) && !allowed(text, secret))).toEqual([]);
      expect(text).not.toContain("should not happen");
      // Other runtimes may have keys that this one does not know.
      if (name !== "records with other keys") expect(text).not.toBe(undamaged);
    });
  }
});

/** `config show` names the routes: they are a part of the configuration. */
function allowed(text: string, secret: string): boolean {
  if (secret !== "terminal:kept-place") return false;
  return text.split("$ ").every((part) => part.startsWith("config show") || !part.includes(secret));
}

test("a secret of the environment that is refused is not repeated", async () => {
  const folder = mkdtempSync(join(tmpdir(), "mono-agent-damaged-"));
  try {
    cpSync(world.path, folder, { recursive: true });
    const text = await outputs(folder, { ...SECURITY_ENV, OPS_TOKEN: "canary-short" });
    expect(text).toContain("OPS_TOKEN");
    expect(text).not.toContain("canary-short");
    writeFileSync(join(folder, ".env"), `OPS_TOKEN ${CANARY}\n`);
    const ran = await cliRun(folder, ["config", "show", "--env-file", ".env"], { env: {} });
    expect([ran.code, (ran.out + ran.err).includes(CANARY)]).toEqual([1, false]);
    expect(ran.err).toContain("line 1");
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});

test("a host whose disk fails answers, logs and prints without what it was told", async () => {
  const broken = await securityWorld({ withTools: false });
  try {
    const claimed = (await (await broken.detached(SERVICE_TOKEN, "before", "keep")).json()) as ClaimAnswer;
    const state = join(broken.path, STATE);
    rmSync(join(state, "records-v3"), { recursive: true });
    writeFileSync(join(state, "records-v3"), "");
    // No transaction can be written any more either: a folder that is not empty stands in its place.
    rmSync(join(state, "continuation-transaction-v3.json"), { force: true });
    cpSync(join(broken.path, "identity.md"), join(state, "continuation-transaction-v3.json", "x"));
    // The first commit may still swap that folder away; the next finds it where it would write.
    let keys = 0;
    await until("the disk to fail", async () => {
      keys += 1;
      return (await broken.detached(SERVICE_TOKEN, `key ${keys}`, "keep")).status !== 200;
    });
    const said: string[] = [];
    for (let attempt = 0; attempt < 2; attempt += 1) {
      for (const response of [
        await broken.submit(claimed, { text: PAYLOAD }),
        await broken.detached(SERVICE_TOKEN, CANARY, "keep"),
      ]) {
        expect([response.status, response.headers.get("retry-after") === null]).toEqual([503, false]);
        said.push(await response.text());
      }
    }
    const health = await cliRun(broken.path, ["continuations", "health"], { env: SECURITY_ENV });
    const list = await cliRun(broken.path, ["continuations", "list"], { env: SECURITY_ENV });
    expect(health.out).toContain("unhealthy");
    const text = [...said, ...broken.logger.lines, health.out, health.err, list.out, list.err].join("\n");
    expect(text).toContain("store_write_failed");
    for (const secret of [PAYLOAD, CANARY, SERVICE_TOKEN, claimed.token, broken.secret(), "kept-place"]) {
      expect(text).not.toContain(secret);
    }
  } finally {
    await broken.remove();
  }
});
