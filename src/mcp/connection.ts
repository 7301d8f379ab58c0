import type { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { McpError } from "../core/errors.ts";
import { isJsonObject, type JsonValue } from "../core/json.ts";
import { MINUTE_MS, SECOND_MS } from "../core/limits.ts";
import type { Clock } from "../core/ports/platform.ts";
import type { ToolOutcome } from "../core/ports/tools.ts";
import { isOrdinaryEnd } from "./answer-stream.ts";
import { declineQuestions } from "./elicitation.ts";
import { callFailure, connectFailure, isSessionGone, NOT_IN_TIME } from "./failures.ts";
import { LIST_TIMEOUT_MS, type Listing, listTools, serverVersion } from "./listing.ts";
import { resultImages } from "./result-images.ts";
import { capText, resultText } from "./result-text.ts";
import { redactor } from "./stderr-lines.ts";
import { authoritySecrets, type Opened, openTransport, type TransportOptions } from "./transport.ts";
import { unlessAborted, untilDone } from "./unless-aborted.ts";

/**
 * Owns: one client of one server: connect, list, call, close.
 *
 * I1. `connect` and `list` never reject: what went wrong becomes a warning, and the run goes on without the server.
 * I2. A call rejects only when its outcome is unknown; an answer of the server, even a protocol error, is an outcome.
 * I3. The claim token and the tokens of detached services never appear in a result, a warning or a log line, whatever
 *     the server prints; what else is secret in its entry appears in no log line and no error of the protocol.
 */

/** Starting a server (a package runner may have to download it first) and its handshake. */
const CONNECT_TIMEOUT_MS = MINUTE_MS;
const CLOSE_TIMEOUT_MS = 5 * SECOND_MS;
/** Names this client to servers. The version is that of its behaviour, not of the release. */
const CLIENT_INFO = { name: "mono-agent", version: "1" };

const NEVER = new AbortController().signal;

export interface RequestTimeouts {
  /** Without an answer or a progress notification for so long, a call is given up (`mcpCallTimeoutMs`). */
  readonly inactivityMs: number;
  /** The bound that no progress moves (`mcpCallMaxTotalTimeoutMs`). */
  readonly totalMs: number;
}

export interface ConnectionOptions extends TransportOptions {
  readonly timeouts: RequestTimeouts;
}

export interface CallOutcome extends ToolOutcome {
  /** The server did not know our session and took nothing up: the call may go to a new client. */
  readonly sessionGone?: boolean;
}

export interface Connection {
  readonly server: string;
  /** Starts or reaches the server and reads its list. Call it once. */
  connect(signal: AbortSignal): Promise<Listing>;
  /** The list as it is now; asks again only when the server said that it has changed. */
  list(): Promise<Listing>;
  call(tool: string, input: JsonValue, signal: AbortSignal): Promise<CallOutcome>;
  /** Whether calls can be sent: connected, and neither lost nor closed. */
  isOpen(): boolean;
  /** What the server says of itself and the version of the protocol; undefined until it is connected. */
  about(): { readonly version: string; readonly protocol: string | undefined } | undefined;
  /** Bounded in time, idempotent; a `connect` under way fails. */
  close(): Promise<void>;
}

export function createConnection(options: ConnectionOptions): Connection {
  const { server, spec, clock, timeouts, logger } = options;
  const redactAuthority = redactor(authoritySecrets(options));
  const inactivityMs = Math.min(spec.timeoutMs ?? timeouts.inactivityMs, timeouts.totalMs);
  let client: Client | undefined;
  let opened: Opened | undefined;
  let connected = false;
  let lost = false;
  let closing: Promise<void> | undefined;
  const closed = new AbortController();
  let listing: Promise<Listing> | undefined;
  /** Questions that the server asked and that were declined. */
  let declined = 0;

  /** A session over HTTP may end without a word; whoever meets that needs a new client. */
  const noticeSession = (error: unknown): boolean => {
    const gone = opened?.hasSession() === true && isSessionGone(error);
    if (gone) lost = true;
    return gone;
  };

  /** A transport may wait without a limit before the first request: SSE does, for the server's endpoint. */
  const inTime = async (connecting: Promise<void>, signal: AbortSignal) => {
    const late = new AbortController();
    const cancel = clock.timer(CONNECT_TIMEOUT_MS, () => late.abort());
    const stop = AbortSignal.any([signal, late.signal, closed.signal]);
    try {
      await unlessAborted(connecting, stop, () => new McpError("mcp_failed", NOT_IN_TIME));
    } finally {
      cancel();
    }
  };

  const failed = (code: string, message: string): Listing => ({
    tools: [],
    warnings: [{ server, code, message }],
    failed: true,
  });

  const shut = async () => {
    if (opened === undefined) return;
    if (!lost && opened.farewell !== undefined) await bounded(clock, opened.farewell());
    // The client closes its transport, but only when it was connected to it.
    await bounded(clock, client?.close());
    await opened.transport.close();
  };

  const freshList = async (open: Client, signal: AbortSignal): Promise<Listing> => {
    const late = new AbortController();
    const cancel = clock.timer(LIST_TIMEOUT_MS, () => late.abort());
    try {
      return await untilDone([signal, late.signal], (during) => listTools(open, server, spec, during));
    } catch (error) {
      listing = undefined;
      noticeSession(error);
      return failed(
        "mcp_list_tools_failed",
        `${server}: ${connectFailure(error, opened?.stdio?.exitText())}`,
      );
    } finally {
      cancel();
    }
  };

  return {
    server,
    async connect(signal) {
      let ready: Client;
      try {
        const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
        const { ToolListChangedNotificationSchema } = await import("@modelcontextprotocol/sdk/types.js");
        const transport = await openTransport(options);
        // From here to the start of the process nothing waits, so a close can't slip between.
        if (closing !== undefined)
          return failed("mcp_init_failed", `${server}: closed before it was reached`);
        opened = transport;
        ready = new Client(CLIENT_INFO, { capabilities: {} });
        client = ready;
        client.onclose = () => {
          lost = true;
        };
        client.onerror = (error) => {
          if (isOrdinaryEnd(error)) return;
          logger.debug("mcp transport error", { server });
          if (transport.isDrop?.(error) !== true) return;
          // It would open a session that nobody initialized; what is under way gets no answer any more.
          lost = true;
          void transport.transport.close();
        };
        client.setNotificationHandler(ToolListChangedNotificationSchema, () => {
          listing = undefined;
        });
        declineQuestions(client, () => {
          declined += 1;
          logger.info("an mcp server asked a question, which was declined", { server });
        });
        await untilDone([signal], (during) => {
          const bounds = { signal: during, timeout: CONNECT_TIMEOUT_MS };
          return inTime(ready.connect(transport.transport, bounds), during);
        });
        connected = true;
      } catch (error) {
        const text = connectFailure(error, opened?.stdio?.exitText());
        await opened?.transport.close().catch(() => {});
        return failed("mcp_init_failed", `${server}: ${text}`);
      }
      listing = freshList(ready, signal);
      return listing;
    },

    list() {
      if (client === undefined || !connected) {
        return Promise.resolve(failed("mcp_init_failed", `${server}: it is not connected`));
      }
      // One caller's abort must not spoil it for the others; a close ends it.
      listing ??= freshList(client, NEVER);
      return listing;
    },

    async call(tool, input, signal) {
      if (!isJsonObject(input)) {
        return { isError: true, text: `The arguments of ${tool} must be one valid JSON object.` };
      }
      if (client === undefined || !connected || lost || closing !== undefined) {
        return {
          isError: true,
          text: `The server ${server} is no longer connected; nothing was sent to it.`,
        };
      }
      if (signal.aborted) throw notSent(server);
      const { CallToolResultSchema } = await import("@modelcontextprotocol/sdk/types.js");
      const limit = new AbortController();
      const cancelTotal = clock.timer(timeouts.totalMs, () => limit.abort("total time-out"));
      const declinedBefore = declined;
      // In this order: a secret that was cut in half would not be found.
      const told = (text: string) =>
        capText(redactAuthority(text), declined > declinedBefore ? `\n${DECLINED_NOTE}` : "");
      try {
        // Not client.callTool: its check of the output schema would turn a call that ran into a failed one.
        const open = client;
        const result = await untilDone([signal, limit.signal], (during) =>
          open.request(
            { method: "tools/call", params: { name: tool, arguments: input } },
            CallToolResultSchema,
            {
              signal: during,
              timeout: inactivityMs,
              // Without a progress callback no progress token is sent, and nothing re-arms the time-out.
              onprogress: () => {},
              resetTimeoutOnProgress: true,
            },
          ),
        );
        const images = resultImages(result);
        const answer = { text: told(resultText(result)), isError: result.isError === true };
        return images.length === 0 ? answer : { ...answer, images };
      } catch (error) {
        const outcome = await callFailure(error, {
          server,
          aborted: signal.aborted,
          timedOut: limit.signal.aborted,
          lost,
          exit: opened?.stdio?.exitText(),
        });
        const answer = { ...outcome, text: told(opened?.redact(outcome.text) ?? outcome.text) };
        return noticeSession(error) ? { ...answer, sessionGone: true } : answer;
      } finally {
        cancelTotal();
      }
    },

    isOpen: () => connected && !lost && closing === undefined,

    about() {
      if (client === undefined || !connected) return undefined;
      return { version: serverVersion(client), protocol: opened?.protocol() };
    },

    close() {
      closed.abort();
      closing ??= shut();
      return closing;
    },
  };
}

/** A call that was aborted before the server heard of it. */
export function notSent(server: string): McpError {
  return new McpError("mcp_failed", `${server}: the call was aborted before it was sent`);
}

/** Calls of several runs may be under way at one server, so it is not told whose question it was. */
const DECLINED_NOTE =
  "[While this call ran, the server asked a question (elicitation). It was declined: this host can't ask a person " +
  "during a call. Ask the person yourself and call again with what they said.]";

/** Waits for a courtesy at most 5 seconds, and for its failure not at all. */
async function bounded(clock: Clock, work: Promise<void> | undefined): Promise<void> {
  if (work === undefined) return;
  const late = Promise.withResolvers<void>();
  const cancel = clock.timer(CLOSE_TIMEOUT_MS, () => late.resolve());
  await Promise.race([work.catch(() => {}), late.promise]);
  cancel();
}
