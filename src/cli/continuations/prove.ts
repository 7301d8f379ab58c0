import type { CommandDef } from "citty";
import { statusSchema } from "../../core/wire.ts";
import { CONFIG_ARGS, JSON_ARG, leaf } from "../command.ts";
import type { CliIo, ExitCode } from "../io.ts";
import { programOf, shellWord } from "../shell.ts";
import { statusLines } from "./print.ts";
import { ID_ARG, operatorOf, pathOf, printBody } from "./session.ts";

/**
 * Exit code 1 when nothing was proved, or an absence ended as a dead letter: then it needs a person. One that is held
 * after a restore is settled by a delivery only.
 */
export function proveCommand(io: CliIo): CommandDef {
  const args = { ...ID_ARG, ...CONFIG_ARGS, ...JSON_ARG };
  return leaf(
    "prove",
    "Ask the channel now what became of a delivery that is unknown or held; never posts; exits 1 when that is not settled",
    args,
    async (given): Promise<ExitCode> => {
      const operator = operatorOf(given, io);
      const path = pathOf(given.id);
      const before = statusSchema.safeParse(await operator.get(path));
      const body = await operator.post(`${path}/prove`, {}, operator.patienceMs);
      printBody(body, statusSchema, statusLines, given, io);
      const after = statusSchema.safeParse(body);
      if (!before.success || !after.success) return 1;
      const { state } = after.data;
      const deliverable = state === "delivery_retry" || state === "ready_to_deliver";
      const absent = before.data.state === "delivery_unknown" && deliverable;
      if (state === "delivered" || absent) return 0;
      const continuations = `${programOf(io)} continuations`;
      if (state === "delivery_unknown") {
        const decide = `${continuations} resolve ${shellWord(given.id)}`;
        io.err(`not settled: the channel can't tell yet; decide with \`${decide}\`\n`);
      } else if (before.data.state !== "delivery_unknown") {
        const release = `${continuations} release ${shellWord(given.id)}`;
        io.err(`not settled: the channel knows of no post; let it be answered with \`${release}\`\n`);
      }
      return 1;
    },
  );
}
