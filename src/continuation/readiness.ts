import { errorName } from "../core/errors.ts";
import type { ContinuationRecord } from "../core/record.ts";
import type { ContinuationDeps } from "./deps.ts";
import type { Ledger } from "./ledger.ts";

const CODE_MAX_CHARS = 128;

/**
 * Readiness of the host's model, before a synthesis: anything but `true` defers, at no attempt. Resolves with true when
 * the record was dealt with.
 */
export async function synthesisBlocks(
  record: ContinuationRecord,
  deps: Pick<ContinuationDeps, "synthesis" | "logger">,
  ledger: Ledger,
): Promise<boolean> {
  const code = blockedBy(record, deps);
  if (code === undefined) return false;
  await ledger.apply(record.continuationId, {
    kind: "defer",
    code,
    reason: "The host can't begin a synthesis now.",
  });
  return true;
}

/** The code of what it waits for; an answer that can't be read is a failed look, because a model call can't be undone. */
function blockedBy(
  { continuationId }: ContinuationRecord,
  { synthesis, logger }: Pick<ContinuationDeps, "synthesis" | "logger">,
): string | undefined {
  if (synthesis.ready === undefined) return undefined;
  try {
    const answer = synthesis.ready();
    if (answer === true) return undefined;
    const { code } = answer;
    if (typeof code === "string" && code !== "") return code.slice(0, CODE_MAX_CHARS);
    logger.warn("the readiness of the synthesis can't be read", { continuationId });
  } catch (error) {
    logger.warn("the readiness of the synthesis failed", { continuationId, error: errorName(error) });
  }
  return "synthesis_preflight_failed";
}
