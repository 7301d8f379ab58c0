import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import { type Command, type CommandKind, MOVES } from "../../src/core/continuation-commands.ts";
import { transition } from "../../src/core/continuation-transition.ts";
import {
  DELIVERY_MAX_ATTEMPTS,
  RECORD_MAX_BYTES,
  RECORD_RESERVE_BYTES,
  TIMELINE_MAX_ENTRIES,
} from "../../src/core/limits.ts";
import { isSettled, isTerminal, recordFileBytes, recordSchema, STATES } from "../../src/core/record.ts";
import { DEADLINE_MS, NOW, NOW_MS, recordIn } from "../support/records.ts";

const HISTORY = { recorded: true } as const;
const WHY = { code: "why", reason: "because" };
const REF = { schemaVersion: 1, digest: "d".repeat(64), bytes: 10, messageCount: 2 } as const;

const SAMPLES: Record<CommandKind, Command> = {
  accept_result: { kind: "accept_result", idempotencyKey: "key", payloadHash: "b".repeat(64), payload: 1 },
  bind_snapshot: { kind: "bind_snapshot", ref: REF, fingerprint: "e".repeat(64), mac: "c".repeat(64) },
  abandon_origin: { kind: "abandon_origin" },
  await_origin: { kind: "await_origin" },
  defer: { kind: "defer", ...WHY },
  begin_synthesis: { kind: "begin_synthesis", owner: "me" },
  complete_synthesis: { kind: "complete_synthesis", text: "text", bindingMac: "c".repeat(64) },
  fail_synthesis: { kind: "fail_synthesis", ...WHY },
  use_fallback: { kind: "use_fallback", text: "fixed", bindingMac: "c".repeat(64), ...WHY },
  finish_silent: { kind: "finish_silent" },
  suppress: { kind: "suppress" },
  reject: { kind: "reject", ...WHY },
  begin_delivery: { kind: "begin_delivery", owner: "me" },
  confirm_delivery: { kind: "confirm_delivery", parts: [{ id: "p1" }, { id: "p2" }], history: HISTORY },
  postpone_delivery: { kind: "postpone_delivery", ...WHY },
  refuse_delivery: { kind: "refuse_delivery", ...WHY },
  lose_delivery: { kind: "lose_delivery", ...WHY },
  recover: { kind: "recover" },
  expire: { kind: "expire" },
  retry: { kind: "retry", allowUnknown: true },
  cancel: { kind: "cancel" },
  resolve_delivered: { kind: "resolve_delivered", deliveryId: "d", history: HISTORY },
  prove_delivered: {
    kind: "prove_delivered",
    parts: [{ id: "p" }],
    history: HISTORY,
    proof: { by: "channel", evidence: "row" },
  },
  resolve_not_delivered: { kind: "resolve_not_delivered" },
  prove_absent: { kind: "prove_absent" },
  resolve_dead_lettered: { kind: "resolve_dead_lettered" },
};
const KINDS = Object.keys(SAMPLES) as CommandKind[];

const accept = (patch: Partial<Extract<Command, { kind: "accept_result" }>> = {}): Command => ({
  kind: "accept_result",
  idempotencyKey: "key",
  payloadHash: "b".repeat(64),
  payload: 1,
  ...patch,
});

describe("the table of state × command", () => {
  test("a move that is not in the table never changes a record, whatever the time", () => {
    for (const state of STATES) {
      for (const kind of KINDS) {
        if (MOVES[state][kind] !== undefined) continue;
        for (const at of [NOW_MS, DEADLINE_MS + 1]) {
          expect([state, kind, transition(recordIn(state), SAMPLES[kind], at).kind]).not.toContain("changed");
        }
      }
    }
  });

  test("every legal move can be made from some record, and leads only where the table says", () => {
    const variants = [
      {},
      { mode: "capture" as const },
      { mode: "silent" as const, synthesizedText: undefined },
      { originContextState: "pending" as const },
      { leaseOwner: "o", leaseUntil: NOW },
      { leaseOwner: "o", leaseUntil: NOW, deliveryStartedAt: NOW },
      { deliveryAttempts: DELIVERY_MAX_ATTEMPTS },
    ];
    for (const state of STATES) {
      for (const kind of KINDS) {
        const targets = new Set<string>();
        for (const variant of variants) {
          for (const at of [NOW_MS, DEADLINE_MS]) {
            const decision = transition(recordIn(state, variant), SAMPLES[kind], at);
            if (decision.kind === "changed") {
              targets.add(decision.record.state);
              expect(recordSchema.safeParse(decision.record).error).toBeUndefined();
              expect(Date.parse(decision.record.updatedAt)).toBe(at);
            }
          }
        }
        expect({ state, kind, targets: [...targets].sort() }).toEqual({
          state,
          kind,
          targets: [...(MOVES[state][kind] ?? [])].sort(),
        });
      }
    }
  });

  test("what a refusal makes durable is what the command expire makes of the record, and fits a file", () => {
    const near = RECORD_MAX_BYTES - RECORD_RESERVE_BYTES;
    const seen = new Set<string>();
    fc.assert(
      fc.property(
        fc.constantFrom(...STATES),
        fc.constantFrom(...KINDS),
        fc.constantFrom(undefined, NOW),
        fc.constantFrom(undefined, "t", "t".repeat(150_000)),
        fc.constantFrom(0, near - 120_000, near + RECORD_RESERVE_BYTES / 2),
        fc.integer({ min: DEADLINE_MS - 1, max: DEADLINE_MS + 1 }),
        (state, kind, deliveryStartedAt, synthesizedText, payloadBytes, at) => {
          const held = recordIn(state, {
            deliveryStartedAt,
            synthesizedText,
            resultPayload: "p".repeat(payloadBytes),
          });
          const record = kind === "accept_result" ? { ...held, resultIdempotencyKey: undefined } : held;
          const decision = transition(record, SAMPLES[kind], at);
          if (decision.kind !== "refused" || decision.record === undefined) return;
          seen.add(`${kind} → ${decision.record.state}`);
          expect(MOVES[state].expire).toContain(decision.record.state);
          expect(decision).toMatchObject({ refusal: { code: "continuation_expired" } });
          expect(transition(record, { kind: "expire" }, at)).toEqual({
            kind: "changed",
            record: decision.record,
          });
          expect(recordFileBytes(decision.record)).toBeLessThanOrEqual(near);
        },
      ),
      { numRuns: 3000 },
    );
    expect([...seen]).toContain("begin_delivery → delivery_unknown");
    expect([...seen]).toContain("begin_delivery → expired");
    expect([...seen]).toContain("accept_result → expired");
  });

  test("only an operator or a proof moves delivery_unknown, only a retry moves dead_lettered, nothing moves the rest", () => {
    expect(Object.keys(MOVES.delivered)).toEqual([]);
    expect(Object.keys(MOVES.expired)).toEqual([]);
    expect(Object.keys(MOVES.cancelled)).toEqual([]);
    expect(Object.keys(MOVES.dead_lettered)).toEqual(["retry"]);
    expect(Object.keys(MOVES.delivery_unknown).sort()).toEqual([
      "prove_absent",
      "prove_delivered",
      "resolve_dead_lettered",
      "resolve_delivered",
      "resolve_not_delivered",
      "retry",
    ]);
  });

  test("a terminal record has no lease, no next attempt and no snapshot reference; a settled one no payload", () => {
    for (const state of STATES) {
      for (const kind of KINDS) {
        for (const at of [NOW_MS, DEADLINE_MS]) {
          const before = recordIn(state, {
            originContextRef: REF,
            originContextDigest: REF.digest,
            originContextState: "pinned",
          });
          const decision = transition(before, SAMPLES[kind], at);
          if (decision.kind !== "changed" || !isTerminal(decision.record)) continue;
          const { record } = decision;
          expect([
            record.leaseOwner,
            record.leaseUntil,
            record.nextAttemptAt,
            record.originContextRef,
          ]).toEqual([undefined, undefined, undefined, undefined]);
          expect(record.originContextState).toBe("scrubbed");
          expect(record.originContextDigest).toBe(REF.digest);
          if (isSettled(record))
            expect([record.resultPayload, record.compactedAt]).toEqual([
              undefined,
              new Date(at).toISOString(),
            ]);
        }
      }
    }
  });
});

describe("results", () => {
  test("the same key and hash is accepted again in every later state, another one conflicts", () => {
    for (const state of STATES) {
      const record = recordIn(state);
      if (record.resultIdempotencyKey === undefined) continue;
      expect(transition(record, accept(), DEADLINE_MS + 1).kind).toBe("unchanged");
      for (const other of [accept({ idempotencyKey: "k2" }), accept({ payloadHash: "c".repeat(64) })]) {
        const decision = transition(record, other, NOW_MS);
        expect(decision.kind === "refused" && decision.refusal.code).toBe("result_conflict");
      }
    }
  });

  test("a first result at the deadline expires the record durably; one millisecond before it is accepted", () => {
    const late = transition(recordIn("claimed"), accept(), DEADLINE_MS);
    expect(late.kind === "refused" && [late.refusal.code, late.record?.state]).toEqual([
      "continuation_expired",
      "expired",
    ]);
    expect(transition(recordIn("claimed"), accept(), DEADLINE_MS - 1).kind).toBe("changed");
  });

  test("a cancelled claim accepts no result, an expired one is gone", () => {
    const code = (state: "cancelled" | "expired") => {
      const decision = transition(recordIn(state), accept(), NOW_MS);
      return decision.kind === "refused" ? decision.refusal.code : decision.kind;
    };
    expect(code("cancelled")).toBe("result_not_accepted");
    expect(code("expired")).toBe("continuation_expired");
  });

  test("a small payload that grows past the record limit by its indentation is refused before the commit", () => {
    let payload: unknown = 1;
    for (let depth = 0; depth < 1500; depth += 1) payload = [payload];
    const wide = Array.from({ length: 3 }, () => payload);
    const decision = transition(recordIn("claimed"), accept({ payload: wide as never }), NOW_MS);
    expect(decision.kind === "refused" && decision.refusal.code).toBe("record_too_large");
  });
});

describe("text", () => {
  test("the payload is dropped with the text when both together would not fit", () => {
    const payload = "x".repeat(RECORD_MAX_BYTES - RECORD_RESERVE_BYTES - 10_000);
    const record = recordIn("synthesizing", { resultPayload: payload });
    const decision = transition(
      record,
      { kind: "complete_synthesis", text: "y".repeat(20_000), bindingMac: "c".repeat(64) },
      NOW_MS,
    );
    if (decision.kind !== "changed") throw new Error(decision.kind);
    expect(decision.record.resultPayload).toBeUndefined();
    expect(recordFileBytes(decision.record)).toBeLessThan(RECORD_MAX_BYTES);
  });

  test("capture ends with its text kept and a captured receipt", () => {
    const decision = transition(
      recordIn("synthesizing", { mode: "capture" }),
      SAMPLES.complete_synthesis,
      NOW_MS,
    );
    expect(
      decision.kind === "changed" && [decision.record.synthesizedText, decision.record.receipt?.kind],
    ).toEqual(["text", "captured"]);
  });

  test("a dead-lettered delivery keeps its text for an operator's retry, a delivered reply does not", () => {
    const dead = transition(recordIn("ready_to_deliver"), SAMPLES.refuse_delivery, NOW_MS);
    expect(dead.kind === "changed" && dead.record.synthesizedText).toBe("the answer");
    const done = transition(recordIn("ready_to_deliver"), SAMPLES.confirm_delivery, NOW_MS);
    expect(done.kind === "changed" && done.record.synthesizedText).toBeUndefined();
  });
});

describe("delivery", () => {
  const delayOf = (attempts: number, retryAfterMs?: number) => {
    const command = {
      ...SAMPLES.postpone_delivery,
      ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
    } as Command;
    const decision = transition(
      recordIn("ready_to_deliver", { deliveryAttempts: attempts }),
      command,
      NOW_MS,
    );
    if (decision.kind !== "changed") throw new Error(decision.kind);
    return decision.record.nextAttemptAt === undefined
      ? undefined
      : Date.parse(decision.record.nextAttemptAt) - NOW_MS;
  };

  test("back-off starts at 1 s, doubles, and is capped at 1 h", () => {
    expect([1, 2, 3, 11, 12, 13, 19].map((attempts) => delayOf(attempts))).toEqual([
      1000, 2000, 4000, 1_024_000, 2_048_000, 3_600_000, 3_600_000,
    ]);
  });

  test("a delay that the channel gives is honoured", () => expect(delayOf(3, 77_000)).toBe(77_000));

  test("the 20th failure dead-letters", () => {
    const decision = transition(
      recordIn("ready_to_deliver", { deliveryAttempts: 20 }),
      SAMPLES.postpone_delivery,
      NOW_MS,
    );
    expect(decision.kind === "changed" && [decision.record.state, decision.record.lastError?.code]).toEqual([
      "dead_lettered",
      "delivery_attempts_exhausted",
    ]);
  });

  test("the receipt keeps every part's id and whether history was written", () => {
    const decision = transition(
      recordIn("ready_to_deliver"),
      {
        kind: "confirm_delivery",
        parts: [{ id: "p1" }, { id: "p2" }],
        channelId: "chan",
        history: { recorded: false, code: "history_record_failed" },
      },
      NOW_MS,
    );
    if (decision.kind !== "changed") throw new Error(decision.kind);
    expect(decision.record.deliveryParts?.map((part) => part.id)).toEqual(["p1", "p2"]);
    expect(decision.record.receipt).toEqual({
      kind: "delivered",
      deliveredAt: NOW,
      deliveryId: "p2",
      channelId: "chan",
      historyRecorded: false,
      historyErrorCode: "history_record_failed",
    });
  });

  test("of thousands of parts the newest are kept, as many as leave the record room", () => {
    const parts = Array.from({ length: 5_000 }, (_, index) => ({ id: `${index}-${"p".repeat(500)}` }));
    const decision = transition(
      recordIn("ready_to_deliver"),
      { kind: "confirm_delivery", parts, history: { recorded: true } },
      NOW_MS,
    );
    if (decision.kind !== "changed") throw new Error(decision.kind);
    const kept = decision.record.deliveryParts ?? [];
    expect(kept.length).toBeGreaterThan(10);
    expect(kept.map(({ id }) => id)).toEqual(parts.slice(-kept.length).map(({ id }) => id));
    expect(recordFileBytes(decision.record)).toBeLessThan(RECORD_RESERVE_BYTES);
  });

  test("a begun post past the deadline is unknown, one not begun is expired", () => {
    const begun = transition(
      recordIn("ready_to_deliver", { deliveryStartedAt: NOW }),
      SAMPLES.expire,
      DEADLINE_MS,
    );
    expect(begun.kind === "changed" && begun.record.state).toBe("delivery_unknown");
    const waiting = transition(recordIn("ready_to_deliver"), SAMPLES.expire, DEADLINE_MS);
    expect(waiting.kind === "changed" && waiting.record.state).toBe("expired");
  });
});

describe("operator", () => {
  const code = (
    state: "delivery_unknown" | "dead_lettered",
    patch: object,
    command: Command,
    at = NOW_MS,
  ) => {
    const decision = transition(recordIn(state, patch), command, at);
    return decision.kind === "refused" ? decision.refusal.code : decision.kind;
  };
  const retry: Command = { kind: "retry", allowUnknown: false };

  test("retry of delivery_unknown needs allowUnknown, also after an operator dead-lettered it", () => {
    expect(code("delivery_unknown", {}, retry)).toBe("delivery_unknown");
    expect(code("delivery_unknown", {}, SAMPLES.retry)).toBe("changed");
    const byOperator = { lastError: { code: "operator_dead_lettered", reason: "", at: NOW } };
    expect(code("dead_lettered", byOperator, retry)).toBe("delivery_unknown");
    expect(code("dead_lettered", byOperator, SAMPLES.retry)).toBe("changed");
    expect(code("dead_lettered", {}, retry)).toBe("changed");
  });

  test("retry without a stored text is refused, because the model is never asked twice", () => {
    expect(code("dead_lettered", { synthesizedText: undefined }, retry)).toBe("synthesis_not_retryable");
  });

  test("retry past the deadline is refused and keeps text and state", () => {
    expect(code("dead_lettered", {}, retry, DEADLINE_MS)).toBe("continuation_expired");
  });

  test("cancel is idempotent for cancelled, refused for other terminal states and for work in flight", () => {
    const cancel = (state: (typeof STATES)[number], patch = {}) => {
      const decision = transition(recordIn(state, patch), { kind: "cancel" }, NOW_MS);
      return decision.kind === "refused" ? decision.refusal.code : decision.kind;
    };
    expect(cancel("cancelled")).toBe("unchanged");
    for (const state of ["delivered", "delivery_unknown", "expired", "dead_lettered"] as const) {
      expect(cancel(state)).toBe("already_terminal");
    }
    expect(cancel("synthesizing")).toBe("continuation_in_flight");
    expect(cancel("ready_to_deliver", { leaseOwner: "o", deliveryStartedAt: NOW })).toBe(
      "continuation_in_flight",
    );
    expect(cancel("delivery_retry")).toBe("changed");
  });
});

test("the timeline keeps the newest 64 entries", () => {
  const timeline = Array.from({ length: TIMELINE_MAX_ENTRIES }, (_, index) => ({
    at: NOW,
    what: `w${index}`,
  }));
  const decision = transition(recordIn("ready_to_deliver", { timeline }), SAMPLES.begin_delivery, NOW_MS);
  if (decision.kind !== "changed") throw new Error(decision.kind);
  expect(decision.record.timeline?.length).toBe(TIMELINE_MAX_ENTRIES);
  expect(decision.record.timeline?.[0]?.what).toBe("w1");
  expect(decision.record.timeline?.at(-1)?.what).toBe("delivery_started");
});

test("the diagram in the docs is printed from the table", () => {
  const file = join(import.meta.dir, "../../docs/continuation-states.md");
  const lines = STATES.flatMap((state) =>
    KINDS.flatMap((kind) =>
      (MOVES[state][kind] ?? []).map((target) => `    ${state} --> ${target}: ${kind}`),
    ),
  );
  expect(readFileSync(file, "utf8")).toContain(
    `stateDiagram-v2\n    [*] --> claimed: claim\n${lines.join("\n")}\n`,
  );
});
