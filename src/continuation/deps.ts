import type { ContinuationLimits } from "../core/limits.ts";
import type { DeliveredHistory, Delivery } from "../core/ports/delivery.ts";
import type { Clock, Ids, Logger } from "../core/ports/platform.ts";
import type { ContinuationStore } from "../core/ports/store.ts";
import type { Synthesis } from "../core/ports/synthesis.ts";
import type { ContinuationMode } from "../core/record.ts";
import type { RestoreHold } from "./hold.ts";

/** A host-owned policy; callers name it and nothing else. */
export interface NamedRoute {
  readonly mode: Exclude<ContinuationMode, "reply">;
  readonly conversationId?: string;
}

/** Everything the continuation domain needs from outside. Nothing here is built inside. */
export interface ContinuationDeps {
  readonly store: ContinuationStore;
  readonly clock: Clock;
  readonly ids: Ids;
  readonly logger: Logger;
  readonly limits: ContinuationLimits;
  readonly namedRoutes: ReadonlyMap<string, NamedRoute>;
  /** Service name → bearer token. */
  readonly detachedServices: ReadonlyMap<string, string>;
  /** `http://127.0.0.1:4319`, the stable address that claim, result and status URLs start with. */
  readonly baseUrl: string;
  readonly synthesis: Synthesis;
  readonly delivery: Delivery;
  readonly history: DeliveredHistory;
  /** After a restore: what must not happen again before it is proved or released. */
  readonly hold?: RestoreHold | undefined;
}
