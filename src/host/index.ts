export { type LoadedConfig, type LoadOptions, loadConfig } from "../config/load.ts";
export type { McpServerSpec } from "../core/mcp-servers.ts";
export { createLogger } from "../platform/logger.ts";
export type { MonoAgentApp } from "./app.ts";
export { backupStoppedHost } from "./backup-offline.ts";
export { runMcpGuard } from "./mcp-guard.ts";
export { type RestoreReport, restoreBackup } from "./restore.ts";
export { type StartOptions, startMonoAgent } from "./start.ts";
export type { Verification } from "./verify.ts";
