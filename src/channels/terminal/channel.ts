import { currentConversationId, type SessionRollover } from "../../core/buckets.ts";
import { baseConversationId } from "../../core/derive.ts";
import type { Channel, ChannelStatus, TurnEngine } from "../../core/ports/channel.ts";
import type { DeliveryOutcome, DeliveryProof, DeliveryRequest } from "../../core/ports/delivery.ts";
import type { Clock, FileSystem, Ids, Logger } from "../../core/ports/platform.ts";
import type { TurnStore } from "../../core/ports/turns.ts";
import { TERMINAL_SCHEME, terminalName } from "../../core/terminal.ts";
import type { Message } from "../../core/turn.ts";
import type { Bound } from "../../http/loopback.ts";
import { type HttpServer, serveHttp } from "../../http/serve.ts";
import { createTerminalApp } from "./app.ts";
import type { EventStream } from "./event-stream.ts";
import { loadTerminalToken } from "./token.ts";

/**
 * Owns: the terminal channel: its token, its port, and delivery into terminal conversations.
 *
 * I1. A delivered answer *is* a row of the ledger, unique by its delivery key below the conversation. So delivering
 *     again is harmless, and looking it up gives an exact answer, yes or no.
 * I2. Observers hear of a row only after it is durable.
 */

export interface TerminalDeps {
  readonly engine: TurnEngine;
  readonly turns: TurnStore;
  readonly fs: FileSystem;
  readonly clock: Clock;
  readonly ids: Ids;
  readonly logger: Logger;
  readonly host: string;
  /** 0 takes any free port; `address()` tells which. */
  readonly port: number;
  /** Where the token file lives; owner-only, and owned by this process. */
  readonly stateDir: string;
  readonly session: SessionRollover;
  /** Conversation names that may be used; all when missing. */
  readonly allow?: readonly string[];
}

export interface TerminalChannel extends Channel {
  /** Where it listens while it runs. */
  address(): Bound | undefined;
}

export function createTerminalChannel(deps: TerminalDeps): TerminalChannel {
  const { engine, turns, clock, logger, session } = deps;
  const streams = new Set<EventStream>();
  const listeners = new Set<() => void>();
  let status: ChannelStatus = "disabled";
  let server: HttpServer | undefined;

  const admits = (name: string) => deps.allow?.includes(name) ?? true;

  const allows = (destination: string) => {
    const name = terminalName(baseConversationId(destination));
    return name !== undefined && admits(name);
  };

  const shared = {
    engine,
    turns,
    clock,
    logger,
    session,
    admits,
    running: () => status === "running",
    streams,
  };

  const start = async () => {
    if (server !== undefined) return;
    try {
      const token = await loadTerminalToken(deps);
      server = await serveHttp({
        app: (bound) => createTerminalApp({ ...shared, bound, token }),
        host: deps.host,
        port: deps.port,
        clock,
        logger,
      });
      status = "running";
    } catch (error) {
      status = "failed";
      throw error;
    }
    for (const listener of listeners) listener();
  };

  const stop = async () => {
    status = "disabled";
    const stopping = server?.stop();
    server = undefined;
    for (const stream of [...streams]) stream.close();
    await stopping;
  };

  const deliver = async (request: DeliveryRequest): Promise<DeliveryOutcome> => {
    const baseId = baseConversationId(request.destination);
    if (!allows(baseId)) {
      return {
        kind: "permanent",
        code: "destination_not_allowed",
        reason: "the terminal channel does not serve this destination",
      };
    }
    // Over all buckets: a repetition after midnight must find the row of the day before.
    const known = await turns.findDelivered(baseId, request.deliveryKey);
    if (known !== undefined) return known.content === request.text ? delivered(known) : conflict();
    const now = clock.now();
    const appended = await turns.appendDelivered({
      conversationId: currentConversationId(baseId, session, now),
      baseId,
      deliveryKey: request.deliveryKey,
      text: request.text,
      now: new Date(now).toISOString(),
      mirror: false,
    });
    if (!appended.ok) return conflict();
    const { message } = appended.value;
    if (appended.value.appended) engine.publish(baseId, { type: "message", message });
    return delivered(message);
  };

  const findDelivery = async (destination: string, deliveryKey: string): Promise<DeliveryProof> => {
    const row = await turns.findDelivered(baseConversationId(destination), deliveryKey);
    if (row === undefined) {
      return { kind: "absent", exact: true, evidence: "no row of host.sqlite has this delivery key" };
    }
    return { kind: "delivered", parts: [part(row)], evidence: `row ${row.seq} of host.sqlite` };
  };

  return {
    name: "terminal",
    scheme: TERMINAL_SCHEME,
    status: () => status,
    address: () => (server === undefined ? undefined : { host: server.host, port: server.port }),
    allows,
    onReady(listener) {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
    start,
    stop,
    deliver,
    findDelivery,
  };
}

function delivered(message: Message): DeliveryOutcome {
  return { kind: "delivered", parts: [part(message)] };
}

function part(message: Message): { id: string } {
  return { id: `terminal:${message.seq}` };
}

function conflict(): DeliveryOutcome {
  return {
    kind: "permanent",
    code: "delivery_conflict",
    reason: "another text was delivered under this delivery key",
  };
}
