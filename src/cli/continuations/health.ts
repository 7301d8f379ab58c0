import type { CommandDef } from "citty";
import { healthSchema } from "../../core/wire.ts";
import { CONFIG_ARGS, JSON_ARG, leaf } from "../command.ts";
import type { CliIo, ExitCode } from "../io.ts";
import { healthLines } from "./print.ts";
import { operatorOf, printBody } from "./session.ts";

/**
 * Exit code 1 when it is unhealthy: something needs a person, or needed one and its time is over (`owed` tells which).
 * Degraded passes by itself.
 */
export function healthCommand(io: CliIo): CommandDef {
  return leaf(
    "health",
    "Whether a continuation needs attention; exits 1 when unhealthy",
    { ...CONFIG_ARGS, ...JSON_ARG },
    async (args): Promise<ExitCode> => {
      const body = await operatorOf(args, io).get("/v1/operator/health");
      printBody(body, healthSchema, healthLines, args, io);
      const parsed = healthSchema.safeParse(body);
      return parsed.success && parsed.data.status !== "unhealthy" ? 0 : 1;
    },
  );
}
