import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { ContinuationRecord } from "../../src/core/record.ts";

/** What the released runtime made of a fixture (`*.expected.json`), and the short form it tells it in. */

export const FIXTURES = join(import.meta.dir, "../fixtures");

export type ShortForm = Record<string, unknown> & { readonly id: string };

interface Phase {
  readonly records: ShortForm[];
  readonly health: Record<string, unknown> & { readonly status: string };
}
export interface Expected {
  readonly asOf: string;
  readonly labels: Record<string, string>;
  readonly open:
    | {
        readonly ok: true;
        readonly records: ShortForm[];
        readonly stats: unknown;
        readonly rollbackGuardPresent: boolean;
        readonly manifestRollbackGuardRequired: boolean;
        readonly files: { added: string[]; removed: string[]; changed: string[] };
        /** Complete records, sorted by id; for the older formats only. */
        readonly normalizedRecords?: unknown[];
      }
    | { readonly ok: false; readonly error: string };
  readonly afterStartup: Phase;
  readonly afterProcessing: Phase & {
    readonly synthesized: { id: string; policy: string; messages?: number }[];
    readonly delivered: { id: string; conversationId: string; deliveryKey: string; text: string }[];
  };
}

export function expectedOf(name: string): Expected {
  return JSON.parse(readFileSync(join(FIXTURES, `${name}.expected.json`), "utf8"));
}

export function shortForm(record: ContinuationRecord): ShortForm {
  return JSON.parse(
    JSON.stringify({
      id: record.continuationId,
      taskKey: record.taskKey,
      state: record.state,
      mode: record.mode,
      originContextState: record.originContextState,
      completionKind: record.completionKind,
      lastErrorCode: record.lastError?.code,
      receipt: record.receipt,
      nextAttemptAt: record.nextAttemptAt,
      leased: record.leaseOwner === undefined ? undefined : true,
      deliveryStarted: record.deliveryStartedAt === undefined ? undefined : true,
      hasResult: record.resultPayloadHash !== undefined,
      hasPayload: record.resultPayload !== undefined,
      hasText: record.synthesizedText !== undefined,
      hasOriginRef: record.originContextRef !== undefined,
      attempts: {
        synthesis: record.synthesisAttempts,
        deferrals: record.synthesisDeferrals,
        delivery: record.deliveryAttempts,
      },
    }),
  );
}
