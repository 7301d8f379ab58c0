import { readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { BINARY } from "./binary.ts";

/** The real host as a process that is killed by SIGKILL: while it starts, or once it listens. */

/** Work of one kind for a host that is killed. */
export interface KilledLoad<Work> {
  next(): Work;
  /** Takes the work as far as it goes; `acknowledged` is told after each answer. */
  advance(work: Work, acknowledged: () => void): Promise<void>;
  isDone(work: Work): boolean;
  /** The host is dead. */
  killed(work: Work): void;
  /** What was acknowledged before a kill is there after it, and says the same. */
  verify(work: Work): Promise<void>;
  isClaimed(work: Work): boolean;
  isResultAcknowledged(work: Work): boolean;
}

export interface Listening {
  kill(): Promise<unknown>;
  log(): string;
  /** How long it took to listen. */
  readonly startMs: number;
}

/** Park and Miller's minimal standard generator: whole numbers from 0 to below `bound`. */
export function seeded(seed: number): (bound: number) => number {
  let state = seed;
  return (bound) => {
    state = (state * 48_271) % 2_147_483_647;
    return state % bound;
  };
}

function spawnHost(cwd: string, env: Readonly<Record<string, string>>) {
  const child = Bun.spawn([BINARY, "serve"], {
    cwd,
    env: { PATH: process.env.PATH ?? "", HOME: cwd, ...env },
    stdin: "ignore",
    stdout: "ignore",
    stderr: "pipe",
  });
  let log = "";
  /** Whether the host says that it listens before it ends: polling would take its processor. */
  const listens = Promise.withResolvers<boolean>();
  const read = async () => {
    for await (const text of child.stderr.pipeThrough(new TextDecoderStream())) {
      log += text;
      if (log.includes("listening name=continuations")) listens.resolve(true);
    }
    listens.resolve(false);
  };
  read().catch(listens.reject);
  return {
    listens: listens.promise,
    exited: child.exited,
    log: () => log,
    kill() {
      child.kill("SIGKILL");
      return child.exited;
    },
  };
}

export async function startHost(cwd: string, env: Readonly<Record<string, string>>): Promise<Listening> {
  const startMs = performance.now();
  const host = spawnHost(cwd, env);
  if (!(await host.listens)) throw new Error(`serve ended with ${await host.exited}: ${host.log()}`);
  return { kill: host.kill, log: host.log, startMs: performance.now() - startMs };
}

/** Kills a host so long after it was started; true when it did not listen yet. One that ends by itself is a failure. */
export async function killStartingHost(
  cwd: string,
  env: Readonly<Record<string, string>>,
  delayMs: number,
): Promise<boolean> {
  const host = spawnHost(cwd, env);
  const first = await Promise.race([
    host.exited.then(() => "ended"),
    Bun.sleep(delayMs).then(() => "killed"),
  ]);
  if (first === "ended") throw new Error(`serve ended with ${await host.exited}: ${host.log()}`);
  await host.kill();
  return !(await host.listens);
}

/** Name, size and time of every file below a folder, as one text: whether something was written there. */
export function written(folder: string): string {
  return readdirSync(folder, { recursive: true, encoding: "utf8" })
    .filter((name) => !name.includes(".sqlite"))
    .sort()
    .map((name) => {
      const { size, mtimeMs, ino } = statSync(join(folder, name));
      return `${name} ${size} ${mtimeMs} ${ino}`;
    })
    .join("\n");
}
