import type { CommandDef } from "citty";
import { CliError } from "../../core/errors.ts";
import { type Released, releasedSchema } from "../../core/wire.ts";
import { CONFIG_ARGS, JSON_ARG, leaf } from "../command.ts";
import type { CliIo, ExitCode } from "../io.ts";
import { act, operatorOf, printBody } from "./session.ts";

const RELEASE_ARGS = {
  id: { type: "positional", required: false, description: "Continuation id" },
  all: { type: "boolean", description: "Every continuation that is held" },
  yes: { type: "boolean", description: "Do not ask at the terminal" },
  ...CONFIG_ARGS,
  ...JSON_ARG,
} as const;

/** A release may post what was posted before. At a terminal a person confirms it; a script has decided by calling. */
export function releaseCommand(io: CliIo): CommandDef {
  return leaf(
    "release",
    "After a restore: let a held continuation be answered",
    RELEASE_ARGS,
    async (args): Promise<ExitCode> => {
      const { id, all } = args;
      if ((id === undefined) === (all !== true)) throw new CliError("usage", "give either an id or --all");
      if (args.yes !== true) {
        const what = id ?? "everything that is held";
        const answer = await io.ask(
          `Answer ${what}? Whatever was posted after the backup is posted twice. [y/N] `,
        );
        if (answer !== undefined && !/^y(es)?$/i.test(answer.trim())) {
          io.err("nothing was done\n");
          return 1;
        }
      }
      if (id !== undefined) return act("release", { ...args, id }, {}, io);
      const body = await operatorOf(args, io).post("/v1/operator/release", {});
      printBody(body, releasedSchema, releasedLine, args, io);
      return 0;
    },
  );
}

function releasedLine({ released }: Released): string {
  return released === 0 ? "nothing is held\n" : `${released} released\n`;
}
