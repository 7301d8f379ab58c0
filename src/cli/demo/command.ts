import type { CommandDef } from "citty";
import { CliError, errorText } from "../../core/errors.ts";
import { FileFault } from "../../core/ports/platform.ts";
import { createClock } from "../../platform/clock.ts";
import { makeTemporaryFolder, type TemporaryFolder } from "../../platform/temporary-folder.ts";
import { JSON_ARG, leaf } from "../command.ts";
import type { CliIo } from "../io.ts";
import { programOf, shellWord } from "../shell.ts";
import { type DemoOutcome, runScenario } from "./scenario.ts";
import { createTimeline } from "./timeline.ts";

const DEMO_ARGS = {
  ...JSON_ARG,
  keep: { type: "boolean", description: "Leave the host running, and say how to talk to it" },
} as const;

export function demoCommand(io: CliIo): CommandDef {
  const description = "Show the main job with real processes: a promise that survives SIGKILL";
  return leaf("demo", description, DEMO_ARGS, async (args) => {
    const json = args.json === true;
    const clock = createClock();
    const timeline = createTimeline(io, clock, json);
    // Settings of the caller's own agent must not reach the demo's.
    const env = Object.fromEntries(
      Object.entries(io.env).filter(([name]) => !name.startsWith("MONO_AGENT_")),
    );
    const stop = new AbortController();
    const forget = io.onStop(() => stop.abort());
    let folder: TemporaryFolder | undefined;
    let outcome: DemoOutcome;
    try {
      folder = await timeline.step("folder", "a temporary folder", makeFolder, (made) => made.path);
      const place = { self: io.self, folder, env, stop: stop.signal };
      outcome = await runScenario(place, timeline, clock);
    } catch (error) {
      if (json) io.out(`${JSON.stringify({ step: "end", ok: false, error: errorText(error) })}\n`);
      io.err(`demo failed: ${errorText(error)}\n`);
      if (folder !== undefined) io.err(`its folder, with serve.log, is kept: ${folder.path}\n`);
      return 1;
    } finally {
      forget();
    }
    if (args.keep === true) {
      outcome.host.leave();
      keep(io, json, folder.path, outcome);
      return 0;
    }
    await outcome.host.stop();
    folder.remove();
    const seconds = (timeline.elapsedMs() / 1000).toFixed(1);
    io.out(
      json
        ? `${JSON.stringify({ step: "end", ok: true, elapsedMs: timeline.elapsedMs() })}\n`
        : `\nNothing was lost, doubled or misrouted, in ${seconds} s. Start your own: ${programOf(io)} init\n`,
    );
    return 0;
  });
}

async function makeFolder(): Promise<TemporaryFolder> {
  try {
    return makeTemporaryFolder("mono-agent-demo-");
  } catch (error) {
    if (!(error instanceof FileFault)) throw error;
    const problem = `no temporary folder can be made in ${error.path} (${error.errno})`;
    throw new CliError("operation_failed", `${problem}; set TMPDIR to a folder that you may write`, {
      cause: error,
    });
  }
}

function keep(io: CliIo, json: boolean, path: string, { host, continuationId }: DemoOutcome): void {
  const self = programOf(io);
  if (json) {
    io.out(`${JSON.stringify({ step: "end", ok: true, kept: { path, pid: host.pid, continuationId } })}\n`);
    return;
  }
  io.out(
    [
      "",
      `The host still runs (pid ${host.pid}). In its folder:`,
      `  cd ${shellWord(path)}`,
      `  ${self} chat`,
      `  ${self} continuations list`,
      `  ${self} continuations show ${continuationId}`,
      `Stop it with: kill ${host.pid}`,
      "",
    ].join("\n"),
  );
}
