import type { CommandDef } from "citty";
import { CliError } from "../../core/errors.ts";
import { createFileSystem } from "../../platform/filesystem.ts";
import { CONFIG_ARGS, JSON_ARG, leaf } from "../command.ts";
import type { CliIo } from "../io.ts";
import { configOf } from "../settings.ts";
import { programOf } from "../shell.ts";
import { noState } from "./operator-client.ts";
import { ID_ARG } from "./session.ts";

const MARKS = { yes: "✓", no: "✗", absent: "–", unreadable: "✗" } as const;

/** Reads the disk itself, with a host running or not, and changes nothing. Exit code 1 when something does not match. */
export function verifyCommand(io: CliIo): CommandDef {
  const args = { ...ID_ARG, ...CONFIG_ARGS, ...JSON_ARG };
  return leaf(
    "verify",
    "Recompute fingerprint, snapshot, bindings and payload hash from disk; say what matches",
    args,
    async (given) => {
      const { config } = configOf(given, io, { secretsOptional: true, withoutServers: true });
      if (config.continuations === undefined) {
        throw new CliError("operation_failed", `continuations are off in ${config.configPath}`);
      }
      const { verifyContinuation } = await import("../../host/verify.ts");
      const { stateDir } = config.continuations;
      const fs = createFileSystem();
      const found = verifyContinuation({ fs, stateDir, continuationId: given.id });
      if (found === undefined) {
        if (fs.lstat(stateDir, "verify.state") === undefined) throw noState(stateDir, programOf(io));
        throw new CliError("not_found", `there is no such continuation in ${stateDir}`);
      }
      if (given.json === true) io.out(`${JSON.stringify(found, null, 2)}\n`);
      else {
        const lines = found.checks.map(({ what, matches, detail }) => {
          const more = detail === undefined ? "" : `  ${detail}`;
          return `${MARKS[matches]} ${what.padEnd(22)}${matches}${more}\n`;
        });
        io.out(`${found.continuationId}  ${found.state}\n${lines.join("")}`);
      }
      return found.ok ? 0 : 1;
    },
  );
}
