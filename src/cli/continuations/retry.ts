import type { CommandDef } from "citty";
import { CONFIG_ARGS, JSON_ARG, leaf } from "../command.ts";
import type { CliIo, ExitCode } from "../io.ts";
import { act, ID_ARG } from "./session.ts";

const RETRY_ARGS = {
  ...ID_ARG,
  "allow-unknown": {
    type: "boolean",
    description: "Also when the delivery outcome is unknown: only after you proved that nothing was posted",
  },
  yes: { type: "boolean", description: "Do not ask at the terminal" },
  ...CONFIG_ARGS,
  ...JSON_ARG,
} as const;

/** A retry posts. At a terminal a person confirms it; a script has decided by calling. */
export function retryCommand(io: CliIo): CommandDef {
  return leaf("retry", "Deliver a stored answer again", RETRY_ARGS, async (args): Promise<ExitCode> => {
    const allowUnknown = args["allow-unknown"] === true;
    if (args.yes !== true) {
      const risk = allowUnknown ? " It may have been posted before: then it is posted twice." : "";
      const answer = await io.ask(`Deliver the stored answer of ${args.id} again?${risk} [y/N] `);
      if (answer !== undefined && !/^y(es)?$/i.test(answer.trim())) {
        io.err("nothing was done\n");
        return 1;
      }
    }
    return act("retry", args, allowUnknown ? { allowUnknown: true } : {}, io);
  });
}
