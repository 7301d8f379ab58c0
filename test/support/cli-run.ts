import type { CommandDef } from "citty";
import type { CliIo, ExitCode } from "../../src/cli/io.ts";
import { runMonoAgent } from "../../src/cli/root.ts";
import { runCli } from "../../src/cli/run.ts";

export interface CliRun {
  readonly code: ExitCode;
  readonly out: string;
  readonly err: string;
}

/** Runs one command line in a folder, with no terminal and only the given environment; of `root`, or of the program. */
export async function cliRun(
  cwd: string,
  args: readonly string[],
  options: Partial<Pick<CliIo, "err" | "env" | "columns" | "self" | "onStop" | "onReload" | "ask">> & {
    root?: CommandDef;
  } = {},
): Promise<CliRun> {
  const { root, ...given } = options;
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
    ...given,
  };
  const code = await (root === undefined ? runMonoAgent(args, io) : runCli(root, args, io));
  return { code, out, err };
}
