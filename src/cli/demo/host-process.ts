import { CliError } from "../../core/errors.ts";
import { SECOND_MS } from "../../core/limits.ts";
import type { TemporaryFolder } from "../../platform/temporary-folder.ts";

/** The programs that the demo starts: this same binary, as real child processes of its own. */

const START_TIMEOUT_MS = 10 * SECOND_MS;
const POLL_MS = 20;
const LOG_FILE = "serve.log";
const LOG_TAIL_CHARS = 2_000;

export interface Place {
  readonly self: readonly string[];
  readonly folder: TemporaryFolder;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Ends every child and every wait: nothing that the demo started outlives an impatient Ctrl-C. */
  readonly stop: AbortSignal;
}

export interface HostProcess {
  readonly pid: number;
  /** Ends it without a warning, and waits until it is gone. */
  killHard(): Promise<void>;
  /** SIGTERM, and waits for the orderly stop. */
  stop(): Promise<void>;
  /** Lets it live on after this process. */
  leave(): void;
}

/** Starts `serve` and resolves when `ready` says so; rejects with the log when the process ends first. */
export async function startHost(place: Place, ready: () => Promise<boolean>): Promise<HostProcess> {
  const child = Bun.spawn([...place.self, "serve"], {
    cwd: place.folder.path,
    env: { ...place.env },
    stdin: "ignore",
    stdout: "ignore",
    signal: place.stop,
    killSignal: "SIGKILL",
    stderr: place.folder.output(LOG_FILE),
  });
  await until("the host to start", START_TIMEOUT_MS, place.stop, async () => {
    if (child.exitCode === null && child.signalCode === null) return ready();
    throw new CliError(
      "operation_failed",
      `the host ended at its start:\n${place.folder.read(LOG_FILE).slice(-LOG_TAIL_CHARS)}`,
    );
  });
  return {
    pid: child.pid,
    async killHard() {
      child.kill("SIGKILL");
      await child.exited;
    },
    async stop() {
      child.kill("SIGTERM");
      await child.exited;
    },
    leave: () => child.unref(),
  };
}

/** Runs a command of this program to its end; rejects with what it said when it fails. */
export async function runCommand(place: Place, args: readonly string[]): Promise<string> {
  const child = Bun.spawn([...place.self, ...args], {
    cwd: place.folder.path,
    env: { ...place.env },
    stdin: "ignore",
    stdout: "pipe",
    signal: place.stop,
    killSignal: "SIGKILL",
    stderr: "pipe",
  });
  const [out, err, code] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  if (code !== 0)
    throw new CliError("operation_failed", `\`${args.join(" ")}\` exited with ${code}: ${err.trim()}`);
  return out;
}

/** Polls until `probe` says yes; a probe that throws a `CliError` ends the wait. */
export async function until(
  what: string,
  timeoutMs: number,
  stop: AbortSignal,
  probe: () => Promise<boolean>,
): Promise<void> {
  for (let waited = 0; ; waited += POLL_MS) {
    if (stop.aborted) throw new CliError("operation_failed", "interrupted");
    if (await probe()) return;
    if (waited >= timeoutMs)
      throw new CliError("operation_failed", `waited ${timeoutMs / SECOND_MS} s for ${what}`);
    await Bun.sleep(POLL_MS);
  }
}

/** A port that is free on loopback right now. */
export function freePort(): number {
  const probe = Bun.serve({ hostname: "127.0.0.1", port: 0, fetch: () => new Response(null) });
  const { port } = probe;
  void probe.stop(true);
  if (port === undefined) throw new CliError("operation_failed", "no free port on 127.0.0.1");
  return port;
}
