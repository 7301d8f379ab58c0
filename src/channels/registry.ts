import { assert } from "../core/errors.ts";
import type { Channel } from "../core/ports/channel.ts";
import type { Delivery, DeliveryOutcome } from "../core/ports/delivery.ts";

/**
 * Owns: routing a destination to the channel that owns its scheme (the part before the first `:`).
 * Does not own: what a throw of the channel means; whoever asked decides that (delivery-job.ts, proof.ts).
 *
 * I1. The allowlist and the channel's state are looked at again right before each post.
 */

export function createDelivery(channels: readonly Channel[]): Delivery {
  const byScheme = new Map(channels.map((channel) => [channel.scheme, channel]));
  assert(byScheme.size === channels.length, "each channel has a scheme of its own");
  const channelOf = (destination: string) => {
    const cut = destination.indexOf(":");
    return cut < 1 ? undefined : byScheme.get(destination.slice(0, cut));
  };

  return {
    supports: (destination) => {
      const channel = channelOf(destination);
      if (channel === undefined || !channel.allows(destination)) return "never";
      return isRunning(channel) ? "supported" : "not_running";
    },

    deliver: async (request) => {
      const channel = channelOf(request.destination);
      if (channel === undefined) {
        return permanent(
          "destination_channel_unsupported",
          "no channel of this host serves this destination",
        );
      }
      if (!channel.allows(request.destination)) {
        return permanent("destination_not_allowed", "the channel's allowlist excludes this destination");
      }
      if (!isRunning(channel)) {
        return {
          kind: "retryable",
          code: "destination_channel_unavailable",
          reason: `the ${channel.name} channel is not running`,
        };
      }
      return channel.deliver(request);
    },

    onReady(listener) {
      const ends = channels.map((channel) => channel.onReady(listener));
      return () => {
        for (const end of ends) end();
      };
    },

    find: async (destination, deliveryKey, since, signal) => {
      const channel = channelOf(destination);
      if (channel === undefined) return { kind: "unknown" };
      return channel.findDelivery(destination, deliveryKey, since, signal);
    },
  };
}

/** A degraded channel (reconnecting its inbound side, say) can still post. */
function isRunning(channel: Channel): boolean {
  const status = channel.status();
  return status === "running" || status === "degraded";
}

function permanent(code: string, reason: string): DeliveryOutcome {
  return { kind: "permanent", code, reason };
}
