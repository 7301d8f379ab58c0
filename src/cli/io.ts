import type { Environment } from "../config/environment.ts";

export type ExitCode = 0 | 1 | 2;

/** What a command may touch of its process. Tests give their own. */
export interface CliIo {
  /** Standard output: what was asked for. */
  out(text: string): void;
  /** Standard error: progress, errors and hints. */
  err(text: string): void;
  readonly cwd: string;
  readonly env: Environment;
  /** Width of the terminal that reads standard output; undefined when none does. */
  readonly columns: number | undefined;
  /** Whether a terminal reads standard error, and colours are welcome there. */
  readonly errColor: boolean;
  /** The command by which this program starts itself. */
  readonly self: readonly string[];
  /** Asks at the terminal; undefined when nobody sits there, and empty after Ctrl-C or Ctrl-D. */
  ask(question: string): Promise<string | undefined>;
  /** Calls `stop` at the first SIGINT or SIGTERM and again at each further one; the returned function unsubscribes. */
  onStop(stop: () => void): () => void;
  /**
   * Calls `stop` when standard output has no reader any more (`| head`) or can't be written, for what would never end by
   * itself. Noticed at the next output. The returned function unsubscribes.
   */
  onUnread(stop: () => void): () => void;
  /**
   * Calls `reload` at each SIGHUP; the returned function unsubscribes. With a terminal on standard error a SIGHUP means
   * that the terminal is gone, and ends the program as ever.
   */
  onReload(reload: () => void): () => void;
}

/** The real process. The only place that hands its environment and streams on. */
export function processIo(): CliIo {
  const { stdout, stderr, env, execPath } = process;
  // A compiled program is its own executable; from the sources, bun runs an entry file.
  const compiled = Bun.isStandaloneExecutable;
  // There is nowhere to tell that standard error is lost.
  const err = writerTo(stderr, () => {});
  let told = false;
  const out = writerTo(stdout, (code) => {
    if (!told) err.write(`error: standard output can't be written (${code})\n`);
    told = true;
    process.exitCode ||= 1;
  });
  return {
    out: out.write,
    err: err.write,
    cwd: process.cwd(),
    env,
    columns: stdout.isTTY ? stdout.columns : undefined,
    errColor: stderr.isTTY === true && !env.NO_COLOR,
    self: compiled ? [execPath] : [execPath, Bun.main],
    async ask(question) {
      if (!process.stdin.isTTY || !stderr.isTTY) return undefined;
      const { createInterface } = await import("node:readline/promises");
      const terminal = createInterface({ input: process.stdin, output: stderr });
      try {
        return await terminal.question(question);
      } catch (error) {
        if (!(error instanceof Error && error.name === "AbortError")) throw error;
        stderr.write("\n");
        return "";
      } finally {
        terminal.close();
      }
    },
    onStop(stop) {
      process.on("SIGINT", stop);
      process.on("SIGTERM", stop);
      return () => {
        process.off("SIGINT", stop);
        process.off("SIGTERM", stop);
      };
    },
    onUnread: out.onUnread,
    onReload(reload) {
      if (stderr.isTTY === true) return () => {};
      process.on("SIGHUP", reload);
      return () => process.off("SIGHUP", reload);
    },
  };
}

/**
 * What can't be written ends the output, not the work: a half-done command would leave more behind, and a host outlives
 * a full disk under its log. `lost` is told the code of a failure, unless a reader only went away (`| head`).
 */
function writerTo(
  stream: NodeJS.WriteStream,
  lost: (code: string) => void,
): Pick<CliIo, "onUnread"> & { write(text: string): void } {
  const unread = new AbortController();
  const failed = (error: unknown) => {
    if (!(error instanceof Error && "code" in error)) throw error;
    if (error.code !== "EPIPE") lost(String(error.code));
    unread.abort();
  };
  stream.on("error", failed);
  return {
    write(text) {
      try {
        stream.write(text);
      } catch (error) {
        failed(error);
      }
    },
    onUnread(stop) {
      unread.signal.addEventListener("abort", stop);
      return () => unread.signal.removeEventListener("abort", stop);
    },
  };
}
