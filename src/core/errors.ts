/**
 * Owns: the one table from error code to HTTP status, exit code and retry class, and the typed errors.
 * Does not own: how an answer is written (http) or printed (cli).
 *
 * I1. A refusal that is expected is a value (`Result`); an I/O fault is thrown with its cause; a broken
 *     invariant is `BugError` and stops.
 * I2. Messages never carry tokens, payloads, synthesized text or destinations.
 */

/** Whether the same request may succeed when it is sent again unchanged. */
export type RetryClass = "never" | "later" | "unknown";

interface ErrorRow {
  readonly status: number;
  readonly exit: 0 | 1 | 2;
  readonly retry: RetryClass;
}

const row = (status: number, retry: RetryClass = "never", exit: 0 | 1 | 2 = 1): ErrorRow => ({
  status,
  exit,
  retry,
});

export const ERROR_TABLE = {
  // Request shape
  invalid_json: row(400),
  invalid_body: row(400),
  invalid_taskKey: row(400),
  invalid_taskHash: row(400),
  invalid_route: row(400),
  invalid_idempotencyKey: row(400),
  invalid_payloadHash: row(400),
  invalid_allowUnknown: row(400),
  invalid_deliveryId: row(400),
  invalid_state: row(400),
  invalid_text: row(400),
  invalid_attachment: row(400),
  invalid_requestId: row(400),
  invalid_conversationId: row(400),
  invalid_path: row(400),
  invalid_deadline: row(400),
  deadline_too_far: row(400),
  missing_payload: row(400),
  payload_hash_mismatch: row(400),
  missing_service_name: row(400),
  invalid_page_limit: row(400),
  invalid_page_cursor: row(400),
  invalid_resolution: row(400),
  // Credentials
  missing_capability: row(401),
  invalid_capability: row(401),
  invalid_claim_capability: row(401),
  invalid_result_capability: row(401),
  invalid_service_capability: row(401),
  invalid_operator_capability: row(401),
  invalid_terminal_capability: row(401),
  unknown_named_route: row(403),
  forbidden_origin: row(403),
  // Resources and state
  not_found: row(404),
  method_not_allowed: row(405),
  request_timeout: row(408, "later"),
  claim_conflict: row(409),
  result_conflict: row(409),
  result_not_accepted: row(409),
  not_retryable: row(409),
  delivery_unknown: row(409),
  synthesis_not_retryable: row(409),
  already_terminal: row(409),
  continuation_in_flight: row(409),
  not_delivery_unknown: row(409),
  resolution_in_progress: row(409),
  lease_lost: row(409),
  unsupported_destination: row(409),
  request_conflict: row(409),
  not_held: row(409),
  backup_refused: row(409),
  turn_finished: row(409),
  continuation_expired: row(410),
  payload_too_large: row(413),
  record_too_large: row(413),
  active_continuation_limit: row(429, "later"),
  active_origin_limit: row(429, "later"),
  queue_full: row(429, "later"),
  internal_error: row(500, "unknown"),
  service_stopping: row(503, "later"),
  store_poisoned: row(503, "later"),
  // Configuration
  config_invalid: row(500, "never"),
  config_missing: row(500, "never"),
  file_exists: row(500, "never"),
  // Store
  store_owned: row(503, "later"),
  store_unsafe_file: row(500),
  store_corrupt: row(500),
  store_write_failed: row(500, "unknown"),
  store_secret_invalid: row(500),
  store_guard_invalid: row(500),
  store_migration_conflict: row(500),
  store_migration_incomplete: row(409),
  snapshot_quota: row(500, "later"),
  snapshot_invalid: row(500),
  // Backups
  backup_failed: row(500, "unknown"),
  backup_invalid: row(500),
  restore_refused: row(500),
  restore_incomplete: row(500),
  // Turns
  turns_corrupt: row(500),
  turns_newer_schema: row(500),
  turns_unsafe_file: row(500),
  turns_failed: row(500, "unknown"),
  commit_in_doubt: row(500, "unknown"),
  // Model, MCP, listener
  model_failed: row(502, "unknown"),
  model_unavailable: row(502, "later"),
  model_rejected: row(502, "never"),
  model_unconfigured: row(500, "never"),
  mcp_failed: row(502, "unknown"),
  unsupported_continuation_server: row(500, "never"),
  listen_failed: row(503, "later"),
  // Command line
  usage: row(400, "never", 2),
  host_unreachable: row(503, "later"),
  operation_failed: row(500, "unknown"),
} as const satisfies Record<string, ErrorRow>;

export type ErrorCode = keyof typeof ERROR_TABLE;

export interface Refusal {
  readonly code: ErrorCode;
  readonly message: string;
  /** When a retry may succeed, in milliseconds from now. Sent as `retry-after` with 429 and 503. */
  readonly retryAfterMs?: number;
}

export type Result<T> =
  | { readonly ok: true; readonly value: T }
  | { readonly ok: false; readonly refusal: Refusal };

export function ok<T>(value: T): Result<T> {
  return { ok: true, value };
}

export function refuse(
  code: ErrorCode,
  message: string,
  retryAfterMs?: number,
): { ok: false; refusal: Refusal } {
  return {
    ok: false,
    refusal: retryAfterMs === undefined ? { code, message } : { code, message, retryAfterMs },
  };
}

/** Base of every typed error: a stable code, a message for people, and the cause. */
export class AppError extends Error {
  override readonly name: string = "AppError";
  constructor(
    readonly code: ErrorCode,
    message: string,
    options?: { cause?: unknown; retryAfterMs?: number },
  ) {
    super(message, options?.cause === undefined ? undefined : { cause: options.cause });
    this.retryAfterMs = options?.retryAfterMs;
  }
  readonly retryAfterMs: number | undefined;
}

/** One thing that is wrong with the configuration. `source` is the file or environment variable it came from. */
export interface ConfigProblem {
  readonly source: string;
  /** Dotted path inside the source; empty when the whole source is meant. */
  readonly path: string;
  /** What was found and what is allowed; never a secret value. */
  readonly message: string;
}

/** Everything that is wrong with the configuration at once; the message lists the problems too. */
export class ConfigError extends AppError {
  override readonly name = "ConfigError";
  readonly problems: readonly ConfigProblem[];
  constructor(
    code: ErrorCode,
    message: string,
    options?: { cause?: unknown; problems?: readonly ConfigProblem[] },
  ) {
    super(code, message, options);
    this.problems = options?.problems ?? [];
  }
}
/** A fault or refusal of the per-record store; its message names the path. */
export class StoreError extends AppError {
  override readonly name = "StoreError";
}
/** A backup or a restore that can't be made; its message names the path and the way out. */
export class BackupError extends AppError {
  override readonly name = "BackupError";
}
export class ContinuationError extends AppError {
  override readonly name = "ContinuationError";
}
export class TurnError extends AppError {
  override readonly name = "TurnError";
}
export class ModelError extends AppError {
  override readonly name = "ModelError";
  /** The model certainly did not run for this call: no connection came about, or the provider refused the request. */
  readonly notRun: boolean;
  /** What whoever runs the host can do about it; nothing for the person who asked the model. */
  readonly remedy: string | undefined;
  constructor(
    code: ErrorCode,
    message: string,
    options?: { cause?: unknown; retryAfterMs?: number; notRun?: boolean; remedy?: string },
  ) {
    super(code, message, options);
    this.notRun = options?.notRun ?? false;
    this.remedy = options?.remedy;
  }
}
export class McpError extends AppError {
  override readonly name = "McpError";
}
export class ChannelError extends AppError {
  override readonly name = "ChannelError";
}
export class CliError extends AppError {
  override readonly name = "CliError";
}

/** A broken invariant of ours. Nothing catches it to continue. */
export class BugError extends Error {
  override readonly name = "BugError";
}

export function assert(condition: unknown, invariant: string): asserts condition {
  if (!condition) throw new BugError(`broken invariant: ${invariant}`);
}

/** What may be logged of an error from outside (a channel, a model): its code or class, never its words. */
export function errorName(error: unknown): string {
  if (error instanceof AppError) return error.code;
  return error instanceof Error ? error.name : typeof error;
}

/** The text of an unknown thrown value, for a log line or a stored reason of ours. */
export function errorText(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
