import type { JsonValue } from "../json.ts";
import type { ContinuationMode } from "../record.ts";
import type { OriginSnapshot } from "../snapshot.ts";

export interface SynthesisRequest {
  readonly continuationId: string;
  readonly originRunId: string;
  readonly conversationId: string;
  readonly mode: Exclude<ContinuationMode, "silent">;
  readonly payload: JsonValue;
  /** The pinned snapshot, or the latest bounded history of the conversation for detached routes. */
  readonly context:
    | { readonly policy: "pinned"; readonly snapshot: OriginSnapshot }
    | { readonly policy: "detached_latest" };
  readonly signal: AbortSignal;
}

/** `code` says what a turn waits for (1 to 128 characters), as `lastError` of the continuation shows it. */
export type SynthesisReadiness = true | { readonly code: string };

/** One tool-free model turn that commits no history. */
export interface Synthesis {
  /**
   * Whether a turn could begin now. Asked before each one: anything but true puts it off, at no attempt, and it is asked
   * again after the back-off. Left out: always ready.
   */
  ready?(): SynthesisReadiness;
  /** Resolves with the text exactly as generated. */
  synthesize(request: SynthesisRequest): Promise<string>;
}
