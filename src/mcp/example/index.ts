import { resolve } from "node:path";
import type { Result } from "../../core/errors.ts";
import type { Clock } from "../../core/ports/platform.ts";
import type { ResultAnswer } from "../../core/wire.ts";
import type { Pause } from "./send.ts";
import { submitStoredWork } from "./submit.ts";
import { openWorkFiles } from "./work-files.ts";

/** The `work-control` example as the command line starts it. It runs as a process of its own, not in the host. */

/** Keeps the process alive while it waits, which the clock's timers do not. */
const pause: Pause = (delayMs) => Bun.sleep(delayMs);

interface Place {
  /** `WORK_CONTROL_STATE_DIR` names the state folder; the four claim variables arrive here over stdio. */
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly cwd: string;
  readonly clock: Clock;
}

export interface RunOptions extends Place {
  /** Absent: stdio. `port` 0 takes a free one; the URL is told to `onListening`. */
  readonly http?: { readonly port: number; readonly onListening: (url: string) => void };
  readonly signal: AbortSignal;
}

/** Serves until its input ends (stdio) or the signal fires. Prints nothing to standard output over stdio. */
export async function runWorkControl(options: RunOptions): Promise<void> {
  const { serveHttp, serveStdio } = await import("./serve.ts");
  const means = { files: openWorkFiles(stateDir(options)), clock: options.clock, pause };
  if (options.http === undefined) {
    await serveStdio(options.env, means, options.signal);
  } else {
    const { port, onListening } = options.http;
    await serveHttp(port, means, options.signal, onListening);
  }
}

export interface SubmitOptions extends Place {
  /** A task key or the exact task; may be left out when only one piece of work waits. */
  readonly task?: string;
  readonly summary: string;
}

export interface SubmittedWork {
  readonly taskKey: string;
  readonly continuationId: string;
  readonly state: ResultAnswer["state"];
}

/** Submits the result of delegated work to the host. Safe to repeat; a refusal says why it was not accepted. */
export function submitWork(options: SubmitOptions): Promise<Result<SubmittedWork>> {
  const { task, summary, clock } = options;
  return submitStoredWork(openWorkFiles(stateDir(options)), { task, summary }, { clock, pause });
}

/** `WORK_CONTROL_STATE_DIR`, else `work-control` in the working folder. */
function stateDir({ env, cwd }: Place): string {
  return resolve(cwd, env.WORK_CONTROL_STATE_DIR || "work-control");
}
