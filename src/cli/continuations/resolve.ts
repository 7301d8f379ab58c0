import type { CommandDef } from "citty";
import { CliError } from "../../core/errors.ts";
import type { Resolution } from "../../core/wire.ts";
import { CONFIG_ARGS, JSON_ARG, leaf } from "../command.ts";
import type { CliIo } from "../io.ts";
import { act, ID_ARG } from "./session.ts";

const KINDS: ReadonlyMap<string, Resolution["kind"]> = new Map<string, Resolution["kind"]>([
  ["delivered", "delivered"],
  ["not-delivered", "not_delivered"],
  ["dead-lettered", "dead_lettered"],
]);

const RESOLVE_ARGS = {
  ...ID_ARG,
  outcome: { type: "positional", required: true, description: "delivered, not-delivered or dead-lettered" },
  "delivery-id": {
    type: "positional",
    required: false,
    description: "With delivered: the id of the post, as proof",
  },
  ...CONFIG_ARGS,
  ...JSON_ARG,
} as const;

export function resolveCommand(io: CliIo): CommandDef {
  return leaf(
    "resolve",
    "Decide a delivery whose outcome is unknown: not-delivered has it posted again, the others never post",
    RESOLVE_ARGS,
    async (args) => {
      const kind = KINDS.get(args.outcome);
      const deliveryId = args["delivery-id"];
      if (kind === undefined)
        throw new CliError(
          "usage",
          `the outcome must be one of ${[...KINDS.keys()].join(", ")}, not "${args.outcome}"`,
        );
      if (deliveryId !== undefined && kind !== "delivered") {
        throw new CliError("usage", "a delivery id belongs to delivered");
      }
      return act("resolve", args, deliveryId === undefined ? { kind } : { kind, deliveryId }, io);
    },
  );
}
