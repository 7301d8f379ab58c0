import { errorText, McpError } from "../core/errors.ts";
import type { Clock, Ids, Logger } from "../core/ports/platform.ts";

/**
 * Owns: that no stdio server survives the host, however the host dies. One small process for the whole host holds the
 * other end of a pipe; when the pipe ends, the host is gone, and it ends what is left.
 *
 * I1. The guard knows of a server before it exists: a mark in its environment is announced before the start, its
 *     process id after it. So there is no moment at which a SIGKILL of the host leaves a server unknown.
 *     What is said is in the pipe, not in a buffer of ours, when the saying returns.
 * I2. After the host's end a server has a moment to end by itself at the end of its input, and its helpers with it.
 *     Then nothing is left of its process group. A helper that left the group has chosen a life of its own.
 * I3. The guard gets nothing of the host's environment, and stands outside of its process group and terminal.
 */

/** The variable that marks a server's process; its value is different for each start. */
export const MARK_ENV = "MONO_AGENT_MCP_PROCESS";
const MARK_BYTES = 12;
/** After the end of the host: how long until SIGTERM, until SIGKILL, and until nothing more is tried. */
const TERM_AFTER_MS = 1_000;
const KILL_AFTER_MS = 3_000;
const GIVE_UP_AFTER_MS = 10_000;
const LOOK_EVERY_MS = 100;

export interface ProcessGuard {
  /** Starts the guard; `announce` does it too, but a start takes time and should not be in the way of a server. */
  start(): void;
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
  let guard: GuardChild | undefined;
  let closed = false;

  /** Lost with a guard that ended just now: the next one is told everything again. */
  const tell = (line: string) => {
    try {
      guard?.stdin.write(line);
      void guard?.stdin.flush();
    } catch {
      guard = undefined;
    }
  };

  const dismiss = () => {
    if (!closed || watched.size > 0) return;
    void guard?.stdin.end();
    guard = undefined;
  };

  const ensure = () => {
    if (guard !== undefined || closed) return;
    const child = spawnGuard(command, (ended) => {
      if (guard !== ended) return;
      guard = undefined;
      logger.warn("the guard of the mcp servers ended; the next start of a server starts another");
    });
    guard = child;
    child.unref();
    for (const line of watched.values()) tell(line);
  };

  return {
    start: ensure,
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
        dismiss();
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
      dismiss();
    },
  };
}

/** What the guard may do to its surroundings. */
export interface GuardProcess {
  /** What the host says, until it is gone. */
  readonly input: AsyncIterable<Uint8Array>;
  readonly clock: Clock;
  /** Running processes whose environment has this entry, with their groups. Empty where the system does not tell. */
  marked(entry: string): readonly { readonly pid: number; readonly group: number }[];
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
  // A server leads a group of its own; one that was only announced is found by its mark.
  const groups = new Map(pids);
  const gone = clock.now();
  const signalled = new Set<number>();
  const isLeft = (mark: string): boolean => {
    const members = system.marked(`${MARK_ENV}=${mark}`);
    const group = groups.get(mark) ?? members[0]?.group;
    groups.set(mark, group);
    return (
      group !== undefined && (system.isRunning(group) || members.some((member) => member.group === group))
    );
  };
  for (;;) {
    const passed = clock.now() - gone;
    const left = [...groups.keys()].filter(isLeft);
    // A server that was about to start may appear a little later than its host died.
    const awaited = passed < KILL_AFTER_MS && [...groups.values()].includes(undefined);
    if ((left.length === 0 && !awaited) || passed > GIVE_UP_AFTER_MS) break;
    const signal = passed >= KILL_AFTER_MS ? "SIGKILL" : "SIGTERM";
    for (const group of passed < TERM_AFTER_MS ? [] : left.map((mark) => groups.get(mark))) {
      if (group === undefined || (signal === "SIGTERM" && signalled.has(group))) continue;
      signalled.add(group);
      system.signalGroup(group, signal);
    }
    const later = Promise.withResolvers<void>();
    clock.timer(LOOK_EVERY_MS, later.resolve);
    await later.promise;
  }
  for (const group of signalled) system.signalGroup(group, "SIGKILL");
}

type GuardChild = Bun.Subprocess<"pipe", "ignore", "ignore">;

function spawnGuard(command: readonly string[], onExit: (ended: GuardChild) => void): GuardChild {
  try {
    return Bun.spawn([...command], {
      cwd: "/",
      env: {},
      stdin: "pipe",
      stdout: "ignore",
      stderr: "ignore",
      detached: true,
      onExit,
    });
  } catch (error) {
    throw new McpError(
      "mcp_failed",
      `the guard of the mcp servers can't be started (${errorText(error)}): its command must be this program`,
      { cause: error },
    );
  }
}
