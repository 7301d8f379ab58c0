import type { z } from "zod";
import { CliError } from "../../core/errors.ts";
import { SECOND_MS } from "../../core/limits.ts";
import {
  type MessagesAnswer,
  messagesAnswerSchema,
  type TurnAccepted,
  turnAcceptedSchema,
} from "../../core/terminal.ts";
import { type ConversationEvent, conversationEventSchema, type TurnAttachment } from "../../core/turn.ts";
import { errorBodySchema } from "../../core/wire.ts";
import { serverEvents } from "./sse.ts";

/** Longer than the host's own bound on stopping, so that an answer it still gives is seen. */
const REQUEST_TIMEOUT_MS = 30 * SECOND_MS;

/** One terminal conversation at the host. Calls throw `CliError`: `host_unreachable` when a repetition may help. */
export interface ChatClient {
  /** The newest `limit` messages, ascending. */
  messages(limit: number): Promise<MessagesAnswer>;
  /** Repeating it with the same request id is harmless. */
  submit(requestId: string, text: string, attachments?: readonly TurnAttachment[]): Promise<TurnAccepted>;
  cancel(turnId: string): Promise<void>;
  /**
   * Committed messages after `afterSeq` and live previews, until the connection ends (returns) or breaks (throws).
   * `onOpen` is called when the host has answered.
   */
  events(afterSeq: number, signal: AbortSignal, onOpen: () => void): AsyncGenerator<ConversationEvent>;
}

export interface ChatClientOptions {
  /** Such as `http://127.0.0.1:4320`. */
  readonly address: string;
  readonly conversation: string;
  readonly token: string;
  /** How this program is called, for the command that an error advises. */
  readonly program: string;
}

export function createChatClient({ address, conversation, token, program }: ChatClientOptions): ChatClient {
  const base = `${address}/v1/terminal/conversations/${encodeURIComponent(conversation)}`;

  const send = async (path: string, init: RequestInit): Promise<Response> => {
    let response: Response;
    try {
      response = await fetch(`${base}${path}`, {
        ...init,
        headers: { ...init.headers, authorization: `Bearer ${token}` },
        redirect: "error",
        // The host is on this machine: the token must not pass a proxy that the environment names.
        proxy: false,
      });
    } catch (error) {
      throw new CliError("host_unreachable", noHostAt(address, program), { cause: error });
    }
    if (!response.ok) throw await refusalOf(response);
    return response;
  };

  const call = async <T>(path: string, schema: z.ZodType<T>, init: RequestInit): Promise<T> => {
    const response = await send(path, { ...init, signal: AbortSignal.timeout(REQUEST_TIMEOUT_MS) });
    const parsed = schema.safeParse(await response.json().catch(() => undefined));
    if (parsed.success) return parsed.data;
    throw new CliError("operation_failed", `what answers at ${address} is not this version of mono-agent`);
  };

  return {
    messages: (limit) => call(`/messages?limit=${limit}`, messagesAnswerSchema, { method: "GET" }),
    submit(requestId, text, attachments = []) {
      const body = { requestId, text, ...(attachments.length === 0 ? {} : { attachments }) };
      return call("/turns", turnAcceptedSchema, { method: "POST", body: JSON.stringify(body) });
    },
    cancel: async (turnId) => {
      const path = `/turns/${encodeURIComponent(turnId)}/cancel`;
      await send(path, { method: "POST", signal: AbortSignal.timeout(REQUEST_TIMEOUT_MS) });
    },
    async *events(afterSeq, signal, onOpen) {
      const headers = { "last-event-id": String(afterSeq) };
      const response = await send("/events", { method: "GET", headers, signal });
      onOpen();
      if (response.body === null) return;
      for await (const { data } of serverEvents(response.body)) {
        const event = conversationEventSchema.safeParse(JSON.parse(data));
        // An event of a later version that this client does not know yet.
        if (event.success) yield event.data;
      }
    },
  };
}

/** What to do when nobody listens. */
export function noHostAt(address: string, program: string): string {
  return `no mono-agent host answers at ${address}; start one with \`${program} serve\``;
}

async function refusalOf(response: Response): Promise<CliError> {
  const body = errorBodySchema.safeParse(await response.json().catch(() => undefined));
  const said = body.success
    ? `${body.data.error.message} (${body.data.error.code})`
    : `HTTP ${response.status}`;
  const busy = response.status === 503 || response.status === 429;
  return new CliError(busy ? "host_unreachable" : "operation_failed", `the host refused: ${said}`);
}
