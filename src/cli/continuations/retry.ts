import type { CommandDef } from "citty";
import { CONFIG_ARGS, JSON_ARG, leaf } from "../command.ts";
import type { CliIo } from "../io.ts";
import { act, ID_ARG } from "./session.ts";

const RETRY_ARGS = {
  ...ID_ARG,
  "allow-unknown": {
    type: "boolean",
    description: "Also when the delivery outcome is unknown: only after you proved that nothing was posted",
  },
  ...CONFIG_ARGS,
  ...JSON_ARG,
} as const;

export function retryCommand(io: CliIo): CommandDef {
  return leaf("retry", "Deliver a stored answer again", RETRY_ARGS, (args) =>
    act("retry", args, args["allow-unknown"] === true ? { allowUnknown: true } : {}, io),
  );
}
