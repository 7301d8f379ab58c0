import { type ChildProcess, spawn } from "node:child_process";
import type { Transport } from "@modelcontextprotocol/sdk/shared/transport.js";
import { MIB } from "../core/limits.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";
import type { ProcessGuard } from "./process-guard.ts";
import { type Redact, stderrLines } from "./stderr-lines.ts";

/**
 * Owns: the life of one stdio server: start, messages, end. The SDK's own stdio transport can't end a process
 * group, so that a wrapper such as `npx` would leave the real server behind; hence this one, over the SDK's codec.
 *
 * I1. The child leads its own process group (POSIX). Signals go to the whole group.
 * I2. `close` resolves only when the child is gone: end of input, after 2 s SIGTERM, after 5 s in all SIGKILL.
 * I3. A child that leaves by itself at the end of its input may leave helpers that it started; they are its
 *     business. Whoever ended otherwise, by a signal or too early, leaves nothing of its group.
 * I4. The child gets exactly the environment given here, and the mark of the guard when there is one.
 * I5. The guard knows of the child before it starts, and until it is gone.
 */

const TERM_AFTER_MS = 2_000;
const KILL_AFTER_MS = 5_000;
/** How long output may still arrive after the child's exit while a helper holds its pipe open, or the exit after it. */
const DRAIN_MS = 250;

export interface StdioOptions {
  readonly command: string;
  readonly args: readonly string[];
  readonly env: Record<string, string>;
  readonly cwd: string;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly server: string;
  readonly redact: Redact;
  readonly guard?: ProcessGuard | undefined;
}

export interface StdioTransport extends Transport {
  readonly pid: number | undefined;
  /** The version of the protocol that was agreed on; undefined before. */
  readonly protocolVersion: string | undefined;
  /** How the child ended, in words; undefined while it runs or when it never started. */
  exitText(): string | undefined;
}

/** The codec of the SDK: newline-delimited JSON-RPC, bounded in size. */
type StdioCodec = typeof import("@modelcontextprotocol/sdk/shared/stdio.js");

export function createStdioTransport(options: StdioOptions, codec: StdioCodec): StdioTransport {
  const { clock, logger, server } = options;
  const groups = process.platform !== "win32";
  const buffer = new codec.ReadBuffer();
  const gone = Promise.withResolvers<void>();
  let child: ChildProcess | undefined;
  let exit: string | undefined;
  let closing: Promise<void> | undefined;
  let finished = false;
  /** Why nothing more can be understood of a child that runs, in words. */
  let useless: string | undefined;
  let forget = () => {};
  let protocolVersion: string | undefined;

  /** The child and its pipes are gone, or its pipes no longer matter: nothing more will arrive. */
  const finish = () => {
    if (finished) return;
    finished = true;
    forget();
    buffer.clear();
    gone.resolve();
    transport.onclose?.();
  };

  const signal = (name: "SIGTERM" | "SIGKILL") => {
    if (child?.pid === undefined) return;
    try {
      if (groups) process.kill(-child.pid, name);
      else child.kill(name);
    } catch {
      // Nobody is left in the group.
    }
  };

  const read = (chunk: Buffer) => {
    try {
      buffer.append(chunk);
    } catch (error) {
      // Nothing after it can be understood.
      useless = `sent a message of more than ${codec.STDIO_DEFAULT_MAX_BUFFER_SIZE / MIB} MiB`;
      transport.onerror?.(error as Error);
      void transport.close();
      return;
    }
    for (;;) {
      try {
        const message = buffer.readMessage();
        if (message === null) return;
        transport.onmessage?.(message);
      } catch (error) {
        // A line that is not a message, such as a stray print, is passed over.
        transport.onerror?.(error as Error);
      }
    }
  };

  const end = async (running: ChildProcess) => {
    let signalled = false;
    const stop = (name: "SIGTERM" | "SIGKILL") => () => {
      signalled = true;
      logger.debug("mcp server is slow to end", { server, signal: name });
      signal(name);
    };
    const timers = [clock.timer(TERM_AFTER_MS, stop("SIGTERM")), clock.timer(KILL_AFTER_MS, stop("SIGKILL"))];
    running.stdin?.end();
    await gone.promise;
    for (const cancel of timers) cancel();
    if (signalled) signal("SIGKILL");
  };

  const transport: StdioTransport = {
    get pid() {
      return child?.pid;
    },
    get protocolVersion() {
      return protocolVersion;
    },
    setProtocolVersion(version) {
      protocolVersion = version;
    },
    exitText: () => useless ?? exit,
    start() {
      const started = Promise.withResolvers<void>();
      const announced = options.guard?.announce();
      const running = spawn(options.command, [...options.args], {
        env: { ...options.env, ...announced?.env },
        cwd: options.cwd,
        stdio: ["pipe", "pipe", "pipe"],
        detached: groups,
        windowsHide: true,
      });
      child = running;
      if (announced !== undefined) forget = announced.watch(running.pid);
      const lines = stderrLines(options.redact, (line) =>
        logger.debug("mcp server stderr", { server, line }),
      );
      running.on("spawn", () => started.resolve());
      running.on("error", (error) => {
        started.reject(error);
        if (running.pid === undefined) finish();
        else transport.onerror?.(error);
      });
      running.on("exit", (code, name) => {
        exit = code === null ? `was ended by ${name}` : `ended with exit code ${code}`;
        // Nobody asked it to end: whatever it had started is cut off with it.
        if (closing === undefined) signal("SIGKILL");
        clock.timer(DRAIN_MS, finish);
      });
      running.on("close", finish);
      running.stdin?.on("error", (error) => transport.onerror?.(error));
      running.stdout?.on("data", read);
      running.stdout?.on("end", () => {
        // An ordinary end closes it, too, and is told by the process.
        clock.timer(DRAIN_MS, () => {
          if (exit !== undefined || closing !== undefined) return;
          useless = "closed its output";
          void transport.close();
        });
      });
      running.stdout?.on("error", (error) => transport.onerror?.(error));
      running.stderr?.setEncoding("utf8");
      running.stderr?.on("data", (text: string) => lines.write(text));
      running.stderr?.on("end", () => lines.end());
      running.stderr?.on("error", () => lines.end());
      return started.promise;
    },
    send(message) {
      return new Promise((resolve, reject) => {
        const input = child?.stdin;
        if (!input?.writable || closing !== undefined) {
          reject(new Error("the server's input is closed"));
          return;
        }
        input.write(codec.serializeMessage(message), (error) => (error ? reject(error) : resolve()));
      });
    },
    close() {
      if (child === undefined) return Promise.resolve();
      closing ??= end(child);
      return closing;
    },
  };
  return transport;
}
