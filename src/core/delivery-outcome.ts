import { z } from "zod";
import { DAY_MS, FIELD_MAX_CHARS } from "./limits.ts";

/** What a channel says is parsed at the door: nothing malformed may reach a record, whoever wrote the channel. */

const code = z.string().min(1).max(128);
const reason = z.string();
const id = z
  .string()
  .min(1)
  .max(2 * FIELD_MAX_CHARS);

/** What a channel says of a post. Never guessed from words. */
export const deliveryOutcomeSchema = z.discriminatedUnion("kind", [
  z.object({ kind: z.literal("delivered"), parts: z.array(z.object({ id })), channelId: id.optional() }),
  z.object({
    kind: z.literal("retryable"),
    code,
    reason,
    retryAfterMs: z.number().min(0).max(DAY_MS).optional(),
  }),
  z.object({ kind: z.literal("permanent"), code, reason }),
  z.object({ kind: z.literal("unknown"), code, reason }),
]);

export type DeliveryOutcome = z.infer<typeof deliveryOutcomeSchema>;

/** The outcome as it may be stored; one that can't be read is unknown, because the post may have happened. */
export function checkedOutcome(outcome: unknown): DeliveryOutcome {
  const parsed = deliveryOutcomeSchema.safeParse(outcome);
  if (parsed.success) return parsed.data;
  return {
    kind: "unknown",
    code: "delivery_outcome_unreadable",
    reason: "The channel gave an outcome that can't be read.",
  };
}
