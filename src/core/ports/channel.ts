import type { Result } from "../errors.ts";
import type { ConversationEvent } from "../turn.ts";
import type { DeliveryOutcome, DeliveryProof, DeliveryRequest } from "./delivery.ts";
import type { Attachment } from "./model.ts";

export type ChannelStatus = "disabled" | "waiting_for_config" | "running" | "degraded" | "failed";

/**
 * The channel contract. A channel takes turns in from a person and posts answers out; it owns one destination
 * scheme (the part of a route before the first `:`).
 */
export interface Channel {
  readonly name: string;
  /** Destination scheme, such as `terminal` or `slack`. */
  readonly scheme: string;
  status(): ChannelStatus;
  /** Whether the allowlist admits this destination. Checked again at synthesis and at delivery. */
  allows(destination: string): boolean;
  /**
   * Calls back each time the channel becomes able to post: after its start, and when a lost connection stands again.
   * What waits for it then goes on at once. Returns an unsubscribe function.
   */
  onReady(listener: () => void): () => void;
  start(): Promise<void>;
  stop(): Promise<void>;
  /** One post. Resolves with a typed outcome; a throw after the post began counts as unknown. */
  deliver(request: DeliveryRequest): Promise<DeliveryOutcome>;
  findDelivery(
    destination: string,
    deliveryKey: string,
    since: string,
    signal: AbortSignal,
  ): Promise<DeliveryProof>;
}

export interface TurnInput {
  readonly requestId: string;
  readonly conversationId: string;
  readonly thread?: string;
  readonly text: string;
  /**
   * Images and documents for this turn's model calls; the history keeps the text, with a line that names each. At most `ATTACHMENTS_MAX`, with
   * the bounds beside it. Whether the model takes them shows when it is called: if not, the turn ends and says so.
   */
  readonly attachments?: readonly Attachment[];
  readonly replyTo: string;
}

/** What the host offers to channels: the harness behind one small interface. */
export interface TurnEngine {
  /** Admits a turn durably and runs it in its thread's order. Resolves at admission, not at the end. */
  submit(input: TurnInput): Promise<Result<{ turnId: string; replayed: boolean }>>;
  /** Cancels a queued or running turn. `turn_finished` when it is terminal already. */
  cancel(turnId: string): Promise<Result<void>>;
  /** Committed events and live previews of one base conversation. Returns an unsubscribe function. */
  observe(baseConversationId: string, listener: (event: ConversationEvent) => void): () => void;
  /**
   * Tells the observers of a base conversation about an event that the engine did not make itself, such as a delivered
   * answer. Call it only after the row is durable.
   */
  publish(baseConversationId: string, event: ConversationEvent): void;
}
