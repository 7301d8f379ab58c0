import { expect, test } from "bun:test";
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { isTerminal } from "../../src/core/record.ts";
import { isTemporary } from "../../src/core/secure-files.ts";
import { STORE_ENTRIES } from "../../src/core/store-files.ts";
import type { ClaimAnswer, ContinuationStatus } from "../../src/core/wire.ts";
import { type AgentFolder, agentFolder } from "../support/binary.ts";
import {
  type KilledLoad,
  killStartingHost,
  type Listening,
  seeded,
  startHost,
  written,
} from "../support/killed-host.ts";
import { killedTurns } from "../support/killed-turns.ts";

/**
 * SIGKILL of the real process with real files, at random moments under load: claims, results and finished work of
 * detached services come in over HTTP, turns delegate work, and after each restart, which may be killed itself,
 * everything that was acknowledged is asked for again.
 */

const KILLS = 300;
/** Hosts that run, each in its own folder, at the same time. */
const LANES = 3;
const CLIENTS = 8;
/** A host is killed up to so long after the last acknowledgement that it may give. */
const MOST_DELAY_MS = 30;
/** One of so many starts is killed before the host listens. */
const STARTS_PER_KILLED = 4;
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
  /** Kills of a host that listened. */
  kills: number;
  /** Kills that left a temporary among the record files. */
  inCheckpoint: number;
  /** Kills that left a marker, or a temporary of one or of a snapshot. */
  inActivation: number;
  /** Kills of a host that did not listen yet, and those of them that came after it had written to the store. */
  inStart: number;
  inRecovery: number;
  /** Answers from the context of their turn, and those of turns that a kill interrupted. */
  pinned: number;
  abandoned: number;
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

/** Claims, results and finished work of a detached service. */
function detachedLoad(client: Client, random: (bound: number) => number, lane: number): KilledLoad<Work> {
  let made = 0;
  return {
    next() {
      made += 1;
      return {
        key: `task-${lane}-${made}`,
        route: random(3) === 0 ? "capture" : "silent",
        filler: random(2) === 0 ? "f".repeat(random(MOST_FILLER_CHARS)) : "",
      };
    },
    isDone: ({ status }) => status !== undefined && isTerminal(status),
    async advance(work, acknowledged) {
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
    },
    killed: () => {},
    async verify(work) {
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
    },
    isClaimed: (work) => work.claim !== undefined,
    isResultAcknowledged: (work) => work.resultAcknowledged === true,
  };
}

interface Lane<W> {
  readonly folder: AgentFolder;
  readonly load: KilledLoad<W>;
  readonly random: (bound: number) => number;
  /** A host is killed after so many acknowledgements at most. */
  readonly mostAcknowledgements: number;
}

async function runLane<W>({ folder, load, random, ...lane }: Lane<W>, totals: Totals): Promise<void> {
  const env = { KILL_TOKEN: TOKEN };
  const store = join(folder.path, ".mono-agent/continuations");
  const done: W[] = [];
  let open: W[] = [];
  let running: Listening | undefined;
  let startMs = 0;

  /** A share of the starts is killed on the way; the next one finds what that and the kill before left. */
  const start = async () => {
    while (startMs > 0 && random(STARTS_PER_KILLED) === 0) {
      const before = written(store);
      if (!(await killStartingHost(folder.path, env, (startMs * random(100)) / 100))) continue;
      totals.inStart += 1;
      totals.inRecovery += written(store) === before ? 0 : 1;
    }
    running = await startHost(folder.path, env);
    startMs = running.startMs;
    return running;
  };

  try {
    for (let round = 0; round < KILLS / LANES; round += 1) {
      const host = await start();
      for (const work of open) await load.verify(work);
      let acknowledgements = random(lane.mostAcknowledgements + 1);
      let killed = false;
      let dead: Promise<unknown> | undefined;
      const kill = () => {
        killed = true;
        return host.kill();
      };
      const acknowledged = () => {
        acknowledgements -= 1;
        if (acknowledgements <= 0) dead ??= Bun.sleep(random(MOST_DELAY_MS)).then(kill);
      };
      const waiting = open.filter((work) => !load.isDone(work));
      done.push(...open.filter((work) => load.isDone(work)));
      open = [...waiting];
      await Promise.all(
        Array.from({ length: CLIENTS }, async () => {
          while (!killed) {
            let work = waiting.shift();
            if (work === undefined) {
              work = load.next();
              open.push(work);
            }
            try {
              await load.advance(work, acknowledged);
            } catch (error) {
              // The answer of a host that was killed may never come; anything else is a failure.
              if (!killed || !isBrokenConnection(error)) throw error;
            }
          }
        }),
      );
      await dead;
      for (const work of open) load.killed(work);
      totals.kills += 1;
      const left = (name: string) => namesIn(join(store, name));
      totals.inCheckpoint += left(STORE_ENTRIES.records).some(isTemporary) ? 1 : 0;
      const activating = [
        ...left(STORE_ENTRIES.markers),
        ...left(STORE_ENTRIES.snapshots).filter(isTemporary),
      ];
      totals.inActivation += activating.length > 0 ? 1 : 0;
    }

    await start();
    const all = [...open, ...done];
    for (const work of all) await load.verify(work);
    for (const work of open) await load.advance(work, () => {});
    expect((await folder.health()).storage.fault).toBeUndefined();
    totals.claims += all.filter(load.isClaimed).length;
    totals.results += all.filter(load.isResultAcknowledged).length;
    totals.finished += all.filter(load.isDone).length;
  } catch (error) {
    throw new Error(`${String(error)}\nthe last host said:\n${running?.log()}`, { cause: error });
  } finally {
    await running?.kill();
    await folder.remove();
  }
}

/** What `fetch` rejects with when the other end is gone, as opposed to an expectation that does not hold. */
function isBrokenConnection(error: unknown): boolean {
  return error instanceof Error && "code" in error;
}

const namesIn = (folder: string) => (existsSync(folder) ? readdirSync(folder) : []);

async function detachedLane(number: number, totals: Totals): Promise<void> {
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
  const load = detachedLoad(clientOf(folder), random, number);
  await runLane({ folder, load, random, mostAcknowledgements: 60 }, totals);
}

/** Its claims are those of turns, so that kills meet snapshots, markers and activations too. */
async function turnLane(number: number, totals: Totals): Promise<void> {
  const random = seeded(SEED + number);
  const folder = agentFolder();
  const load = await killedTurns(folder, random);
  try {
    await runLane({ folder, load, random, mostAcknowledgements: 60 }, totals);
    Object.assign(totals, load.answers());
  } finally {
    await load.stop();
  }
}

test(`${KILLS} kills at random moments under load, and others while it starts, lose nothing that was acknowledged`, async () => {
  const totals: Totals = {
    claims: 0,
    results: 0,
    finished: 0,
    kills: 0,
    inCheckpoint: 0,
    inActivation: 0,
    inStart: 0,
    inRecovery: 0,
    pinned: 0,
    abandoned: 0,
  };
  const startMs = performance.now();
  await Promise.all([detachedLane(0, totals), detachedLane(1, totals), turnLane(2, totals)]);
  const seconds = (performance.now() - startMs) / 1000;
  console.log(`kills: ${JSON.stringify(totals)} in ${seconds.toFixed(1)} s, seed ${SEED}`);
  expect(totals.kills).toBe(KILLS);
  expect(totals.finished).toBeGreaterThan(KILLS);
  for (const kind of [
    "inCheckpoint",
    "inActivation",
    "inStart",
    "inRecovery",
    "pinned",
    "abandoned",
  ] as const)
    expect([kind, totals[kind]]).not.toEqual([kind, 0]);
}, 180_000);
