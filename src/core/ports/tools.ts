import type { JsonValue } from "../json.ts";
import type { ToolDefinition } from "./model.ts";

/** Trusted claim values for one server in one run; the four reserved variables or headers carry them. */
export interface ClaimCapability {
  readonly url: string;
  readonly token: string;
  readonly fingerprint: string;
  readonly mode: string;
}

export interface ToolSessionRequest {
  readonly runId: string;
  /** Where the processes of stdio servers start. */
  readonly capabilities: ReadonlyMap<string, ClaimCapability>;
  readonly signal: AbortSignal;
}

export interface BoundTool extends ToolDefinition {
  readonly server: string;
  /** The tool's own name at its server; `name` is what the model sees. */
  readonly tool: string;
}

export interface ToolOutcome {
  readonly text: string;
  readonly isError: boolean;
}

/** The MCP connections of one run. A server that can't be reached is a warning; the run goes on without it. */
export interface ToolSession {
  readonly tools: readonly BoundTool[];
  readonly warnings: readonly { server: string; code: string; message: string }[];
  /** Calls by the name that the model saw. Rejects with an `McpError` only when the outcome is unknown or the call was aborted. */
  call(name: string, input: JsonValue, signal: AbortSignal): Promise<ToolOutcome>;
  /** Closes every client and ends every child, bounded in time. Idempotent. */
  close(): Promise<void>;
}

export interface ToolHost {
  /** Opens the tools of a run. Rejects with `unsupported_continuation_server` before any provider or child starts. */
  open(request: ToolSessionRequest): Promise<ToolSession>;
  /** Ends everything that is still open. */
  close(): Promise<void>;
}
