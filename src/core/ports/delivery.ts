import type { DeliveryOutcome } from "../delivery-outcome.ts";

export type { DeliveryOutcome } from "../delivery-outcome.ts";

export interface DeliveryRequest {
  /** Physical route, host-only. */
  readonly destination: string;
  readonly text: string;
  readonly deliveryKey: string;
  readonly signal: AbortSignal;
}

/**
 * `absent` after one complete look that found nothing. `exact` when that alone is a proof (the post would be a row of
 * our own database), which promises too that nothing still under way can post it: no second process, no queue, no call
 * but one that timed out, for which absence waits in any case. Otherwise protocol.md asks for time to pass and a second
 * look.
 */
export type DeliveryProof =
  | {
      readonly kind: "delivered";
      readonly parts: readonly { id: string }[];
      readonly channelId?: string;
      readonly evidence: string;
    }
  | { readonly kind: "absent"; readonly exact: boolean; readonly evidence: string }
  | { readonly kind: "unknown" };

/** `never`: no channel of this host can ever serve it, or the channel's allowlist excludes it. */
export type DestinationSupport = "supported" | "not_running" | "never";

/** Native delivery, routed by destination to the channel that serves it. */
export interface Delivery {
  supports(destination: string): DestinationSupport;
  /** One post. A throw counts as an unknown outcome. */
  deliver(request: DeliveryRequest): Promise<DeliveryOutcome>;
  /** Looks a post up by its delivery key; `since` bounds the search. A throw proves nothing. */
  find(destination: string, deliveryKey: string, since: string, signal: AbortSignal): Promise<DeliveryProof>;
  /**
   * Calls back when a destination that was `not_running` may be `supported` now: what waits for it then goes on at once,
   * rather than after its back-off. Returns an unsubscribe function.
   */
  onReady?(listener: () => void): () => void;
}

export type HistoryOutcome =
  | { readonly recorded: true }
  | { readonly recorded: false; readonly code: string };

/** Conversation history as the continuation service needs it. It can't post. */
export interface DeliveredHistory {
  /**
   * Appends a delivered answer to the exact origin conversation and, when the route's current bucket is another
   * one, there too (protocol.md, History after delivery). Idempotent by delivery key.
   */
  record(entry: {
    readonly originConversationId: string;
    readonly destination: string;
    readonly deliveryKey: string;
    readonly text: string;
    readonly at: string;
  }): Promise<HistoryOutcome>;
}
