export { type LoadedConfig, type LoadOptions, loadConfig } from "../config/load.ts";
export { createLogger } from "../platform/logger.ts";
export type { MonoAgentApp } from "./app.ts";
export { type StartOptions, startMonoAgent } from "./start.ts";
