import { resolve } from "node:path";
import type { Transport } from "@modelcontextprotocol/sdk/shared/transport.js";
import { BugError, McpError } from "../core/errors.ts";
import { KIB, SECOND_MS } from "../core/limits.ts";
import { type McpServerSpec, serverTransport } from "../core/mcp-servers.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";
import { answeredStreams } from "./answer-stream.ts";
import { type ClaimGrant, type ContextGrant, childEnvironment, requestHeaders } from "./claim-injection.ts";
import { directFetch } from "./direct-fetch.ts";
import { HttpStatusError, speaksOfSession } from "./failures.ts";
import { authorizedFetch, type Fetch } from "./oauth-fetch.ts";
import type { OAuthStore } from "./oauth-store.ts";
import type { ProcessGuard } from "./process-guard.ts";
import { argumentSecrets, environmentSecrets, headerSecrets, type Redact, redactor } from "./stderr-lines.ts";
import { createStdioTransport, type StdioTransport } from "./stdio.ts";

/** Of a refusal over SSE so much is read, to see what it is about; ours. */
const REFUSAL_PREFIX_BYTES = 4 * KIB;
/** …and so long it is waited for. */
export const REFUSAL_WAIT_MS = 2 * SECOND_MS;

/** What a server is reached with. */
export interface TransportOptions {
  readonly server: string;
  readonly spec: McpServerSpec;
  readonly grant: ClaimGrant;
  readonly context: ContextGrant;
  readonly baseEnv: Readonly<Record<string, string | undefined>>;
  /** Values that give authority over the host's services: like claim tokens, they come back from no server. */
  readonly authority: readonly string[];
  readonly cwd: string;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly guard?: ProcessGuard | undefined;
  readonly oauth?: OAuthStore | undefined;
}

export interface Opened {
  readonly transport: Transport;
  readonly stdio?: StdioTransport;
  /** The version of the protocol that was agreed on; undefined before. */
  readonly protocol: () => string | undefined;
  /** Takes what is secret in the server's entry and environment out of its words. */
  readonly redact: Redact;
  /** Tells an HTTP server that its session is over. */
  readonly farewell?: () => Promise<void>;
  /** Whether requests belong to a session that the server may forget. */
  readonly hasSession: () => boolean;
  /** Whether an error of the transport means that its session is over, although it opens a new stream by itself. */
  readonly isDrop?: (error: Error) => boolean;
}

/** What must not even come back in a result. */
export function authoritySecrets({
  grant,
  authority,
}: Pick<TransportOptions, "grant" | "authority">): readonly string[] {
  return typeof grant === "string" ? authority : [grant.token, ...authority];
}

/** Makes the transport of a server's entry; nothing is started or sent yet. */
export async function openTransport(options: TransportOptions): Promise<Opened> {
  const { server, grant, context, baseEnv, cwd, clock, logger } = options;
  const target = serverTransport(options.spec);
  const secrets = [...authoritySecrets(options), ...(options.spec.substituted ?? [])];
  switch (target.kind) {
    case "contradictory":
      throw new McpError("mcp_failed", `its entry is contradictory: ${target.reason}`);
    case "stdio": {
      const codec = await import("@modelcontextprotocol/sdk/shared/stdio.js");
      const env = childEnvironment(baseEnv, target.env, grant, context);
      const redact: Redact = redactor([
        ...secrets,
        ...environmentSecrets(env, target.env),
        ...argumentSecrets(target.args, baseEnv),
      ]);
      const stdio = createStdioTransport(
        {
          command: target.command,
          args: target.args,
          env,
          cwd: resolve(cwd, target.cwd ?? "."),
          clock,
          logger,
          server,
          redact,
          guard: options.guard,
        },
        codec,
      );
      return {
        transport: stdio,
        stdio,
        redact,
        protocol: () => stdio.protocolVersion,
        hasSession: () => false,
      };
    }
    case "http": {
      const { StreamableHTTPClientTransport } = await import(
        "@modelcontextprotocol/sdk/client/streamableHttp.js"
      );
      const transport = new StreamableHTTPClientTransport(new URL(target.url), {
        requestInit: { headers: requestHeaders(target.headers, grant) },
        fetch: answeredStreams(
          shortRefusals(authorizedFetch(directFetch, target.url, options.oauth, clock), clock),
        ),
      });
      return {
        transport,
        protocol: () => transport.protocolVersion,
        redact: redactor([...secrets, ...headerSecrets(target.headers)]),
        farewell: () => transport.terminateSession(),
        hasSession: () => transport.sessionId !== undefined,
      };
    }
    case "sse": {
      if (grant !== "unselected") throw new BugError("an SSE server holds no continuation authority");
      const { SSEClientTransport, SseError } = await import("@modelcontextprotocol/sdk/client/sse.js");
      const send = authorizedFetch(directFetch, target.url, options.oauth, clock);
      // Of a request that had no answer its errors hold the words alone.
      let unanswered: unknown;
      const noting: Fetch = async (url, init) => {
        unanswered = undefined;
        return send(url, init).catch((error: unknown) => {
          unanswered = error;
          throw error;
        });
      };
      const transport = new SSEClientTransport(new URL(target.url), {
        requestInit: { headers: requestHeaders(target.headers, grant) },
        fetch: refusingPosts(shortRefusals(noting, clock)),
      });
      const start = transport.start.bind(transport);
      transport.start = () =>
        start().catch((error: unknown) => {
          throw error instanceof SseError && error.code === undefined ? (unanswered ?? error) : error;
        });
      // It keeps the version to itself.
      let protocol: string | undefined;
      const adopt = transport.setProtocolVersion.bind(transport);
      transport.setProtocolVersion = (version) => {
        protocol = version;
        adopt(version);
      };
      return {
        transport,
        protocol: () => protocol,
        redact: redactor([...secrets, ...headerSecrets(target.headers)]),
        hasSession: () => true,
        isDrop: (error) => error instanceof SseError,
      };
    }
  }
}

/** Of the answer that refuses a message the status counts; of its body only a beginning is taken and waited for. */
function shortRefusals(send: Fetch, clock: Clock): Fetch {
  return async (url, init) => {
    const response = await send(url, init);
    if (init?.method !== "POST" || response.status < 400) return response;
    const { status, statusText, headers } = response;
    return new Response(await beginning(response, clock), { status, statusText, headers });
  };
}

/** The SDK's SSE transport would put the status of a refused message into words only, and the answer's body with it. */
function refusingPosts(send: Fetch): Fetch {
  return async (url, init) => {
    const response = await send(url, init);
    if (init?.method !== "POST" || response.status < 300) return response;
    throw new HttpStatusError(response.status, speaksOfSession(await response.text()));
  };
}

/** The first bytes of a body, at least REFUSAL_PREFIX_BYTES if there are as many in time; what can't be read is left out. */
async function beginning({ body }: Response, clock: Clock): Promise<string> {
  if (body === null) return "";
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  let bytes = 0;
  const end = () => reader.cancel().catch(() => {});
  // A read that waits ends with the body.
  const cancelLimit = clock.timer(REFUSAL_WAIT_MS, () => void end());
  try {
    while (bytes < REFUSAL_PREFIX_BYTES) {
      const { done, value } = await reader.read();
      if (done) break;
      bytes += value.byteLength;
      text += decoder.decode(value, { stream: true });
    }
  } catch {
    // The status is known, and that is what counts.
  } finally {
    cancelLimit();
    void end();
  }
  return text;
}
