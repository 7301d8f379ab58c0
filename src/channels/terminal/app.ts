import type { Context, Hono } from "hono";
import { currentConversationId, type SessionRollover } from "../../core/buckets.ts";
import { baseConversationId } from "../../core/derive.ts";
import { equalTokens } from "../../core/digest.ts";
import { ok, type Refusal, type Result, refuse } from "../../core/errors.ts";
import { ATTACHMENTS_TOTAL_MAX_BYTES, KIB, TURN_TEXT_MAX_BYTES } from "../../core/limits.ts";
import type { TurnEngine } from "../../core/ports/channel.ts";
import type { Attachment } from "../../core/ports/model.ts";
import type { Clock, Logger } from "../../core/ports/platform.ts";
import type { TurnStore } from "../../core/ports/turns.ts";
import { isTerminalName, type MessagesAnswer, terminalRoute } from "../../core/terminal.ts";
import { type TurnAttachment, turnRequestSchema } from "../../core/turn.ts";
import { bearerToken } from "../../http/bearer.ts";
import { readBody } from "../../http/body.ts";
import { refusalResponse, resultResponse } from "../../http/errors.ts";
import { eventStreamResponse } from "../../http/event-streams.ts";
import {
  addRoute,
  type Bound,
  createLoopbackApp,
  type Handler,
  type LoopbackApp,
  pathId,
} from "../../http/loopback.ts";
import { type EventStream, openEventStream } from "./event-stream.ts";

/**
 * Owns: the HTTP interface of terminal conversations (core/terminal.ts): turns in, messages and events out.
 *
 * I1. Nothing is answered without the token, and no body is read before it was checked.
 * I2. A conversation is reached by its name only, a turn only through its own conversation.
 */

export interface TerminalAppDeps {
  readonly engine: TurnEngine;
  readonly turns: TurnStore;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly bound: Bound;
  readonly token: string;
  readonly session: SessionRollover;
  /** Whether the allowlist admits this conversation name. */
  admits(name: string): boolean;
  /** False as soon as the channel stops: no turn and no observer is taken any more. */
  running(): boolean;
  /** Open event streams; the channel ends them when it stops. */
  readonly streams: Set<EventStream>;
}

/** A turn's text with every byte escaped as `\u00XX`, its attachments in base64, and the rest of the body. */
const TURN_BODY_MAX_BYTES =
  6 * TURN_TEXT_MAX_BYTES + Math.ceil(ATTACHMENTS_TOTAL_MAX_BYTES / 3) * 4 + 16 * KIB;
const MESSAGES_DEFAULT = 50;
const MESSAGES_MAX = 500;
const MAX_STREAMS = 64;

const NO_CONVERSATION: Refusal = { code: "not_found", message: "there is no such conversation here" };
const STOPPING: Refusal = { code: "service_stopping", message: "the host is stopping" };
const NO_TURN: Refusal = { code: "not_found", message: "there is no such turn in this conversation" };

export function createTerminalApp(deps: TerminalAppDeps): LoopbackApp {
  return createLoopbackApp(deps, (app) => addTerminalRoutes(app, deps));
}

function addTerminalRoutes(app: Hono, deps: TerminalAppDeps): void {
  const { engine, turns, clock } = deps;

  const guarded =
    (handler: Handler): Handler =>
    (context) => {
      const token = bearerToken(context.req.raw.headers);
      if (!token.ok) return refusalResponse(token.refusal);
      if (!equalTokens(token.value, deps.token)) {
        return refusalResponse({
          code: "invalid_terminal_capability",
          message: "this token is not the terminal's",
        });
      }
      return handler(context);
    };
  const inConversation = (handler: (context: Context, name: string) => Promise<Response>): Handler =>
    guarded(async (context) => {
      const name = pathId(context, "name");
      if (name === undefined || !isTerminalName(name) || !deps.admits(name)) {
        return refusalResponse(NO_CONVERSATION);
      }
      return handler(context, name);
    });

  addRoute(app, "/v1/terminal/health", {
    GET: guarded(() => Response.json({ status: "running", observers: deps.streams.size })),
  });

  addRoute(app, "/v1/terminal/conversations/:name/turns", {
    POST: inConversation(async (context, name) => {
      const bounds = { maxBytes: TURN_BODY_MAX_BYTES, clock };
      const body = await readBody(context.req.raw, turnRequestSchema, bounds);
      if (!body.ok) return refusalResponse(body.refusal);
      if (!deps.running()) return refusalResponse(STOPPING);
      const route = terminalRoute(name);
      const { attachments = [], ...turn } = body.value;
      const admitted = await engine.submit({
        ...turn,
        ...(attachments.length === 0 ? {} : { attachments: attachments.map(attachmentOf) }),
        conversationId: currentConversationId(route, deps.session, clock.now()),
        replyTo: route,
      });
      return resultResponse(admitted, 202);
    }),
  });

  addRoute(app, "/v1/terminal/conversations/:name/turns/:turnId/cancel", {
    POST: inConversation(async (context, name) => {
      const turnId = pathId(context, "turnId");
      const turn = turnId === undefined ? undefined : await turns.getTurn(turnId);
      if (turn === undefined || baseConversationId(turn.conversationId) !== terminalRoute(name)) {
        return refusalResponse(NO_TURN);
      }
      const cancelled = await engine.cancel(turn.turnId);
      return resultResponse(cancelled.ok ? ok({ turnId: turn.turnId, cancelled: true }) : cancelled);
    }),
  });

  addRoute(app, "/v1/terminal/conversations/:name/messages", {
    GET: inConversation(async (context, name) => {
      const limit = queryInteger(context, "limit", 1, MESSAGES_MAX);
      if (!limit.ok) return refusalResponse(limit.refusal);
      const after = queryInteger(context, "after", 0, Number.MAX_SAFE_INTEGER);
      if (!after.ok) return refusalResponse(after.refusal);
      const base = terminalRoute(name);
      const count = limit.value ?? MESSAGES_DEFAULT;
      const messages =
        after.value === undefined
          ? await turns.tail(base, count)
          : await turns.feed(base, after.value, count);
      const answer: MessagesAnswer = { messages, lastSeq: messages.at(-1)?.seq ?? after.value ?? 0 };
      return Response.json(answer);
    }),
  });

  addRoute(app, "/v1/terminal/conversations/:name/events", {
    GET: inConversation(async (context, name) => {
      const after = afterSeq(context);
      if (!after.ok) return refusalResponse(after.refusal);
      if (context.req.method === "HEAD") return eventStreamResponse(null);
      const base = terminalRoute(name);
      const from = after.value ?? (await turns.tail(base, 1)).at(-1)?.seq ?? 0;
      if (!deps.running()) return refusalResponse(STOPPING);
      if (deps.streams.size >= MAX_STREAMS) {
        return refusalResponse({ code: "queue_full", message: `at most ${MAX_STREAMS} observers at a time` });
      }
      const stream = openEventStream({
        subscribe: (listener) => engine.observe(base, listener),
        feed: (seq, limit) => turns.feed(base, seq, limit),
        afterSeq: from,
        clock,
        logger: deps.logger,
        onClose: () => deps.streams.delete(stream),
      });
      deps.streams.add(stream);
      return eventStreamResponse(stream.body);
    }),
  });
}

/** `Last-Event-ID` wins over `?after=`: a client that comes back repeats its first URL. Neither: from now on. */
function afterSeq(context: Context): Result<number | undefined> {
  const last = context.req.header("last-event-id");
  if (last === undefined || last === "") return queryInteger(context, "after", 0, Number.MAX_SAFE_INTEGER);
  return integer(last, "Last-Event-ID", 0, Number.MAX_SAFE_INTEGER);
}

function queryInteger(
  context: Context,
  name: "limit" | "after",
  min: number,
  max: number,
): Result<number | undefined> {
  const text = context.req.query(name);
  return text === undefined ? ok(undefined) : integer(text, name, min, max);
}

function integer(text: string, name: string, min: number, max: number): Result<number> {
  const value = /^[0-9]{1,16}$/.test(text) ? Number(text) : Number.NaN;
  if (value >= min && value <= max) return ok(value);
  const code = name === "limit" ? "invalid_page_limit" : "invalid_page_cursor";
  return refuse(code, `${name} must be an integer from ${min} to ${max}`);
}

function attachmentOf({ mediaType, name, data }: TurnAttachment): Attachment {
  const kind = mediaType.startsWith("image/") ? "image" : "document";
  return { kind, mediaType, name, data: new Uint8Array(Buffer.from(data, "base64")) };
}
