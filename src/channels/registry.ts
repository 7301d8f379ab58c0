import { assert, errorName } from "../core/errors.ts";
import type { Channel } from "../core/ports/channel.ts";
import type { Delivery, DeliveryOutcome } from "../core/ports/delivery.ts";
import type { Logger } from "../core/ports/platform.ts";

/**
 * Owns: routing a destination to the channel that owns its scheme (the part before the first `:`).
 *
 * I1. The allowlist and the channel's state are looked at again right before each post.
 * I2. A throw from a channel after the call began counts as an unknown outcome, never as a failure.
 */

export function createDelivery(deps: { channels: readonly Channel[]; logger: Logger }): Delivery {
  const byScheme = new Map(deps.channels.map((channel) => [channel.scheme, channel]));
  assert(byScheme.size === deps.channels.length, "each channel has a scheme of its own");
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
      try {
        return await channel.deliver(request);
      } catch (error) {
        deps.logger.error("delivery threw", { channel: channel.name, error: errorName(error) });
        return {
          kind: "unknown",
          code: "delivery_threw",
          reason: `the ${channel.name} channel failed in the middle of a post`,
        };
      }
    },

    onReady(listener) {
      const ends = deps.channels.map((channel) => channel.onReady(listener));
      return () => {
        for (const end of ends) end();
      };
    },

    find: async (destination, deliveryKey, since, signal) => {
      const channel = channelOf(destination);
      if (channel === undefined) return { kind: "unknown" };
      try {
        return await channel.findDelivery(destination, deliveryKey, since, signal);
      } catch (error) {
        deps.logger.error("looking up a delivery failed", {
          channel: channel.name,
          error: errorName(error),
        });
        return { kind: "unknown" };
      }
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
