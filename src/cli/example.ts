import type { CommandDef } from "citty";
import { CliError } from "../core/errors.ts";
import { createClock } from "../platform/clock.ts";
import { branch, JSON_ARG, leaf } from "./command.ts";
import type { CliIo } from "./io.ts";

export function exampleCommand(io: CliIo): CommandDef {
  return branch("example", "Sample programs to try and to copy", {
    "work-control": async () => workControlCommand(io),
  });
}

const WORK_CONTROL_ARGS = {
  action: {
    type: "positional",
    required: false,
    description: "submit: hand in the result of work that was delegated",
  },
  http: { type: "boolean", description: "Serve streamable HTTP on loopback instead of stdio" },
  port: { type: "string", valueHint: "n", description: "Port for --http (default: a free one)" },
  task: {
    type: "string",
    valueHint: "task",
    description: "With submit: the task or its key (default: the only one)",
  },
  summary: { type: "string", valueHint: "text", description: "With submit: the result" },
  ...JSON_ARG,
} as const;

function workControlCommand(io: CliIo): CommandDef {
  const description = "An MCP server that delegates work and answers days later (stdio by default)";
  return leaf("work-control", description, WORK_CONTROL_ARGS, async (args) => {
    if (args.action === "submit") return submit(args, io);
    if (args.action !== undefined) throw new CliError("usage", `"${args.action}" is not submit`);
    if (args.task !== undefined || args.summary !== undefined) {
      throw new CliError("usage", "--task and --summary belong to submit");
    }
    if (args.port !== undefined && args.http !== true)
      throw new CliError("usage", "--port belongs to --http");
    const stopped = new AbortController();
    const forget = io.onStop(() => stopped.abort());
    const { runWorkControl } = await import("../host/example.ts");
    const http = {
      port: args.port === undefined ? 0 : portOf(args.port),
      onListening: (url: string) => io.err(`work-control listens at ${url}\n`),
    };
    await runWorkControl({
      env: io.env,
      cwd: io.cwd,
      clock: createClock(),
      signal: stopped.signal,
      ...(args.http === true ? { http } : {}),
    });
    forget();
    return 0;
  });
}

interface SubmitFlags {
  readonly task?: string | undefined;
  readonly summary?: string | undefined;
  readonly json?: boolean | undefined;
}

async function submit(flags: SubmitFlags, io: CliIo): Promise<0> {
  if (flags.summary === undefined) throw new CliError("usage", "submit needs --summary");
  const { submitWork } = await import("../host/example.ts");
  const submitted = await submitWork({
    env: io.env,
    cwd: io.cwd,
    clock: createClock(),
    summary: flags.summary,
    ...(flags.task === undefined ? {} : { task: flags.task }),
  });
  if (!submitted.ok) throw new CliError(submitted.refusal.code, submitted.refusal.message);
  const { taskKey, continuationId, state } = submitted.value;
  io.out(
    flags.json === true
      ? `${JSON.stringify(submitted.value, null, 2)}\n`
      : `accepted: task ${taskKey}, continuation ${continuationId}, now ${state}\n`,
  );
  return 0;
}

function portOf(text: string): number {
  const port = /^[0-9]{1,5}$/.test(text) ? Number(text) : Number.NaN;
  if (port <= 65_535) return port;
  throw new CliError("usage", "--port must be a number from 0 to 65535");
}
