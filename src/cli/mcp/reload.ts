import type { LoadedConfig } from "../../config/load.ts";
import { CliError } from "../../core/errors.ts";

const SELECTIONS = ["continuationServers", "mcpRequestContextServers"] as const;

/**
 * Refuses a configuration that selects other servers than the running host does: a host keeps its selection to its end,
 * and the servers of a file that was checked against another one may not fit it.
 */
export function requireSameSelections(running: LoadedConfig, next: LoadedConfig): void {
  for (const key of SELECTIONS) {
    const before = new Set(running.tools[key]);
    const after = new Set(next.tools[key]);
    if (before.symmetricDifference(after).size > 0) {
      throw new CliError("config_invalid", `tools.${key} has changed; a restart is needed`);
    }
  }
}
