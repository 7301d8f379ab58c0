import { ok, type Result, refuse } from "../core/errors.ts";
import { CURSOR_MAX_CHARS } from "../core/limits.ts";
import type { TimeKey } from "../core/ports/store.ts";
import {
  type ContinuationRecord,
  type ContinuationState,
  dateText,
  isTerminal,
  stateSchema,
} from "../core/record.ts";
import { type ContinuationStatus, resolveBodySchema } from "../core/wire.ts";
import type { OperatorActions } from "./api.ts";
import type { ContinuationDeps } from "./deps.ts";
import type { Hold } from "./hold.ts";
import { type Ledger, stopping } from "./ledger.ts";
import type { Prover } from "./proof.ts";
import type { Decider } from "./settle-delivered.ts";
import { detailOf, healthOf, NOT_KEPT, needsPerson, owedOf, statusOf, watchEventOf } from "./status.ts";

/** What an operator may see and do. None of it accepts a destination, and none of it prints a payload or a text. */
export function createOperatorActions(
  deps: ContinuationDeps,
  ledger: Ledger,
  decider: Decider,
  prover: Prover,
  hold: Hold,
): OperatorActions {
  const { store, clock, limits } = deps;

  const badLimit = () =>
    refuse("invalid_page_limit", `limit must be a whole number from 1 to ${limits.operatorPageSize}.`);
  const badCursor = () =>
    refuse("invalid_page_cursor", "cursor must be a nextCursor of an earlier page, unchanged.");
  const asStatus = (result: Result<ContinuationRecord>): Result<ContinuationStatus> =>
    result.ok ? ok(statusOf(result.value)) : result;

  /** An operator's own decision on one that is held releases it. */
  const decided = async (result: Result<ContinuationRecord>): Promise<Result<ContinuationStatus>> => {
    if (result.ok && hold.has(result.value.continuationId)) await hold.release([result.value.continuationId]);
    return asStatus(result);
  };

  const release = async (ids: readonly string[]) => {
    await hold.release(ids);
    // What the model was asked before the backup has no living owner.
    const interrupted = ids.filter((id) => store.durable.get(id)?.state === "synthesizing");
    await ledger.applyAll(interrupted, () => ({ kind: "recover" }));
  };

  return {
    health: () => healthOf(store, clock.now(), hold),

    list(query) {
      const limit = parseLimit(query.limit, limits.operatorPageSize);
      if (limit === undefined) return badLimit();
      const after = query.cursor === undefined ? undefined : decodeCursor(query.cursor);
      if (query.cursor !== undefined && after === undefined) return badCursor();
      let state: ContinuationState | undefined;
      if (query.state !== undefined) {
        const parsed = stateSchema.safeParse(query.state);
        if (!parsed.success) {
          return refuse("invalid_state", `state must be one of ${stateSchema.options.join(", ")}.`);
        }
        state = parsed.data;
      }
      const page = store.durable.page(limit, after, state);
      return ok({
        continuations: page.records.map(statusOf),
        pageSize: limit,
        ...(page.next === undefined ? {} : { nextCursor: encodeCursor(page.next) }),
      });
    },

    show(continuationId) {
      const record = store.durable.get(continuationId);
      return record === undefined
        ? refuse("not_found", "No such continuation.")
        : ok(detailOf(record, clock.now(), hold));
    },

    owed(query) {
      const limit = parseLimit(query.limit, limits.operatorPageSize);
      if (limit === undefined) return badLimit();
      const after = query.cursor === undefined ? undefined : decodeCursor(query.cursor);
      if (query.cursor !== undefined && after === undefined) return badCursor();
      const now = clock.now();
      const from = after === undefined ? undefined : { at: Date.parse(after[0]), id: after[1] };
      const isNext = (promise: TimeKey) => from === undefined || byDeadline(promise, from) > 0;
      const open = store.durable.inStates(NOT_KEPT);
      const next = open.map(deadlineOf).filter(isNext);
      // Dead letters may be many: they come in order, and are read only where they are shown.
      const deadLetters = [...store.durable.retryable(now)];
      const nextDead = deadLetters.filter(isNext);
      const shown = [...next, ...nextDead.slice(0, limit)]
        .sort(byDeadline)
        .slice(0, limit)
        .flatMap(({ id }) => store.durable.get(id) ?? []);
      const last = shown.at(-1);
      return ok({
        owed: shown.map((record) => owedOf(record, now, hold)),
        total: open.length + deadLetters.length,
        needPerson: open.filter((record) => needsPerson(record, now, hold)).length + deadLetters.length,
        ...(last === undefined || shown.length === next.length + nextDead.length
          ? {}
          : { nextCursor: encodeCursor([last.deadline, last.continuationId]) }),
      });
    },

    async prove(continuationId) {
      return ledger.closed ? stopping() : asStatus(await prover.prove(continuationId));
    },

    async release(continuationId) {
      if (ledger.closed) return stopping();
      const record = store.durable.get(continuationId);
      if (record === undefined) return refuse("not_found", "No such continuation.");
      if (!hold.has(continuationId)) {
        return refuse("not_held", "This continuation does not wait for a release after a restore.");
      }
      await release([continuationId]);
      return ok(statusOf(store.durable.get(continuationId) ?? record));
    },

    async releaseAll() {
      if (ledger.closed) return stopping();
      const ids = hold.ids();
      await release(ids);
      return ok({ released: ids.length });
    },

    watch: (listener) =>
      store.onDurable((changed) => {
        for (const id of changed) {
          const record = store.durable.get(id);
          if (record !== undefined) listener(watchEventOf(record));
        }
      }),

    capturedText(continuationId) {
      const record = store.durable.get(continuationId);
      return record?.mode === "capture" && record.state === "delivered" ? record.synthesizedText : undefined;
    },

    async retry(continuationId, options) {
      return decided(
        await decider.exclusively(continuationId, () =>
          ledger.apply(continuationId, { kind: "retry", allowUnknown: options.allowUnknown === true }),
        ),
      );
    },

    async cancel(continuationId) {
      const cancel = () => ledger.apply(continuationId, { kind: "cancel" });
      const record = store.head.get(continuationId);
      // What has ended gets its own refusal, whatever is looked up about it.
      if (record === undefined || isTerminal(record)) return asStatus(await cancel());
      return asStatus(await decider.exclusively(continuationId, cancel));
    },

    async resolve(continuationId, resolution) {
      const parsed = resolveBodySchema.safeParse(resolution);
      if (!parsed.success) {
        return refuse(
          "invalid_resolution",
          parsed.error.issues[0]?.message ?? "The resolution can't be read.",
        );
      }
      const { kind, deliveryId } = parsed.data;
      if (deliveryId !== undefined && kind !== "delivered") {
        return refuse("invalid_resolution", "deliveryId belongs to kind delivered only.");
      }
      return decided(
        await decider.exclusively(continuationId, async () => {
          if (kind === "not_delivered")
            return ledger.apply(continuationId, { kind: "resolve_not_delivered" });
          if (kind === "dead_lettered")
            return ledger.apply(continuationId, { kind: "resolve_dead_lettered" });
          if (ledger.closed) return stopping();
          const record = store.durable.get(continuationId);
          if (record === undefined) return refuse("not_found", "No such continuation.");
          if (record.state !== "delivery_unknown") {
            return refuse(
              "not_delivery_unknown",
              `Only delivery_unknown can be resolved; the state is ${record.state}.`,
            );
          }
          return decider.delivered(record, deliveryId === undefined ? {} : { deliveryId });
        }),
      );
    },
  };
}

function parseLimit(value: string | undefined, pageSize: number): number | undefined {
  if (value === undefined) return pageSize;
  if (!/^[0-9]{1,6}$/.test(value)) return undefined;
  const limit = Number(value);
  return limit >= 1 && limit <= pageSize ? limit : undefined;
}

/** Where a promise stands among others. Its deadline is parsed once, because that is slow. */
function deadlineOf(record: ContinuationRecord): TimeKey {
  return { at: Date.parse(record.deadline), id: record.continuationId };
}

function byDeadline(a: TimeKey, b: TimeKey): number {
  return a.at - b.at || (a.id < b.id ? -1 : a.id > b.id ? 1 : 0);
}

/** base64url of the JSON array `[createdAt, continuationId]` (`owed`: `[deadline, …]`) of the last row (protocol.md). */
export function encodeCursor(position: readonly [string, string]): string {
  return Buffer.from(JSON.stringify(position), "utf8").toString("base64url");
}

export function decodeCursor(cursor: string): [string, string] | undefined {
  if (cursor.length > CURSOR_MAX_CHARS || !/^[A-Za-z0-9_-]+$/.test(cursor)) return undefined;
  try {
    const value: unknown = JSON.parse(Buffer.from(cursor, "base64url").toString("utf8"));
    if (!Array.isArray(value) || value.length !== 2) return undefined;
    const [createdAt, continuationId]: unknown[] = value;
    if (typeof createdAt !== "string" || !dateText.safeParse(createdAt).success) return undefined;
    if (typeof continuationId !== "string" || continuationId === "") return undefined;
    return [createdAt, continuationId];
  } catch {
    return undefined;
  }
}
