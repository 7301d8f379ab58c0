import { basename, join } from "node:path";
import type { CommandDef } from "citty";
import { CliError } from "../core/errors.ts";
import { FileFault, type FileStep } from "../core/ports/platform.ts";
import { createFileSystem } from "../platform/filesystem.ts";
import { createIds } from "../platform/ids.ts";
import { leaf } from "./command.ts";
import { starterFiles } from "./init-files.ts";
import type { CliIo } from "./io.ts";
import { programOf } from "./shell.ts";

const INIT_ARGS = {
  force: { type: "boolean", description: "Replace files that are there" },
} as const;

export function initCommand(io: CliIo): CommandDef {
  const description = "Write a first configuration into this folder";
  return leaf("init", description, INIT_ARGS, async (args) => {
    const files = starterFiles(io.self);
    const fs = createFileSystem();
    const there = files.filter((file) => fs.lstat(join(io.cwd, file.name), "init.stat") !== undefined);
    if (there.length > 0 && args.force !== true) {
      const names = there.map((file) => file.name).join(", ");
      throw new CliError("file_exists", `${names} already there; nothing was written (replace with --force)`);
    }
    const suffix = createIds().token(6);
    try {
      await fs.run(files.flatMap((file) => writeSteps(join(io.cwd, file.name), file.content, suffix)));
    } catch (error) {
      if (!(error instanceof FileFault)) throw error;
      throw new CliError("operation_failed", `can't write ${error.path} (${error.errno})`, { cause: error });
    }
    for (const file of files) io.out(`wrote ${file.name}\n`);
    const self = programOf(io);
    io.out(`\nnext:\n${NEXT.map(([command, what]) => `  ${self} ${command.padEnd(8)} ${what}\n`).join("")}`);
    return 0;
  });
}

const NEXT = [
  ["doctor", "check the configuration"],
  ["serve", "run the agent"],
  ["chat", "talk to it, in another terminal"],
] as const;

/** Beside its target and then renamed over it, so that no half-written file is ever found. */
function writeSteps(path: string, data: string, suffix: string): FileStep[] {
  const temporary = join(path, "..", `.${basename(path)}.${suffix}.tmp`);
  return [
    { op: "write", path: temporary, data, mode: 0o644, sync: true, label: "init.write" },
    { op: "rename", from: temporary, to: path, label: "init.rename" },
  ];
}
