import type { ContinuationMode, ContinuationState } from "../../src/core/record.ts";

/** What the reference model (reference-model.ts) is made of: the world around it, and what it knows of one promise. */

/** What a host is set up with. */
export interface Setup {
  readonly workers: 1 | 16;
  readonly keep: {
    readonly terminalMaxRecords: number;
    readonly terminalMaxAgeMs: number;
    readonly capturedTextMaxRecords: number;
    readonly deadLetterTextMaxRecords: number;
  };
}

export interface Weather {
  readonly synthesis: "ok" | "empty" | "throw" | "hang";
  readonly delivery: "delivered" | "retry" | "retry_in_5s" | "permanent" | "unknown" | "throw" | "hang";
  readonly find: "found" | "absent_exact" | "absent" | "unknown" | "throw" | "hang";
  readonly support: "supported" | "not_running" | "never";
  readonly history: "ok" | "fails";
}

export const LIMITS = {
  maxActiveRecords: 4,
  maxActivePerOrigin: 2,
  synthesisTimeoutMs: 300_000,
  deliveryTimeoutMs: 120_000,
};

/** One promise. Times in milliseconds. */
export interface Owed {
  readonly mode: ContinuationMode;
  /** Interactive: index of its origin run. */
  readonly run: number | undefined;
  readonly origin: string;
  readonly taskHash: string;
  readonly deadline: number;
  /** Its continuation id, once there is one: it breaks ties. */
  id: string;
  readonly createdAt: number;
  updatedAt: number;
  state: ContinuationState;
  context: "pending" | "pinned" | "abandoned" | "detached_latest" | "scrubbed";
  /** Which finalize of its run it is bound to. */
  bound?: number | undefined;
  holdsRef: boolean;
  result?: { key: string; payload: string } | undefined;
  actionable: boolean;
  text?: "synthesized" | "origin_context_unavailable" | undefined;
  hasText: boolean;
  syntheses: number;
  posts: number;
  deferrals: number;
  due?: number | undefined;
  error?: string | undefined;
  begun?: number | undefined;
  /** Put off until the channel is ready, and nothing else. */
  deferred: boolean;
  receipt?: { kind: string; recorded?: boolean; proved?: boolean } | undefined;
  // Only in the memory of a process:
  /** May go on before it is due: its channel was announced. */
  early: boolean;
  call?: { kind: "synthesis" | "delivery"; ends: number } | undefined;
  look?: { ends: number; automatic: boolean; wasDown: boolean } | undefined;
  lookAgain?: number | undefined;
  /** Its stored versions since the command began; undefined before it existed. */
  trail: (Owed | undefined)[];
}

export interface Run {
  issued: boolean;
  open: boolean;
  over: boolean;
  finalized: number | undefined;
}

const TERMINAL = new Set<ContinuationState>([
  "delivered",
  "delivery_unknown",
  "expired",
  "cancelled",
  "dead_lettered",
]);
export const isTerminal = (owed: Owed) => TERMINAL.has(owed.state);
export const isSettled = (owed: Owed) => isTerminal(owed) && owed.state !== "delivery_unknown";
export const oldestFirst = (a: Owed, b: Owed) => a.updatedAt - b.updatedAt || (a.id < b.id ? -1 : 1);

export interface ClaimCase {
  readonly mode: ContinuationMode;
  readonly run: number | undefined;
  readonly origin: string;
  readonly taskHash: string;
  readonly deadline: number;
}
