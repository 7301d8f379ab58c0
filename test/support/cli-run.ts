import type { CliIo, ExitCode } from "../../src/cli/io.ts";
import { runMonoAgent } from "../../src/cli/root.ts";

export interface CliRun {
  readonly code: ExitCode;
  readonly out: string;
  readonly err: string;
}

/** Runs one command line in a folder, with no terminal and only the given environment. */
export async function cliRun(
  cwd: string,
  args: readonly string[],
  options: Partial<Pick<CliIo, "err" | "env" | "columns" | "self" | "onStop" | "onReload" | "ask">> = {},
): Promise<CliRun> {
  let out = "";
  let err = "";
  const io: CliIo = {
    out: (text) => {
      out += text;
    },
    err: (text) => {
      err += text;
    },
    cwd,
    env: {},
    columns: undefined,
    errColor: false,
    self: ["mono-agent"],
    ask: async () => undefined,
    onStop: () => () => {},
    onUnread: () => () => {},
    onReload: () => () => {},
    ...options,
  };
  const code = await runMonoAgent(args, io);
  return { code, out, err };
}
