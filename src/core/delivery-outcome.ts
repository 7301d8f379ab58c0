import { z } from "zod";
import { DAY_MS, ERROR_REASON_MAX_CHARS, FIELD_MAX_CHARS } from "./limits.ts";
import type { DeliveryProof, DestinationSupport, HistoryOutcome } from "./ports/delivery.ts";

/**
 * What a channel and the history say is parsed at the door: nothing malformed may reach a record, whoever wrote them,
 * because a record that can't be read stops the next start.
 */

const code = z.string().min(1).max(128);
const reason = z.string();
const id = z
  .string()
  .min(1)
  .max(2 * FIELD_MAX_CHARS);

const supportSchema = z.enum(["supported", "not_running", "never"]);

/** What a channel says of a destination; undefined when it can't be read. */
export function checkedSupport(support: unknown): DestinationSupport | undefined {
  return supportSchema.safeParse(support).data;
}

const parts = z.array(z.object({ id }));

/** What a channel says of a post. Never guessed from words. */
export const deliveryOutcomeSchema = z.discriminatedUnion("kind", [
  z.object({ kind: z.literal("delivered"), parts, channelId: id.optional() }),
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

const evidence = z
  .string()
  .min(1)
  .transform((text) => text.slice(0, ERROR_REASON_MAX_CHARS));

const deliveryProofSchema = z.discriminatedUnion("kind", [
  z.object({ kind: z.literal("delivered"), parts, channelId: id.optional(), evidence }),
  z.object({ kind: z.literal("absent"), exact: z.boolean(), evidence }),
  z.object({ kind: z.literal("unknown") }),
]);

/** The proof as it may be stored, its evidence cut; one that can't be read proves nothing. */
export function checkedProof(proof: unknown): DeliveryProof {
  const parsed = deliveryProofSchema.safeParse(proof);
  return parsed.success ? parsed.data : { kind: "unknown" };
}

const historyOutcomeSchema = z.discriminatedUnion("recorded", [
  z.object({ recorded: z.literal(true) }),
  z.object({ recorded: z.literal(false), code: z.string().min(1) }),
]);

/** The outcome as it may be stored; of one that can't be read nobody knows that the answer was appended. */
export function checkedHistory(outcome: unknown): HistoryOutcome {
  const parsed = historyOutcomeSchema.safeParse(outcome);
  return parsed.success ? parsed.data : { recorded: false, code: "history_record_failed" };
}
