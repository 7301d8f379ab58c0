import type { CommandDef } from "citty";
import { statusSchema } from "../../core/wire.ts";
import { CONFIG_ARGS, JSON_ARG, leaf } from "../command.ts";
import type { CliIo, ExitCode } from "../io.ts";
import { statusLines } from "./print.ts";
import { ID_ARG, operatorOf, pathOf, printBody } from "./session.ts";

/** Exit code 1 when the outcome is still unknown: then it needs a person. */
export function proveCommand(io: CliIo): CommandDef {
  const args = { ...ID_ARG, ...CONFIG_ARGS, ...JSON_ARG };
  return leaf(
    "prove",
    "Ask the channel now what became of an unknown delivery; never posts",
    args,
    async (given): Promise<ExitCode> => {
      const operator = operatorOf(given, io);
      const body = await operator.post(`${pathOf(given.id)}/prove`, {}, operator.patienceMs);
      printBody(body, statusSchema, statusLines, given, io);
      const parsed = statusSchema.safeParse(body);
      return parsed.success && parsed.data.state === "delivery_unknown" ? 1 : 0;
    },
  );
}
