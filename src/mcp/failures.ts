import { McpError } from "../core/errors.ts";
import type { ToolOutcome } from "../core/ports/tools.ts";
import { isStreamEnd } from "./answer-stream.ts";

/**
 * Owns: what a failed exchange with a server means. Texts are ours: what a server or an HTTP answer says may hold
 * values that belong in no log, so only its protocol error is passed on, and only to the model.
 */

/** JSON-RPC codes that the SDK itself raises on this side, beside those that servers send. */
const CONNECTION_CLOSED = -32000;
const REQUEST_TIMEOUT = -32001;
/** The name of the SDK's error for an answer that is one; its class is not loaded before it is needed. */
const PROTOCOL_ERROR = "McpError";
/** A person has to open a web page first (URL elicitation). */
const URL_ELICITATION_REQUIRED = -32042;

const LOGIN_NEEDED =
  "it asks for a login; log in with `mono-agent mcp login`, or set its Authorization header";

export const NOT_IN_TIME = "it did not answer in time, or the run was aborted";

/** Why a server could not be reached or listed, for a warning. `exit` is how its process ended, if it did. */
export function connectFailure(error: unknown, exit: string | undefined): string {
  if (error instanceof McpError) return error.message;
  if (exit !== undefined) return `the process ${exit} before it answered`;
  const { code, name, isProtocol } = describe(error);
  if (code === "ENOENT") return "the command or its working folder was not found";
  if (code === "EACCES") return "the command may not be run";
  if (code === REQUEST_TIMEOUT) return NOT_IN_TIME;
  if (code === CONNECTION_CLOSED) return "it closed the connection, or answered with protocol error -32000";
  if (isProtocol) return `it answered with protocol error ${code}`;
  if (code === 401) return LOGIN_NEEDED;
  if (isRedirect(code))
    return `it redirects elsewhere (HTTP ${code}); its url in mcp.json must be that place`;
  // The SSE client's word for an answer that is no stream of events, such as a web page.
  if (code === 200) return `it ${UNREADABLE}`;
  if (typeof code === "number" && code >= 100) return `it answered with HTTP ${code}`;
  if (typeof code === "string") return unreachable(code);
  // Below 0: the SDK's word for a body that is neither JSON nor a stream of events.
  // The SDK has no class for it.
  if (error instanceof Error && error.message.startsWith("Server's protocol version is not supported"))
    return "it speaks a version of the protocol that this program does not know";
  if (isUnreadable(error) || typeof code === "number") return `it ${UNREADABLE}`;
  return unreachable(name);
}

function unreachable(why: string): string {
  return `it can't be reached (${why})`;
}

/** Why a request to a server had no answer, when the system's code tells. */
export function noAnswer(error: unknown): string | undefined {
  const { code } = describe(error);
  return typeof code === "string" ? unreachable(code) : undefined;
}

function isRedirect(code: string | number | undefined): boolean {
  return typeof code === "number" && code >= 300 && code < 400;
}

const UNREADABLE = "answered in a form that can't be read";

function isUnreadable(error: unknown): boolean {
  return describe(error).name.endsWith("ZodError");
}

export interface CallContext {
  readonly server: string;
  /** The caller's signal fired. */
  readonly aborted: boolean;
  /** The total time-out fired. */
  readonly timedOut: boolean;
  /** The connection was lost. */
  readonly lost: boolean;
  /** How the server's process ended, if it did. */
  readonly exit: string | undefined;
}

/**
 * An outcome when the server answered (with a protocol error, or in a form that can't be read).
 *
 * @throws McpError `mcp_failed` when nobody knows what the call did: abort, time-out, lost connection.
 */
export async function callFailure(error: unknown, context: CallContext): Promise<ToolOutcome> {
  const { server } = context;
  const unknown = (what: string) => new McpError("mcp_failed", `${server}: ${what}; the outcome is unknown`);
  if (context.aborted) throw unknown("the call was aborted");
  if (context.timedOut) throw unknown("the call reached its total time-out");
  // Ours: the login could not be read, or not be refreshed after the server had refused the request.
  if (error instanceof McpError) {
    const text = `The server ${server} can't be used: ${error.message}. It took nothing up.`;
    return { isError: true, text };
  }
  const { McpError: ProtocolError } = await import("@modelcontextprotocol/sdk/types.js");
  if (error instanceof ProtocolError) {
    if (error.code === REQUEST_TIMEOUT) throw unknown("the call timed out");
    if (error.code === CONNECTION_CLOSED && (context.lost || isStreamEnd(error.data))) {
      const { exit } = context;
      throw unknown(
        `${exit === undefined ? "the connection was closed" : `the process ${exit}`} during the call`,
      );
    }
    if (error.code === URL_ELICITATION_REQUIRED) {
      const text = `The server ${server} wants a person to open a web page first, which this host can't ask for yet.`;
      return { isError: true, text };
    }
    return { isError: true, text: error.message };
  }
  if (isUnreadable(error)) {
    return { isError: true, text: `The server ${server} ${UNREADABLE}.` };
  }
  const { code } = describe(error);
  if (code === "ECONNREFUSED" || code === "ConnectionRefused") {
    return { isError: true, text: `The server ${server} can't be reached; nothing was sent to it.` };
  }
  if (code === 401) return { isError: true, text: `The server ${server} refused the call: ${LOGIN_NEEDED}.` };
  // 408 alone leaves open what became of the request; a redirect and any other 4xx mean that it was not taken up.
  if (isRedirect(code) || (typeof code === "number" && code >= 400 && code < 500 && code !== 408)) {
    return { isError: true, text: `The server ${server} refused the call with HTTP ${code}.` };
  }
  throw unknown("the connection failed during the call");
}

/**
 * Whether a server over HTTP does not know our session any more: it was restarted, or let the session expire. The
 * protocol says 404; servers after the SDK's example say 400, which others say of a request's arguments: it counts
 * only when the answer speaks of a session. Neither took anything up.
 */
export function isSessionGone(error: unknown): boolean {
  const { code, isProtocol } = describe(error);
  if (isProtocol) return false;
  if (code !== 400) return code === 404;
  if (error instanceof HttpStatusError) return error.namesSession;
  // The SDK's streamable transport puts the answer's body into the message.
  return error instanceof Error && speaksOfSession(error.message);
}

/** Whether the body of a refusal is about a session; `Mcp-Session-Id` and `sessionId` count. */
export function speaksOfSession(body: string): boolean {
  return /session/i.test(body);
}

/** An answer with an HTTP status that refuses a request; of its body is kept only whether it speaks of a session. */
export class HttpStatusError extends Error {
  override readonly name = "HttpStatusError";
  readonly code: number;
  readonly namesSession: boolean;
  constructor(code: number, namesSession: boolean) {
    super(`HTTP ${code}`);
    this.code = code;
    this.namesSession = namesSession;
  }
}

/** A protocol error has a JSON-RPC code, which may be any number; other errors have that of HTTP or of the system. */
function describe(error: unknown): {
  code: string | number | undefined;
  name: string;
  isProtocol: boolean;
} {
  if (!(error instanceof Error)) return { code: undefined, name: typeof error, isProtocol: false };
  const code = "code" in error ? error.code : undefined;
  return {
    code: typeof code === "string" || typeof code === "number" ? code : undefined,
    name: error.name,
    isProtocol: error.name === PROTOCOL_ERROR,
  };
}
