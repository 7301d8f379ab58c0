import { branch } from "../../src/cli/command.ts";
import { processIo } from "../../src/cli/io.ts";
import { runCli } from "../../src/cli/run.ts";
import { tortureCommand } from "../../src/cli/torture.ts";
import { readAsOlderRuntime } from "../support/older-runtime-reader.ts";

/** `bun run torture`: the command of the binary, with the reader of the older runtime beside the store's own. */
const io = processIo();
const root = branch("mono-agent", "Crash exploration", {
  torture: async () => tortureCommand(io, readAsOlderRuntime),
});
process.exitCode = await runCli(root, ["torture", ...process.argv.slice(2)], io);
