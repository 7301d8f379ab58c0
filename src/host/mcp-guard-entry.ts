import { runMcpGuard } from "./mcp-guard.ts";

/** The guard as its own program, for hosts that run from source. */
await runMcpGuard();
