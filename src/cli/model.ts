import type { CommandDef } from "citty";
import type { LoadedConfig } from "../config/load.ts";
import { CliError } from "../core/errors.ts";
import type { ModelCheck } from "../host/model-check.ts";
import { createClock } from "../platform/clock.ts";
import { branch, CONFIG_ARGS, JSON_ARG, leaf } from "./command.ts";
import type { CliIo } from "./io.ts";
import { configOf } from "./settings.ts";

export function modelCommand(io: CliIo): CommandDef {
  return branch("model", "Look at the configured language models", {
    check: async () => checkCommand(io),
  });
}

/** Real calls, which cost what they cost; exit 1 when a model does not answer or does not call tools. */
function checkCommand(io: CliIo): CommandDef {
  const args = {
    model: {
      type: "string",
      valueHint: "provider:model",
      description: "Only this model (default: the configured one and its fallbacks)",
    },
    ...CONFIG_ARGS,
    ...JSON_ARG,
  } as const;
  return leaf("check", "Ask models three short questions: what works, and how fast", args, async (flags) => {
    // A key that is missing is a finding about its model, not a reason to look at none.
    const { config } = configOf(flags, io, { secretsOptional: true, withoutServers: true });
    const checks = await checkAll(config, flags.model, io, (check) => {
      if (flags.json !== true) io.out(checkText(check));
    });
    if (flags.json === true) io.out(`${JSON.stringify({ models: checks }, null, 2)}\n`);
    return checks.every(({ usable }) => usable) ? 0 : 1;
  });
}

async function checkAll(
  config: LoadedConfig,
  only: string | undefined,
  io: CliIo,
  report: (check: ModelCheck) => void,
): Promise<ModelCheck[]> {
  const { checkModel, configuredModelNames } = await import("../host/model-check.ts");
  const abort = new AbortController();
  const unsubscribe = io.onStop(() =>
    abort.abort(new CliError("operation_failed", "stopped before everything was checked")),
  );
  const deps = { clock: createClock(), logger: SILENT, signal: abort.signal };
  const checks: ModelCheck[] = [];
  try {
    for (const name of only === undefined ? configuredModelNames(config) : [only]) {
      const check = await checkModel(config, name, deps);
      checks.push(check);
      report(check);
    }
  } finally {
    unsubscribe();
  }
  return checks;
}

/** The findings say it all. */
const SILENT = { debug() {}, info() {}, warn() {}, error() {} };

function checkText({ model, address, text, streaming, tools, images }: ModelCheck): string {
  const lines = Object.entries({ text, streaming, tools, images }).map(
    ([name, { works, detail }]) => `  ${works ? "✓" : "✗"} ${name.padEnd(9)}  ${detail}\n`,
  );
  return `${model}${address === undefined ? "" : ` at ${address}`}\n${lines.join("")}`;
}
