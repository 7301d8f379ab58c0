import { expect, test } from "bun:test";
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { isTerminal } from "../../src/core/record.ts";
import { STORE_ENTRIES } from "../../src/core/store-files.ts";
import type { ClaimAnswer, ContinuationStatus } from "../../src/core/wire.ts";
import { type AgentFolder, agentFolder, BINARY } from "../support/binary.ts";

/**
 * SIGKILL of the real process with real files, at random moments under load: claims, results and finished work of
 * detached services come in over HTTP, and after each restart everything that was acknowledged is asked for again.
 */

const KILLS = 300;
/** Hosts that run, each in its own folder, at the same time. */
const LANES = 3;
const CLIENTS = 8;
/** A host is killed after so many acknowledgements at most, and up to so long after the last of them. */
const MOST_ACKNOWLEDGEMENTS = 60;
const MOST_DELAY_MS = 30;
/** Results up to this size: few of them are more than the transaction file carries, so that checkpoints are hit too. */
const MOST_FILLER_CHARS = 90_000;
const SEED = Number(process.env.KILL_SEED ?? 20_261_130);
const TOKEN = "a-token-of-the-kill-test";
const DEADLINE = new Date(Date.now() + 86_400_000).toISOString();

interface Work {
  readonly key: string;
  readonly route: "silent" | "capture";
  readonly filler: string;
  claim?: ClaimAnswer;
  resultAcknowledged?: boolean;
  /** The last status that was read. */
  status?: ContinuationStatus;
}

interface Totals {
  claims: number;
  results: number;
  finished: number;
  kills: number;
  /** Kills that left a temporary among the record files. */
  inCheckpoint: number;
}

/** Park and Miller's minimal standard generator: whole numbers from 0 to below `bound`. */
function seeded(seed: number): (bound: number) => number {
  let state = seed;
  return (bound) => {
    state = (state * 48_271) % 2_147_483_647;
    return state % bound;
  };
}

const bearer = (token: string) => ({ authorization: `Bearer ${token}` });

async function answer<T>(response: Response, status: number): Promise<T> {
  const text = await response.text();
  if (response.status !== status) throw new Error(`expected ${status}, got ${response.status}: ${text}`);
  return JSON.parse(text) as T;
}

function clientOf(folder: AgentFolder) {
  const url = `http://127.0.0.1:${folder.ports.continuations}/v1/continuations`;
  return {
    async claim({ key, route }: Work): Promise<ClaimAnswer> {
      const response = await fetch(`${url}/detached/claim`, {
        method: "POST",
        headers: { ...bearer(TOKEN), "x-mono-agent-service-name": "killed" },
        body: JSON.stringify({ taskKey: key, taskHash: `hash-${key}`, deadline: DEADLINE, route }),
      });
      return answer(response, 200);
    },
    async submit({ key, filler }: Work, { continuationId, token }: ClaimAnswer): Promise<void> {
      const response = await fetch(`${url}/${continuationId}/result`, {
        method: "PUT",
        headers: bearer(token),
        body: JSON.stringify({
          idempotencyKey: `result-${key}`,
          payload: { summary: `done ${key}`, filler },
        }),
      });
      await answer(response, 202);
    },
    async status({ continuationId, token }: ClaimAnswer): Promise<ContinuationStatus> {
      return answer(await fetch(`${url}/${continuationId}/status`, { headers: bearer(token) }), 200);
    },
  };
}
type Client = ReturnType<typeof clientOf>;

/** Takes the work as far as it goes; `acknowledged` is told after each answer. */
async function advance(client: Client, work: Work, acknowledged: () => void): Promise<void> {
  work.claim ??= await client.claim(work);
  acknowledged();
  if (work.resultAcknowledged !== true) {
    await client.submit(work, work.claim);
    work.resultAcknowledged = true;
    acknowledged();
  }
  while (work.status === undefined || !isTerminal(work.status)) {
    work.status = await client.status(work.claim);
    acknowledged();
  }
}

/** What was acknowledged before a kill is there after it, and says the same. */
async function verify(client: Client, work: Work): Promise<void> {
  if (work.claim === undefined) return;
  const before = work.status;
  const now = await client.status(work.claim);
  expect(now.taskKey).toBe(work.key);
  if (work.resultAcknowledged === true) expect([work.key, now.state]).not.toEqual([work.key, "claimed"]);
  if (before !== undefined && isTerminal(before)) expect(now).toEqual(before);
  expect(now.attempts.synthesis).toBeGreaterThanOrEqual(before?.attempts.synthesis ?? 0);
  expect(now.attempts.synthesis).toBeLessThanOrEqual(work.route === "capture" ? 1 : 0);
  const again = await client.claim(work);
  expect(again).toEqual({ ...work.claim, replayed: true });
  work.status = now;
}

interface Running {
  kill(): Promise<unknown>;
}

/** Resolves when the host says that it listens: polling would take the processor from the hosts. */
async function startHost(cwd: string): Promise<Running> {
  const child = Bun.spawn([BINARY, "serve"], {
    cwd,
    env: { PATH: process.env.PATH ?? "", HOME: cwd, KILL_TOKEN: TOKEN },
    stdin: "ignore",
    stdout: "ignore",
    stderr: "pipe",
  });
  const lines = child.stderr.pipeThrough(new TextDecoderStream()).getReader();
  let log = "";
  while (!log.includes("listening name=continuations")) {
    const { done, value } = await lines.read();
    if (done) throw new Error(`serve ended with ${await child.exited}: ${log}`);
    log += value;
  }
  return {
    kill() {
      child.kill("SIGKILL");
      return child.exited;
    },
  };
}

function temporaries(folder: string): number {
  return existsSync(folder) ? readdirSync(folder).filter((name) => name.endsWith(".tmp")).length : 0;
}

async function lane(number: number, kills: number, totals: Totals): Promise<void> {
  const random = seeded(SEED + number);
  const folder = agentFolder();
  folder.write("mono-agent.config.json", {
    runtime: { model: "demo:assistant" },
    context: { identityPath: "identity.md" },
    continuations: {
      port: folder.ports.continuations,
      namedRoutes: {
        silent: { mode: "silent" },
        capture: { mode: "capture", conversationId: "terminal:main" },
      },
      detachedServices: [{ name: "killed", tokenEnv: "KILL_TOKEN" }],
    },
    terminal: { enabled: false },
  });
  const client = clientOf(folder);
  const records = join(folder.path, ".mono-agent/continuations", STORE_ENTRIES.records);
  const done: Work[] = [];
  let open: Work[] = [];
  let made = 0;
  const next = (): Work => {
    made += 1;
    return {
      key: `task-${number}-${made}`,
      route: random(3) === 0 ? "capture" : "silent",
      filler: random(2) === 0 ? "f".repeat(random(MOST_FILLER_CHARS)) : "",
    };
  };
  let running: Running | undefined;
  const start = async () => {
    running = await startHost(folder.path);
    return running;
  };

  try {
    for (let round = 0; round < kills; round += 1) {
      const host = await start();
      for (const work of open) await verify(client, work);
      let left = random(MOST_ACKNOWLEDGEMENTS + 1);
      let killed = false;
      let dead: Promise<unknown> | undefined;
      const kill = () => {
        killed = true;
        return host.kill();
      };
      const acknowledged = () => {
        left -= 1;
        if (left <= 0) dead ??= Bun.sleep(random(MOST_DELAY_MS)).then(kill);
      };
      const waiting = open.filter((work) => work.status === undefined || !isTerminal(work.status));
      done.push(...open.filter((work) => !waiting.includes(work)));
      open = [...waiting];
      const ready = [...waiting];
      await Promise.all(
        Array.from({ length: CLIENTS }, async () => {
          while (!killed) {
            let work = ready.shift();
            if (work === undefined) {
              work = next();
              open.push(work);
            }
            try {
              await advance(client, work, acknowledged);
            } catch (error) {
              // The answer of a host that was killed may never come; anything else is a failure.
              if (!killed || (error instanceof Error && error.message.startsWith("expected"))) throw error;
            }
          }
        }),
      );
      await dead;
      totals.kills += 1;
      totals.inCheckpoint += temporaries(records) > 0 ? 1 : 0;
    }

    await start();
    for (const work of [...open, ...done]) await verify(client, work);
    for (const work of open) await advance(client, work, () => {});
    expect((await folder.health()).storage.fault).toBeUndefined();
    const all = [...open, ...done];
    totals.claims += all.filter((work) => work.claim !== undefined).length;
    totals.results += all.filter((work) => work.resultAcknowledged === true).length;
    totals.finished += all.filter((work) => work.status !== undefined && isTerminal(work.status)).length;
  } finally {
    await running?.kill();
    await folder.remove();
  }
}

test(`${KILLS} kills at random moments under load lose nothing that was acknowledged`, async () => {
  const totals: Totals = { claims: 0, results: 0, finished: 0, kills: 0, inCheckpoint: 0 };
  const startMs = performance.now();
  await Promise.all(Array.from({ length: LANES }, (_, number) => lane(number, KILLS / LANES, totals)));
  const seconds = (performance.now() - startMs) / 1000;
  console.log(`kills: ${JSON.stringify(totals)} in ${seconds.toFixed(1)} s, seed ${SEED}`);
  expect(totals.kills).toBe(KILLS);
  expect(totals.finished).toBeGreaterThan(KILLS);
  expect(totals.inCheckpoint).toBeGreaterThan(0);
}, 180_000);
