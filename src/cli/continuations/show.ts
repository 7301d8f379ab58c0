import type { CommandDef } from "citty";
import { statusDetailSchema } from "../../core/wire.ts";
import { CONFIG_ARGS, JSON_ARG, leaf } from "../command.ts";
import type { CliIo } from "../io.ts";
import { detailLines } from "./print.ts";
import { ID_ARG, operatorOf, pathOf, printBody } from "./session.ts";

export function showCommand(io: CliIo): CommandDef {
  const args = { ...ID_ARG, ...CONFIG_ARGS, ...JSON_ARG };
  return leaf(
    "show",
    "Show one continuation: its state, timeline and what it waits for",
    args,
    async (given) => {
      const body = await operatorOf(given, io).get(pathOf(given.id));
      printBody(body, statusDetailSchema, detailLines, given, io);
      return 0;
    },
  );
}
