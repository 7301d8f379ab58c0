import type { ModelResult, StopReason } from "../core/ports/model.ts";

/**
 * What a person must know about an answer besides its text, as bracketed lines at its end: that the model stopped
 * before it was finished, that another model answered.
 */

/** Tool calls of an answer that ended so are not complete: they must not run. */
export function isCutShort(reason: StopReason): boolean {
  return reason === "length" || reason === "content_filter" || reason === "refusal";
}

function stopNote({ stopReason, text, toolCalls }: ModelResult): string | undefined {
  const nothing = text.trim() === "";
  const unused = toolCalls.length > 0 ? " It was about to use tools; they were not run." : "";
  switch (stopReason) {
    case "length":
      return nothing
        ? `The model reached its output limit before it had written an answer.${unused}`
        : `The answer ends here because the model reached its output limit.${unused}`;
    case "content_filter":
      return `The model's provider stopped this answer (content filter).${unused}`;
    case "refusal":
      return `The model declined to answer this (refusal).${unused}`;
    case "other":
      return "The model ended its answer early, for a reason that it did not explain.";
    case "stop":
    case "tool_calls":
      return undefined;
  }
}

/** The lines that follow the text of the last model call; empty when there is nothing to say, or no answer at all. */
export function answerNotes(result: ModelResult, notices: Iterable<string>): string {
  const stopped = stopNote(result);
  if (stopped === undefined && result.text.trim() === "") return "";
  const lines = [...(stopped === undefined ? [] : [stopped]), ...notices].map((line) => `[${line}]`);
  if (lines.length === 0) return "";
  return `${result.text.trim() === "" ? "" : "\n\n"}${lines.join("\n")}`;
}
