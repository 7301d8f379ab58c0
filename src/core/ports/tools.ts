import type { JsonValue } from "../json.ts";
import type { McpServerSpec } from "../mcp-servers.ts";
import type { ToolDefinition, ToolImage } from "./model.ts";

/** Trusted claim values for one server in one run; the four reserved variables or headers carry them. */
export interface ClaimCapability {
  readonly url: string;
  readonly token: string;
  readonly fingerprint: string;
  readonly mode: string;
}

export interface ToolSessionRequest {
  readonly runId: string;
  readonly conversationId: string;
  /** By server name; what a server that is not selected finds here it never gets. */
  readonly capabilities: ReadonlyMap<string, ClaimCapability>;
  readonly signal: AbortSignal;
}

export interface BoundTool extends ToolDefinition {
  readonly server: string;
  /** The tool's own name at its server; `name` is what the model sees. */
  readonly tool: string;
  /**
   * SHA-256 of the canonical JSON of {server, target, version, tool, schema}: what exactly was offered, and by whom. It goes with every call
   * into the journal, so that a later reader can tell whether the tool is still the same.
   */
  readonly digest: string;
  /**
   * The server is trusted and says that a call changes nothing (`annotations.readOnlyHint`). Calls of such tools that
   * stand side by side in one answer may run at the same time.
   */
  readonly readOnly: boolean;
}

export interface ToolOutcome {
  /** What the model reads; it names every image in a line. */
  readonly text: string;
  readonly isError: boolean;
  /** At most `TOOL_IMAGES_MAX`, of at most `TOOL_IMAGE_MAX_BYTES` each. */
  readonly images?: readonly ToolImage[];
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

/** The tools of the runs. A server that no run needs for itself is one client for all of them. */
export interface ToolHost {
  /** Opens the tools of a run. Rejects with `unsupported_continuation_server` before any provider or child starts. */
  open(request: ToolSessionRequest): Promise<ToolSession>;
  /**
   * Gives every server a fresh start with these entries: runs that begin later use it, runs under way keep what they
   * have until they end, so that no call fails. Throws `unsupported_continuation_server` when a selected server could not
   * hold its authority any more.
   */
  rotate(servers: Readonly<Record<string, McpServerSpec>>): void;
  /** Ends everything that is still open. */
  close(): Promise<void>;
}
