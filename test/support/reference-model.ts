import {
  type ClaimCase,
  isSettled,
  isTerminal,
  LIMITS,
  type Owed,
  oldestFirst,
  type Run,
  type Setup,
  type Weather,
} from "./reference-terms.ts";

/**
 * The continuation protocol said again, small, from reference/protocol.md: what must be true after each command, for
 * a service with one host. No storage, no concurrency: whatever runs at an instant has run when a command returns, and
 * a call that hangs is kept with the time at which it is given up. Of several that wait for one slot the oldest change
 * goes first; with 16 slots nothing ever waits.
 */

const SECOND = 1000;
const GRACE_MS = 300_000;
const SWEEP_MS = 3_600_000;
const THIRTY_DAYS = 30 * 86_400_000;

export function createReferenceModel(startMs: number, weather: Weather, runCount: number, setup: Setup) {
  const { workers, keep } = setup;
  const model = {
    now: startMs,
    weather,
    working: false,
    /** When retention looks at ages next, whatever is committed. */
    sweepAt: undefined as number | undefined,
    owed: new Map<number, Owed>(),
    /** What retention dropped since the command began. */
    gone: new Map<number, Owed>(),
    /** Automatic looks that wait for another one to end. */
    looks: [] as Owed[],
    /** Asked for in vain while the channel was down. */
    missed: [] as Owed[],
    runs: Array.from(
      { length: runCount },
      (): Run => ({ issued: false, open: false, over: false, finalized: undefined }),
    ),
    finalizes: 0,
  };

  const all = () => [...model.owed.values()];
  const active = () => all().filter((owed) => !isTerminal(owed));
  const store = (owed: Owed, patch: Partial<Owed>, drops = true) => {
    Object.assign(owed, { deferred: false, early: false, updatedAt: model.now }, patch);
    if (isTerminal(owed) && owed.holdsRef) Object.assign(owed, { holdsRef: false, context: "scrubbed" });
    if (isTerminal(owed)) Object.assign(owed, { due: undefined, hasText: keepsText(owed) });
    owed.trail.push({ ...owed, trail: [] });
    if (drops) retain();
  };

  const isAged = (owed: Owed) => isSettled(owed) && model.now - owed.updatedAt > keep.terminalMaxAgeMs;

  /** What each commit, each opening and each hour of work drops: settled ones and their texts beyond the limits, the oldest first. */
  function retain() {
    const settled = [...model.owed].filter(([, owed]) => isSettled(owed));
    settled.sort(([, a], [, b]) => oldestFirst(b, a));
    settled.forEach(([slot, owed], index) => {
      if (index < keep.terminalMaxRecords && !isAged(owed)) return;
      model.owed.delete(slot);
      model.gone.set(slot, owed);
      owed.trail.push(undefined);
    });
    const texts = settled.map(([, owed]) => owed).filter((owed) => owed.hasText);
    dropTexts(texts.filter((owed) => owed.state === "dead_lettered").slice(keep.deadLetterTextMaxRecords));
    dropTexts(texts.filter((owed) => owed.state !== "dead_lettered").slice(keep.capturedTextMaxRecords));
  }

  function dropTexts(beyond: readonly Owed[]) {
    for (const owed of beyond) {
      owed.hasText = false;
      owed.trail.push({ ...owed, trail: [] });
    }
  }

  const keepsText = (owed: Owed) =>
    owed.hasText &&
    (owed.state === "dead_lettered" || owed.state === "delivery_unknown" || owed.mode === "capture");
  const backoff = (times: number, cap: number) => Math.min(cap, SECOND * 2 ** times);
  const deadLetter = (owed: Owed, error: string) => store(owed, { state: "dead_lettered", error });
  const inFlight = (owed: Owed) =>
    !isTerminal(owed) && (owed.state === "synthesizing" || owed.begun !== undefined);
  const defer = (owed: Owed, error: string) =>
    store(owed, {
      deferrals: owed.deferrals + 1,
      due: model.now + backoff(owed.deferrals, 300_000),
      error,
      deferred: error !== "origin_context_pending",
    });
  const receive = (owed: Owed, receipt: Owed["receipt"]) =>
    store(owed, { state: "delivered", receipt, error: undefined, begun: undefined });
  const confirm = (owed: Owed, proved: boolean) =>
    receive(owed, {
      kind: "delivered",
      recorded: model.weather.history === "ok",
      ...(proved ? { proved } : {}),
    });

  // ---- what the worker does ----

  function giveText(owed: Owed, text: NonNullable<Owed["text"]>, error: string | undefined) {
    if (owed.mode === "capture") {
      Object.assign(owed, { text, hasText: true });
      return receive(owed, { kind: "captured" });
    }
    store(owed, { state: "ready_to_deliver", text, hasText: true, due: model.now, error });
  }

  function blocked(owed: Owed): boolean {
    if (model.weather.support === "not_running") defer(owed, "destination_channel_unavailable");
    if (model.weather.support === "never") deadLetter(owed, "destination_not_allowed");
    return model.weather.support !== "supported";
  }

  function synthesize(owed: Owed) {
    if (owed.context === "pending") return defer(owed, "origin_context_pending");
    if (owed.mode === "silent") return receive(owed, { kind: "silent" });
    if (owed.mode === "notify_if_actionable" && !owed.actionable)
      return receive(owed, { kind: "suppressed" });
    if (owed.context === "abandoned")
      return giveText(owed, "origin_context_unavailable", "origin_context_unavailable");
    if (owed.mode !== "capture" && blocked(owed)) return;
    store(owed, {
      state: "synthesizing",
      syntheses: owed.syntheses + 1,
      error: undefined,
      due: undefined,
    });
    if (model.weather.synthesis === "hang") {
      const ends = Math.min(model.now + LIMITS.synthesisTimeoutMs, owed.deadline);
      owed.call = { kind: "synthesis", ends };
    } else synthesized(owed, model.weather.synthesis);
  }

  function synthesized(owed: Owed, how: Weather["synthesis"]) {
    owed.call = undefined;
    if (how === "ok") giveText(owed, "synthesized", undefined);
    else deadLetter(owed, "synthesis_failed");
  }

  function deliver(owed: Owed) {
    if (blocked(owed)) return;
    store(owed, { posts: owed.posts + 1, begun: model.now, due: undefined });
    if (model.weather.delivery === "hang") {
      owed.call = { kind: "delivery", ends: model.now + LIMITS.deliveryTimeoutMs };
    } else posted(owed, model.weather.delivery);
  }

  function posted(owed: Owed, how: Weather["delivery"]) {
    owed.call = undefined;
    switch (how) {
      case "delivered":
        return confirm(owed, false);
      case "retry":
      case "retry_in_5s": {
        if (owed.posts >= 20) return deadLetter(owed, "delivery_attempts_exhausted");
        const due = model.now + (how === "retry" ? backoff(owed.posts - 1, 3_600_000) : 5 * SECOND);
        return store(owed, { state: "delivery_retry", begun: undefined, due, error: "busy" });
      }
      case "permanent":
        return deadLetter(owed, "channel_not_found");
      default:
        return lose(owed, how === "throw" ? "delivery_threw" : "socket_closed");
    }
  }

  /** The outcome of a post is unknown: the channel is asked at once. */
  function lose(owed: Owed, error: string) {
    store(owed, { state: "delivery_unknown", error });
    consider(owed);
  }

  /** Asks the channel as soon as fewer than `workers` such looks are under way. */
  function consider(owed: Owed) {
    owed.lookAgain = undefined;
    model.looks.push(owed);
    lookOn();
  }

  function lookOn() {
    while (all().filter((other) => other.look?.automatic).length < workers) {
      const next = model.looks.shift();
      if (next === undefined) return;
      look(next, true);
    }
  }

  const absenceCounts = (owed: Owed) => (owed.begun ?? 0) + LIMITS.deliveryTimeoutMs + GRACE_MS;

  function look(owed: Owed, automatic: boolean): string {
    const wasDown = model.weather.support === "not_running";
    if (owed.look !== undefined) {
      if (automatic) looked(owed, wasDown);
      return "resolution_in_progress";
    }
    if (owed.state !== "delivery_unknown") return "not_delivery_unknown";
    const { find } = model.weather;
    if (find === "hang") {
      owed.look = { ends: model.now + LIMITS.deliveryTimeoutMs, automatic, wasDown };
      return "pending";
    }
    let answer = "ok";
    if (find === "found") confirm(owed, true);
    // A call that timed out may still post.
    const ended = owed.error !== "delivery_timeout_outcome_unknown";
    const counts = model.now >= absenceCounts(owed);
    if (find === "absent_exact" ? ended || counts : find === "absent" && counts) {
      answer = absent(owed);
    }
    if (automatic) looked(owed, wasDown);
    return answer;
  }

  function looked(owed: Owed, wasDown: boolean) {
    plan(owed);
    if (wasDown) lookWhenUp(owed);
  }

  function lookWhenUp(owed: Owed) {
    model.missed = model.missed.filter((other) => other !== owed);
    if (owed.state !== "delivery_unknown") return;
    if (model.weather.support === "not_running") model.missed.push(owed);
    else consider(owed);
  }

  function absent(owed: Owed): string {
    if (owed.posts >= 20) deadLetter(owed, "delivery_attempts_exhausted");
    else if (model.now >= owed.deadline) return "continuation_expired";
    else {
      const due = Math.max(model.now, (owed.begun ?? 0) + backoff(owed.posts - 1, 3_600_000));
      store(owed, { state: "ready_to_deliver", begun: undefined, due, error: undefined });
    }
    return "ok";
  }

  function plan(owed: Owed) {
    owed.lookAgain = undefined;
    if (owed.state === "delivery_unknown" && absenceCounts(owed) > model.now) {
      owed.lookAgain = absenceCounts(owed);
    }
  }

  function expire(owed: Owed) {
    if (owed.begun !== undefined)
      store(owed, { state: "delivery_unknown", error: "delivery_outcome_unknown" });
    else store(owed, { state: "expired", error: "deadline_expired" });
  }

  const isDue = (owed: Owed) =>
    ["result_received", "ready_to_deliver", "delivery_retry"].includes(owed.state) &&
    owed.begun === undefined &&
    (owed.due ?? model.now) <= model.now;

  const expireOverdue = () => {
    for (const owed of active()) {
      if (owed.call === undefined && model.now >= owed.deadline) expire(owed);
    }
  };

  const free = () => workers - all().filter((owed) => owed.call !== undefined).length;

  function workOnce(): number {
    expireOverdue();
    const begun: Owed[] = [];
    const candidates = all().filter((owed) => isDue(owed) || owed.early);
    for (const owed of candidates.sort(oldestFirst)) {
      if (begun.length >= free()) break;
      // Announced in vain: its back-off stands.
      if (!isDue(owed) && model.weather.support !== "supported") owed.early = false;
      else begun.push(owed);
    }
    for (const owed of begun) {
      if (owed.state === "result_received") synthesize(owed);
      else deliver(owed);
    }
    return begun.length;
  }

  function workAll() {
    if (model.working) while (workOnce() > 0);
    if (model.working) expireOverdue();
  }

  /** The channel says that it is ready. */
  function announce() {
    // What was put off for the channel need not wait any longer.
    for (const owed of active()) owed.early = owed.deferred && (owed.due ?? 0) > model.now;
    workAll();
    for (const owed of model.missed) lookWhenUp(owed);
  }

  /** Calls and looks that are given up now, and looks that were planned for now. */
  function timeOut(stopping: boolean) {
    for (const owed of all()) {
      const { call } = owed;
      if (call !== undefined && call.ends <= model.now) {
        owed.call = undefined;
        if (call.kind === "delivery") {
          if (stopping) store(owed, { state: "delivery_unknown", error: "delivery_timeout_outcome_unknown" });
          else lose(owed, "delivery_timeout_outcome_unknown");
        } else if (model.now >= owed.deadline) expire(owed);
        else deadLetter(owed, "synthesis_timeout_outcome_unknown");
      }
      if (owed.look !== undefined && owed.look.ends <= model.now) {
        const { automatic, wasDown } = owed.look;
        owed.look = undefined;
        if (automatic && !stopping) looked(owed, wasDown);
        if (!stopping) lookOn();
      }
      if (!stopping && owed.lookAgain !== undefined && owed.lookAgain <= model.now) consider(owed);
    }
  }

  function nextEvent(): number {
    let next = model.sweepAt ?? Number.POSITIVE_INFINITY;
    for (const owed of all()) {
      const times = [owed.call?.ends, owed.look?.ends, owed.lookAgain];
      if (model.working && !isTerminal(owed)) {
        if (owed.call === undefined) times.push(owed.deadline);
        if (owed.begun === undefined) times.push(owed.due);
      }
      for (const time of times) if (time !== undefined && time > model.now) next = Math.min(next, time);
    }
    return next;
  }

  // ---- commands: each says what the caller is answered ----

  function claim(slot: number, wanted: ClaimCase): string {
    const run = wanted.run === undefined ? undefined : model.runs[wanted.run];
    if (run !== undefined && !run.open) return "invalid_claim_capability";
    const first = model.owed.get(slot);
    if (first !== undefined) {
      const same = first.taskHash === wanted.taskHash && first.deadline === wanted.deadline;
      return same ? "replayed" : "claim_conflict";
    }
    if (wanted.deadline <= model.now) return "invalid_deadline";
    if (wanted.deadline > model.now + THIRTY_DAYS) return "deadline_too_far";
    const posts = wanted.mode === "reply" || wanted.mode === "notify_if_actionable";
    if (posts && model.weather.support === "never") return "unsupported_destination";
    if (active().length >= LIMITS.maxActiveRecords) return "active_continuation_limit";
    const beside = active().filter((owed) => owed.origin === wanted.origin).length;
    if (beside >= LIMITS.maxActivePerOrigin) return "active_origin_limit";
    const owed: Owed = {
      ...wanted,
      id: "",
      createdAt: model.now,
      updatedAt: model.now,
      deferred: false,
      early: false,
      state: "claimed",
      context: wanted.run === undefined ? "detached_latest" : "pending",
      holdsRef: false,
      actionable: true,
      hasText: false,
      syntheses: 0,
      posts: 0,
      deferrals: 0,
      trail: [undefined],
    };
    model.owed.set(slot, owed);
    store(owed, {});
    return "ok";
  }

  function submit(owed: Owed, key: string, payload: string, actionable: boolean): string {
    if (owed.result !== undefined) {
      const same = owed.result.key === key && owed.result.payload === payload;
      return same ? owed.state : "result_conflict";
    }
    if (owed.state === "expired") return "continuation_expired";
    if (owed.state !== "claimed") return "result_not_accepted";
    if (model.now >= owed.deadline) {
      expire(owed);
      return "continuation_expired";
    }
    store(owed, { state: "result_received", result: { key, payload }, actionable, due: model.now });
    return "result_received";
  }

  const pendingOf = (index: number) =>
    active().filter((owed) => owed.run === index && owed.context === "pending");

  /** Release, prepare and bind. Undefined when no claim of the run is active. */
  function finalize(index: number): number | undefined {
    const run = model.runs[index] as Run;
    Object.assign(run, { issued: true, open: false });
    if (pendingOf(index).length === 0) return undefined;
    model.finalizes += 1;
    run.finalized = model.finalizes;
    for (const owed of pendingOf(index)) store(owed, { bound: run.finalized, holdsRef: true });
    return run.finalized;
  }

  /** The run committed: its bound claims are pinned, anything else is given up. */
  function commitRun(index: number) {
    const run = model.runs[index] as Run;
    Object.assign(run, { open: false, over: true });
    for (const owed of pendingOf(index)) {
      if (owed.bound === undefined || owed.bound !== run.finalized) continue;
      const error = owed.error === "origin_context_pending" ? undefined : owed.error;
      // An activation drops nothing.
      store(owed, { context: "pinned", due: undefined, error }, false);
    }
    abandonRun(index);
  }

  function abandonRun(index: number) {
    Object.assign(model.runs[index] as Run, { open: false, over: true });
    for (const owed of pendingOf(index)) {
      const due = owed.state === "result_received" ? model.now : owed.due;
      store(owed, { context: "abandoned", holdsRef: false, error: "origin_context_unavailable", due });
    }
  }

  function retry(owed: Owed, allowUnknown: boolean): string {
    if (owed.look !== undefined) return "resolution_in_progress";
    if (owed.state === "synthesizing") return "continuation_in_flight";
    if (!["delivery_retry", "dead_lettered", "delivery_unknown"].includes(owed.state)) return "not_retryable";
    if (inFlight(owed)) return "continuation_in_flight";
    const doubtful = owed.state === "delivery_unknown" || owed.error === "operator_dead_lettered";
    if (doubtful && !allowUnknown) return "delivery_unknown";
    if (!owed.hasText) return "synthesis_not_retryable";
    if (model.now >= owed.deadline) return "continuation_expired";
    const posts = owed.error === "delivery_attempts_exhausted" ? 0 : owed.posts;
    store(owed, {
      state: "ready_to_deliver",
      begun: undefined,
      due: model.now,
      error: undefined,
      posts,
    });
    return "ok";
  }

  function cancel(owed: Owed): string {
    if (owed.state === "cancelled") return "ok";
    if (isTerminal(owed)) return "already_terminal";
    if (inFlight(owed)) return "continuation_in_flight";
    store(owed, { state: "cancelled", error: "cancelled_by_operator" });
    return "ok";
  }

  function resolve(owed: Owed, kind: "delivered" | "not_delivered" | "dead_lettered"): string {
    if (owed.look !== undefined) return "resolution_in_progress";
    if (owed.state !== "delivery_unknown") return "not_delivery_unknown";
    if (kind === "delivered") confirm(owed, false);
    if (kind === "dead_lettered") deadLetter(owed, "operator_dead_lettered");
    if (kind === "not_delivered") {
      if (model.now >= owed.deadline) return "continuation_expired";
      store(owed, { state: "ready_to_deliver", begun: undefined, due: model.now, error: undefined });
    }
    return "ok";
  }

  return Object.assign(model, {
    all,
    active,
    isDue,
    isTerminal,
    workOnce,
    workAll,
    announce,
    isAged,
    claim,
    submit,
    finalize,
    commitRun,
    abandonRun,
    retry,
    cancel,
    resolve,
    prove: (owed: Owed) => look(owed, false),

    beginCommand() {
      model.gone.clear();
      for (const owed of all()) owed.trail = [{ ...owed, trail: [] }];
    },

    /** The hung call of a record is answered after all. */
    answer(owed: Owed, synthesis: Weather["synthesis"], delivery: Weather["delivery"]) {
      if (owed.call?.kind === "synthesis") synthesized(owed, synthesis);
      else if (owed.call?.kind === "delivery") posted(owed, delivery);
    },

    /** Time goes on. While the host stops, only what runs already ends. */
    advance(target: number, stopping = false) {
      if (stopping) model.sweepAt = undefined;
      for (;;) {
        const next = nextEvent();
        if (next > target) break;
        model.now = next;
        if (next === model.sweepAt) {
          retain();
          model.sweepAt = next + SWEEP_MS;
        }
        timeOut(stopping);
        if (!stopping) workAll();
      }
      model.now = target;
    },

    /** The start of the worker: what a dead process left half done has an unknown outcome. */
    start() {
      if (model.working) {
        return workAll();
      }
      for (const owed of active()) {
        if (owed.call !== undefined) continue;
        if (owed.state === "synthesizing") deadLetter(owed, "synthesis_outcome_unknown");
        else if (owed.begun !== undefined)
          store(owed, { state: "delivery_unknown", error: "delivery_outcome_unknown" });
      }
      const unknown = all().filter((owed) => owed.state === "delivery_unknown");
      unknown.sort((a, b) => a.createdAt - b.createdAt || (a.id < b.id ? -1 : 1));
      for (const owed of unknown) consider(owed);
      model.working = true;
      model.sweepAt = model.now + SWEEP_MS;
      workAll();
    },

    /** Nothing in memory survives, and the next process opens the store. */
    die() {
      model.working = false;
      model.sweepAt = undefined;
      model.looks = [];
      model.missed = [];
      for (const run of model.runs) Object.assign(run, { issued: false, open: false });
      for (const owed of all())
        Object.assign(owed, { early: false, call: undefined, look: undefined, lookAgain: undefined });
      retain();
    },
  });
}

export type ReferenceModel = ReturnType<typeof createReferenceModel>;
