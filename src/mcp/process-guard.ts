import { type ChildProcess, spawn } from "node:child_process";
import type { Clock, Ids, Logger } from "../core/ports/platform.ts";

/**
 * Owns: that no stdio server survives the host, however the host dies. One small process for the whole host holds the
 * other end of a pipe; when the pipe ends, the host is gone, and it ends what is left.
 *
 * I1. The guard knows of a server before it exists: a mark in its environment is announced before the start, its
 *     process id after it. So there is no moment at which a SIGKILL of the host leaves a server unknown.
 * I2. A server that ends by itself at the end of its input is left alone, and so are helpers that it left behind
 *     (see stdio.ts, I3). Of any other nothing of its process group is left.
 * I3. The guard gets nothing of the host's environment, and stands outside of its process group and terminal.
 */

/** The variable that marks a server's process; its value is different for each start. */
export const MARK_ENV = "MONO_AGENT_MCP_PROCESS";
const MARK_BYTES = 12;
/** After the end of the host: how long until SIGTERM, until SIGKILL, and until nothing more is tried. */
const TERM_AFTER_MS = 1_000;
const KILL_AFTER_MS = 3_000;
const GIVE_UP_AFTER_MS = 10_000;
const LOOK_EVERY_MS = 50;

export interface ProcessGuard {
  /** Announces a server; the variable goes into its environment. */
  announce(): { readonly env: Readonly<Record<string, string>>; readonly watch: Watch };
  /** Ends the guard once the servers that it watches are gone. */
  close(): void;
}

/** Called once, with the pid of the started server, or undefined when the start failed. Returns how to forget it. */
export type Watch = (pid: number | undefined) => () => void;

export interface ProcessGuardOptions {
  /** The command that runs `runProcessGuard`. */
  readonly command: readonly string[];
  readonly ids: Ids;
  readonly logger: Logger;
}

export function createProcessGuard({ command, ids, logger }: ProcessGuardOptions): ProcessGuard {
  /** What is announced or runs, as the lines that a new guard is told first. */
  const watched = new Map<string, string>();
  let guard: ChildProcess | undefined;
  let closed = false;

  const tell = (line: string) => guard?.stdin?.write(line);

  const ensure = () => {
    if (guard !== undefined || closed) return;
    const [program = "", ...args] = command;
    const child = spawn(program, args, {
      cwd: "/",
      env: {},
      stdio: ["pipe", "ignore", "ignore"],
      detached: true,
    });
    guard = child;
    const ended = () => {
      if (guard !== child) return;
      guard = undefined;
      if (!closed)
        logger.warn("the guard of the mcp servers ended; the next start of a server starts another");
    };
    child.on("error", ended);
    child.on("exit", ended);
    child.stdin?.on("error", () => {});
    child.unref();
    for (const line of watched.values()) tell(line);
  };

  return {
    announce() {
      const mark = ids.token(MARK_BYTES);
      ensure();
      const remember = (line: string) => {
        watched.set(mark, line);
        tell(line);
      };
      const forget = () => {
        watched.delete(mark);
        tell(`- ${mark}\n`);
        if (closed && watched.size === 0) guard?.stdin?.end();
      };
      remember(`? ${mark}\n`);
      return {
        env: { [MARK_ENV]: mark },
        watch(pid) {
          if (pid === undefined) forget();
          else remember(`+ ${mark} ${pid}\n`);
          return forget;
        },
      };
    },
    close() {
      closed = true;
      if (watched.size === 0) guard?.stdin?.end();
    },
  };
}

/** What the guard may do to its surroundings. */
export interface GuardProcess {
  /** What the host says, until it is gone. */
  readonly input: AsyncIterable<Uint8Array>;
  readonly clock: Clock;
  /** Processes whose environment has this entry. Empty where the system does not tell. */
  marked(entry: string): readonly number[];
  isRunning(pid: number): boolean;
  /** Signals a process group; a group that is gone is no error. */
  signalGroup(group: number, signal: "SIGTERM" | "SIGKILL"): void;
}

/** The guard itself: listens until the host is gone, then ends its servers. Resolves when nothing is left to do. */
export async function runProcessGuard({ input, clock, ...system }: GuardProcess): Promise<void> {
  const pids = new Map<string, number | undefined>();
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of input) {
    const lines = (rest + decoder.decode(chunk, { stream: true })).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      const [what, mark = "", pid] = line.split(" ");
      if (what === "-") pids.delete(mark);
      else pids.set(mark, pid === undefined ? undefined : Number(pid));
    }
  }
  const leaders = new Set([...pids.values()].filter((pid) => pid !== undefined));
  const unseen = [...pids].filter(([, pid]) => pid === undefined).map(([mark]) => `${MARK_ENV}=${mark}`);
  const gone = clock.now();
  const signalled = new Set<number>();
  for (;;) {
    const passed = clock.now() - gone;
    // A server that was about to start may appear a little later than its host died.
    for (const entry of unseen) for (const pid of system.marked(entry)) leaders.add(pid);
    const running = [...leaders].filter((pid) => system.isRunning(pid));
    const waiting = unseen.length > 0 && passed < TERM_AFTER_MS;
    if ((running.length === 0 && !waiting) || passed > GIVE_UP_AFTER_MS) break;
    if (passed >= TERM_AFTER_MS) {
      for (const pid of running) {
        if (passed < KILL_AFTER_MS && signalled.has(pid)) continue;
        signalled.add(pid);
        system.signalGroup(pid, passed >= KILL_AFTER_MS ? "SIGKILL" : "SIGTERM");
      }
    }
    const later = Promise.withResolvers<void>();
    clock.timer(LOOK_EVERY_MS, later.resolve);
    await later.promise;
  }
  for (const group of signalled) system.signalGroup(group, "SIGKILL");
}
