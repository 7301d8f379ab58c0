/** The library: what the binary runs, for programs that embed it. Importing it starts nothing. */

export { AppError, ConfigError, ContinuationError, type ErrorCode } from "./core/errors.ts";
export type { Channel, TurnEngine, TurnInput } from "./core/ports/channel.ts";
export type { Clock, FileSystem, Ids, Logger } from "./core/ports/platform.ts";
export type { ContinuationMode, ContinuationState, Receipt } from "./core/record.ts";
export type {
  ContinuationDetail,
  ContinuationHealth,
  ContinuationStatus,
  OwedAnswer,
  Resolution,
  WatchEvent,
} from "./core/wire.ts";
export {
  createLogger,
  type LoadedConfig,
  type LoadOptions,
  loadConfig,
  type McpServerSpec,
  type MonoAgentApp,
  runMcpGuard,
  type StartOptions,
  startMonoAgent,
  type Verification,
} from "./host/index.ts";
