import type { CommandDef } from "citty";
import { healthSchema } from "../../core/wire.ts";
import { CONFIG_ARGS, JSON_ARG, leaf } from "../command.ts";
import type { CliIo } from "../io.ts";
import { healthLines } from "./print.ts";
import { operatorOf, printBody } from "./session.ts";

export function healthCommand(io: CliIo): CommandDef {
  return leaf(
    "health",
    "Whether a continuation needs attention",
    { ...CONFIG_ARGS, ...JSON_ARG },
    async (args) => {
      const body = await operatorOf(args, io).get("/v1/operator/health");
      printBody(body, healthSchema, healthLines, args, io);
      return 0;
    },
  );
}
