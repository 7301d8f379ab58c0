import { writeFileSync } from "node:fs";
import { join } from "node:path";

/** Writes what `loadConfig` needs into a folder: an identity, the demo model, and these blocks. */
export function writeDemoFolder(path: string, blocks: Record<string, unknown>): void {
  writeFileSync(join(path, "identity.md"), "You are a test.");
  const config = {
    runtime: { model: "demo:assistant" },
    context: { identityPath: "identity.md" },
    ...blocks,
  };
  writeFileSync(join(path, "mono-agent.config.json"), JSON.stringify(config));
}
