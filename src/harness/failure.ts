import { AppError, McpError, ModelError } from "../core/errors.ts";

/** Why a turn ends without an answer, in words for the person who asked. Never carries texts, routes or tokens. */
export class TurnFailure extends Error {
  override readonly name = "TurnFailure";
  constructor(
    readonly code: string,
    message: string,
    readonly status: "failed" | "cancelled" = "failed",
  ) {
    super(message);
  }
}

export function cancelledTurn(): TurnFailure {
  return new TurnFailure("cancelled", "This turn was cancelled.", "cancelled");
}

export function interruptedTurn(): TurnFailure {
  return new TurnFailure(
    "interrupted",
    "The host stopped before this turn was complete, so it has no answer. Please send it again.",
  );
}

/** The end of a turn that threw `error`. What is not a typed error of ours says nothing about itself to a person. */
export function failureOf(error: unknown): TurnFailure {
  if (error instanceof TurnFailure) return error;
  if (error instanceof ModelError)
    return new TurnFailure(error.code, `The model could not answer: ${error.message}`);
  if (error instanceof McpError)
    return new TurnFailure(error.code, `The tools could not be used: ${error.message}`);
  if (error instanceof AppError) {
    return new TurnFailure(
      error.code,
      `This turn failed inside the host (${error.code}). Please send it again.`,
    );
  }
  return new TurnFailure("internal_error", "This turn failed inside the host. Please send it again.");
}
