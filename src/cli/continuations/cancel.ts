import type { CommandDef } from "citty";
import { CONFIG_ARGS, JSON_ARG, leaf } from "../command.ts";
import type { CliIo } from "../io.ts";
import { act, ID_ARG } from "./session.ts";

export function cancelCommand(io: CliIo): CommandDef {
  const args = { ...ID_ARG, ...CONFIG_ARGS, ...JSON_ARG };
  return leaf("cancel", "Cancel a continuation that is not finished", args, (given) =>
    act("cancel", given, {}, io),
  );
}
