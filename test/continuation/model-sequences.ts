import fc from "fast-check";
import type { Setup, Weather } from "../support/reference-terms.ts";
import type { Survivors } from "./model-system.ts";

/** Command sequences as data, and their generation. */

/** Slots are claims with a fixed identity: three of one run, one of another, three of a detached service. */
export const SLOTS = [
  { run: 0, mode: "reply", minutes: 20 },
  { run: 0, mode: "reply", minutes: 2 },
  { run: 0, mode: "reply", minutes: 60 },
  { run: 1, mode: "reply", minutes: 10 },
  { route: "notify", minutes: 15 },
  { route: "capture", minutes: 15 },
  { route: "silent", minutes: 5 },
] as const;
export const RUNS = 2;

export type Step = { cut?: { after: number; survival: Survivors; start: boolean } } & (
  | { do: "claim"; slot: number; as: "same" | "other_hash" | "other_deadline" | "past" | "too_far" }
  | { do: "submit"; slot: number; as: "first" | "other_key" | "other_payload" | "not_actionable" }
  | { do: "settle" | "finalize" | "commit" | "abandon"; run: number }
  | { do: "weather"; change: Partial<Weather> }
  | { do: "answer"; slot: number; synthesis: Weather["synthesis"]; delivery: Weather["delivery"] }
  | { do: "wait"; ms: number }
  | { do: "wait_for_deadline"; slot: number }
  | { do: "retry"; slot: number; allowUnknown: boolean }
  | { do: "resolve"; slot: number; kind: "delivered" | "not_delivered" | "dead_lettered" }
  | { do: "cancel" | "prove"; slot: number }
  | { do: "work" | "start" | "announce" }
  | { do: "restart"; start: boolean }
  | { do: "kill"; start: boolean; survival: Survivors; cutWhileOpening?: number }
);

export interface Sequence {
  readonly setup: Setup;
  readonly weather: Weather;
  readonly steps: readonly Step[];
}

/** Most commands are about the slot that the sequence began with (`HERE`), so that it gets somewhere. */
const HERE = -1;
const YEAR_MS = 365 * 86_400_000;
const KEEP_ALL: Setup["keep"] = {
  terminalMaxRecords: 50_000,
  terminalMaxAgeMs: YEAR_MS,
  capturedTextMaxRecords: 1_000,
  deadLetterTextMaxRecords: 1_000,
};
const slot = fc.oneof(
  { weight: 3, arbitrary: fc.constant(HERE) },
  { weight: 1, arbitrary: fc.nat(SLOTS.length - 1) },
);
const run = fc.oneof(fc.constant(HERE), fc.nat(RUNS - 1));
const survival: fc.Arbitrary<Survivors> = fc.oneof(
  fc.constant("all" as const),
  fc.constant("none" as const),
  fc.nat(0xffff),
);
const from = <const T>(...values: readonly T[]) => fc.constantFrom(...values);
const SYNTHESIS = from("ok", "ok", "ok", "hang", "empty", "throw");
const DELIVERY = from("delivered", "unknown", "hang", "retry", "throw", "retry_in_5s", "permanent");
const FIND = from("unknown", "found", "absent_exact", "absent", "throw", "hang");
const SUPPORT = from("supported", "supported", "supported", "not_running", "never");
const HISTORY = from("ok", "ok", "fails");
const weather: fc.Arbitrary<Weather> = fc.record({
  synthesis: SYNTHESIS,
  delivery: DELIVERY,
  find: FIND,
  support: from("supported", "supported", "supported", "supported", "not_running"),
  history: HISTORY,
});
const start = from(true, true, true, false);
const few = fc.nat(2);
const setup: fc.Arbitrary<Setup> = fc.record({
  workers: from(16, 16, 1),
  keep: fc.oneof(
    { weight: 2, arbitrary: fc.constant(KEEP_ALL) },
    {
      weight: 1,
      arbitrary: fc.record({
        terminalMaxRecords: few,
        terminalMaxAgeMs: from(YEAR_MS, YEAR_MS, 600_000),
        capturedTextMaxRecords: few,
        deadLetterTextMaxRecords: few,
      }),
    },
  ),
});
const step = (weight: number, shape: { [key: string]: fc.Arbitrary<unknown> }) => ({
  weight,
  arbitrary: fc.record(shape) as unknown as fc.Arbitrary<Step>,
});
const does = (what: string) => fc.constant(what);

const plain: fc.Arbitrary<Step> = fc.oneof(
  step(10, {
    do: does("claim"),
    slot,
    as: from("same", "same", "other_hash", "other_deadline", "past", "too_far"),
  }),
  step(16, {
    do: does("submit"),
    slot,
    as: from("first", "first", "first", "first", "other_key", "other_payload", "not_actionable"),
  }),
  step(10, { do: does("settle"), run }),
  step(4, { do: does("finalize"), run }),
  step(3, { do: does("commit"), run }),
  step(2, { do: does("abandon"), run }),
  step(8, {
    do: does("weather"),
    change: fc.oneof(
      SYNTHESIS.map((synthesis) => ({ synthesis })),
      DELIVERY.map((delivery) => ({ delivery })),
      FIND.map((find) => ({ find })),
      SUPPORT.map((support) => ({ support })),
      HISTORY.map((history) => ({ history })),
    ),
  }),
  step(5, {
    do: does("answer"),
    slot,
    synthesis: from("ok", "empty", "throw"),
    delivery: from("delivered", "retry", "unknown", "permanent", "throw"),
  }),
  step(8, { do: does("wait"), ms: from(1, 1000, 5000, 61_000, 130_000, 301_000, 430_000, 1_200_000) }),
  step(2, { do: does("wait_for_deadline"), slot }),
  step(9, { do: does("retry"), slot, allowUnknown: fc.boolean() }),
  step(7, { do: does("resolve"), slot, kind: from("delivered", "not_delivered", "dead_lettered") }),
  step(4, { do: does("cancel"), slot }),
  step(3, { do: does("prove"), slot }),
  step(3, { do: does("work") }),
  step(3, { do: does("start") }),
  step(4, { do: does("announce") }),
  step(4, { do: does("restart"), start }),
  step(4, { do: does("kill"), start, survival }),
  step(1, { do: does("kill"), start, survival, cutWhileOpening: fc.integer({ min: 1, max: 20 }) }),
);

const anyStep: fc.Arbitrary<Step> = fc.oneof(
  { weight: 5, arbitrary: plain },
  {
    weight: 1,
    arbitrary: fc.tuple(plain, fc.integer({ min: 1, max: 16 }), survival, start).map(
      ([made, after, survives, working]): Step => ({
        ...made,
        cut: { after, survival: survives, start: working },
      }),
    ),
  },
);

/** How far the first claim is when the random commands begin. */
const preludes: fc.Arbitrary<readonly Step[]> = from(
  [],
  [{ do: "settle", run: HERE }],
  [{ do: "submit", slot: HERE, as: "first" }],
  [
    { do: "settle", run: HERE },
    { do: "submit", slot: HERE, as: "first" },
  ],
  [
    { do: "submit", slot: HERE, as: "first" },
    { do: "settle", run: HERE },
  ],
  [
    { do: "abandon", run: HERE },
    { do: "submit", slot: HERE, as: "first" },
  ],
);

/** Four claims whose results come one after the other, so that they crowd at the slots. */
const crowd: fc.Arbitrary<readonly Step[]> = fc
  .tuple(
    fc.shuffledSubarray([0, 3, 4, 5], { minLength: 3 }),
    fc.array(from(0, 0, 1, 1000, 61_000), { minLength: 4, maxLength: 4 }),
    fc.constantFrom<Weather["synthesis"]>("hang", "hang", "ok"),
  )
  .map(([slots, waits, synthesis]) => [
    { do: "weather", change: { synthesis } },
    ...slots.map((it): Step => ({ do: "claim", slot: it, as: "same" })),
    { do: "settle", run: 0 },
    { do: "settle", run: 1 },
    ...slots.flatMap((it, index): Step[] => [
      { do: "submit", slot: it, as: "first" },
      { do: "wait", ms: waits[index] ?? 0 },
    ]),
  ]);

export const sequences: fc.Arbitrary<Sequence> = fc
  .record({
    weather,
    setup,
    first: fc.nat(SLOTS.length - 1),
    prelude: fc.oneof({ weight: 14, arbitrary: preludes }, { weight: 1, arbitrary: crowd }),
    steps: fc.array(anyStep, { minLength: 1, maxLength: 10, size: "max" }),
  })
  .map(({ weather: initial, setup: given, first, prelude, steps }) => {
    const firstRun = SLOTS[first];
    const here = { slot: first, run: firstRun !== undefined && "run" in firstRun ? firstRun.run : 0 };
    const placed = (it: Step): Step => ({
      ...it,
      ...("slot" in it && it.slot === HERE ? { slot: here.slot } : {}),
      ...("run" in it && it.run === HERE ? { run: here.run } : {}),
    });
    const begin: Step[] = [{ do: "start" }, { do: "claim", slot: first, as: "same" }];
    return { weather: initial, setup: given, steps: [...begin, ...prelude, ...steps].map(placed) };
  });
