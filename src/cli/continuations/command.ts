import type { CommandDef } from "citty";
import { branch } from "../command.ts";
import type { CliIo } from "../io.ts";
import { LIST_ARGS } from "./list.ts";

/** `mono-agent continuations`: the operator's view on the running host. Without an action it lists. */
export function continuationsCommand(io: CliIo): CommandDef {
  return branch(
    "continuations",
    "Inspect and recover continuations of the running host",
    {
      list: async () => (await import("./list.ts")).listCommand(io),
      health: async () => (await import("./health.ts")).healthCommand(io),
      owed: async () => (await import("./owed.ts")).owedCommand(io),
      show: async () => (await import("./show.ts")).showCommand(io),
      watch: async () => (await import("./watch.ts")).watchCommand(io),
      verify: async () => (await import("./verify.ts")).verifyCommand(io),
      retry: async () => (await import("./retry.ts")).retryCommand(io),
      cancel: async () => (await import("./cancel.ts")).cancelCommand(io),
      release: async () => (await import("./release.ts")).releaseCommand(io),
      prove: async () => (await import("./prove.ts")).proveCommand(io),
      resolve: async () => (await import("./resolve.ts")).resolveCommand(io),
    },
    { args: LIST_ARGS, default: "list" },
  );
}
