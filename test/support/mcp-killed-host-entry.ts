/**
 * A host that is to be killed: opens the tools of probe servers of the kinds given, writes the pid of each, then
 * `ready`, and stays.
 */
import { embeddedGuardCommand } from "../../src/host/mcp-guard.ts";
import { createProcessGuard } from "../../src/mcp/process-guard.ts";
import { createIds } from "../../src/platform/ids.ts";
import { never, PROBE, script, sessionRequest, toolHost } from "./mcp-host.ts";
import { silentLogger } from "./silent-logger.ts";

const kinds = process.argv.slice(2);
const command = embeddedGuardCommand() ?? [];
const host = toolHost(Object.fromEntries(kinds.map((kind) => [kind, script(PROBE, [kind])])), {
  guard: createProcessGuard({ command, ids: createIds(), logger: silentLogger }),
});
const session = await host.open(sessionRequest());
for (const [index, kind] of kinds.entries()) {
  const outcome = await session.call(index === 0 ? "env" : `mcp__${kind}__env`, {}, never);
  console.log((JSON.parse(outcome.text) as { pid: number }).pid);
}
console.log("ready");
setInterval(() => {}, 1000);
