import { afterEach, describe, expect, test } from "bun:test";
import { ModelError } from "../../src/core/errors.ts";
import type { Model, ModelRequest, ModelResult } from "../../src/core/ports/model.ts";
import { modelFailure } from "../../src/model/failures.ts";
import { type Candidate, createFallbackModel } from "../../src/model/fallbacks.ts";
import { createFakeClock, type FakeClock } from "../support/fake-clock.ts";
import { says } from "../support/harness-fakes.ts";
import { failure, modelAt, NAMES, recordingLogger, request, WIRE } from "../support/model-rig.ts";
import { startWireServer, type WireServer } from "../support/model-wire.ts";

let server: WireServer | undefined;
afterEach(async () => {
  await server?.stop();
  server = undefined;
});

type Step = ModelResult | Error | ((request: ModelRequest) => ModelResult);

/** Candidates that follow their scripts, the order in which they are asked, and a clock that runs when one waits. */
function line(...scripts: [string, number, ...Step[]][]) {
  const asked: string[] = [];
  const waits: number[] = [];
  const clock = createFakeClock();
  const fake = (name: string, attempts: number, steps: Step[]): Candidate => {
    let at = 0;
    const model: Model = {
      name,
      async call(made) {
        asked.push(name);
        made.signal.throwIfAborted();
        const step = steps[Math.min(at++, steps.length - 1)];
        if (step instanceof Error) throw step;
        if (step === undefined) throw new Error("no script");
        return typeof step === "function" ? step(made) : step;
      },
    };
    return { model, attempts };
  };
  const [first, ...rest] = scripts.map(([name, attempts, ...steps]) => fake(name, attempts, steps));
  if (first === undefined) throw new Error("no candidates");
  const logger = recordingLogger();
  const model = createFallbackModel({
    candidates: [first, ...rest],
    backoff: { backoffMs: 1_000, maxBackoffMs: 15_000 },
    clock: { now: clock.now, timer: runAtOnce(clock, waits) },
    logger,
  });
  return { model, asked, waits, logger };
}

function runAtOnce(clock: FakeClock, waits: number[]): FakeClock["timer"] {
  return (ms, fire) => {
    waits.push(ms);
    const cancel = clock.timer(ms, fire);
    queueMicrotask(() => clock.advance(ms));
    return cancel;
  };
}

const limited = (retryAfterMs?: number) => modelFailure("rate_limited", "a:m", "HTTP 429", { retryAfterMs });
const broken = modelFailure("server_fault", "a:m", "HTTP 503");
const refused = modelFailure("bad_key", "a:m", "HTTP 401");
const unreadable = modelFailure("unreadable", "a:m");

describe("retries", () => {
  test("429 and then an answer: asked twice, with no notice, because it is the same model", async () => {
    const { model, asked, waits } = line(["a:m", 2, limited(), says("ok")], ["b:m", 1, says("no")]);
    const result = await model.call(request());
    expect(asked).toEqual(["a:m", "a:m"]);
    expect(waits).toEqual([1_000]);
    expect(result).toMatchObject({ text: "ok", answeredBy: "a:m" });
    expect(result.notices).toBeUndefined();
  });

  test("the wait doubles, honours retry-after, and never passes the longest wait", async () => {
    const { model, waits } = line([
      "a:m",
      7,
      limited(),
      limited(),
      limited(3_000),
      limited(9_000),
      limited(15_000),
      limited(),
      says("ok"),
    ]);
    await model.call(request());
    expect(waits).toEqual([1_000, 2_000, 4_000, 9_000, 15_000, 15_000]);
  });

  test("a provider that asks for more than the longest wait is not asked again, the next model is", async () => {
    const { model, asked, waits } = line(["a:m", 5, limited(15_001), says("no")], ["b:m", 1, says("ok")]);
    expect((await model.call(request())).answeredBy).toBe("b:m");
    expect(asked).toEqual(["a:m", "b:m"]);
    expect(waits).toEqual([]);
    const alone = line(["a:m", 5, limited(99_000), says("no")]);
    expect((await failure(alone.model.call(request()))).retryAfterMs).toBe(99_000);
    expect(alone.asked).toEqual(["a:m"]);
  });

  test("attempts are bounded, and the last failure is the one that is told", async () => {
    const { model, asked } = line(["a:m", 3, limited(), broken, broken, says("too late")]);
    expect(await failure(model.call(request()))).toBe(broken);
    expect(asked).toHaveLength(3);
  });

  test("what no repetition mends is not repeated on the same model", async () => {
    for (const error of [refused, unreadable]) {
      const { model, asked } = line(["a:m", 5, error, says("no")]);
      expect(await failure(model.call(request()))).toBe(error);
      expect(asked).toEqual(["a:m"]);
    }
  });

  test("nothing is repeated once a text was streamed", async () => {
    const partly = (made: ModelRequest): ModelResult => {
      made.onText?.("Half");
      throw broken;
    };
    const heard: string[] = [];
    const { model, asked } = line(["a:m", 5, partly], ["b:m", 1, says("no")]);
    expect(await failure(model.call(request({ onText: (text) => heard.push(text) })))).toBe(broken);
    expect(asked).toEqual(["a:m"]);
    expect(heard).toEqual(["Half"]);
  });

  test("a mistake in the program is neither repeated nor given to another model", async () => {
    const { model, asked } = line(["a:m", 5, new TypeError("x is not a function")], ["b:m", 1, says("no")]);
    await expect(model.call(request())).rejects.toThrow(TypeError);
    expect(asked).toEqual(["a:m"]);
  });

  test("a cancel ends the wait, and nothing is sent after it", async () => {
    const abort = new AbortController();
    const clock = createFakeClock();
    let asked = 0;
    const busy: Model = {
      name: "a:m",
      async call({ signal }) {
        asked += 1;
        throw signal.aborted ? modelFailure("aborted", "a:m") : limited();
      },
    };
    const model = createFallbackModel({
      candidates: [{ model: busy, attempts: 3 }],
      backoff: { backoffMs: 1_000, maxBackoffMs: 15_000 },
      clock: {
        now: clock.now,
        timer(ms, fire) {
          queueMicrotask(() => abort.abort(new Error("cancelled")));
          return clock.timer(ms, fire);
        },
      },
      logger: recordingLogger(),
    });
    expect((await failure(model.call(request({ signal: abort.signal })))).message).toContain("aborted");
    expect(asked).toBe(2);
    expect(clock.pending()).toBe(0);
  });
});

describe("fallbacks", () => {
  test("are asked in order with their own attempts, and the answer says who gave it and why", async () => {
    const { model, asked } = line(["a:m", 2, broken], ["b:m", 1, refused], ["c:m", 2, limited(), says("ok")]);
    const result = await model.call(request());
    expect(asked).toEqual(["a:m", "a:m", "b:m", "c:m", "c:m"]);
    expect(result.answeredBy).toBe("c:m");
    expect(result.notices).toEqual(["Answered by c:m. a:m: the provider has a fault at present (HTTP 503)."]);
  });

  test("each failure is in the log with its reason, also when another model answers", async () => {
    const { model, logger } = line(["a:m", 1, refused], ["b:m", 1, says("ok")]);
    await model.call(request());
    expect(logger.lines).toEqual([
      {
        message: "a model call failed",
        fields: { model: "a:m", attempt: 1, code: "model_rejected", reason: refused.message },
      },
    ]);
  });

  test("a failed attempt that may have cost something leaves the usage incomplete", async () => {
    const answer = { ...says("ok"), usageComplete: true };
    const doubtful = line(["a:m", 2, broken, answer]);
    expect((await doubtful.model.call(request())).usageComplete).toBe(false);
    const free = line(["a:m", 2, limited(), answer]);
    expect((await free.model.call(request())).usageComplete).toBe(true);
  });

  test("the model that answered before in the turn is asked first, the others after it", async () => {
    const { model, asked } = line(["a:m", 1, broken], ["b:m", 1, broken], ["c:m", 1, broken]);
    await failure(model.call(request({ startWith: "b:m" })));
    expect(asked).toEqual(["b:m", "c:m", "a:m"]);
    const same = line(["a:m", 1, broken], ["b:m", 1, says("ok")]);
    expect((await same.model.call(request({ startWith: "b:m" }))).notices).toBeUndefined();
    expect(same.asked).toEqual(["b:m"]);
  });
});

describe("a request that must run at most once", () => {
  const once = () => request({ atMostOnce: true });

  test("is repeated, and given to another model, while it is proved that no model ran", async () => {
    const unreachable = modelFailure("unreachable", "a:m", "ECONNREFUSED");
    const { model, asked } = line(["a:m", 3, limited(), unreachable, refused], ["b:m", 1, says("ok")]);
    expect((await model.call(once())).answeredBy).toBe("b:m");
    expect(asked).toEqual(["a:m", "a:m", "a:m", "b:m"]);
  });

  test.each([
    "server_fault",
    "overloaded",
    "provider_timeout",
    "network",
    "broken_off",
    "silent",
    "too_slow",
    "unreadable",
    "failed",
    "too_long",
  ] as const)("is over after a failure that proves nothing: %s", async (kind) => {
    const doubtful = modelFailure(kind, "a:m");
    const { model, asked } = line(["a:m", 5, doubtful, says("no")], ["b:m", 1, says("no")]);
    expect(await failure(model.call(once()))).toBe(doubtful);
    expect(asked).toEqual(["a:m"]);
  });
});

describe("over the wire", () => {
  const busy = { status: 429, body: '{"error":{"type":"rate_limit_error","message":"slow down"}}' };

  test("429 with a date to come back, then success", async () => {
    const clock = createFakeClock();
    const until = new Date(clock.now() + 5_000).toUTCString();
    server = startWireServer(
      { ...busy, headers: { "retry-after": until } },
      { events: WIRE.anthropic.text(["ok"]), after: "end" },
    );
    const waits: number[] = [];
    const retrying = modelAt(server.url, "anthropic", {
      attempts: 2,
      clock: {
        now: clock.now,
        timer: (ms, fire) => {
          if (ms > 60_000) return clock.timer(ms, fire);
          return runAtOnce(clock, waits)(ms, fire);
        },
      },
    });
    expect((await retrying.call(request())).text).toBe("ok");
    expect(server.requests).toHaveLength(2);
    expect(waits).toEqual([5_000]);
  });

  test("a refused connection proves that nothing ran; a connection that breaks after the request does not", async () => {
    server = startWireServer({ events: [], after: "break" });
    const { url } = server;
    expect((await failure(modelAt(url, "compatible").call(request()))).notRun).toBe(false);
    await server.stop();
    const gone = await failure(modelAt(url, "compatible").call(request()));
    expect(gone).toMatchObject({ code: "model_unavailable", notRun: true });
  });

  test("an overload inside a stream that had begun proves nothing", async () => {
    const events = [
      'event: error\ndata: {"type":"error","error":{"type":"rate_limit_error","message":"x"}}\n\n',
    ];
    const [start = ""] = WIRE.anthropic.text(["x"]);
    server = startWireServer({ events: [start, ...events], after: "end" });
    const error = await failure(modelAt(server.url, "anthropic").call(request()));
    expect(error).toMatchObject({ code: "model_unavailable", notRun: false });
  });

  test("a key that is refused goes on to the next model, of another provider", async () => {
    server = startWireServer(
      { status: 401, body: "{}" },
      { events: WIRE.compatible.text(["from the box"]), after: "end" },
    );
    const model = modelAt(server.url, "anthropic", { fallbacks: [{ name: NAMES.compatible }] });
    const result = await model.call(request());
    expect(result).toMatchObject({ text: "from the box", answeredBy: NAMES.compatible });
    expect(result.notices?.[0]).toContain("refused the API key (HTTP 401)");
    expect(server.requests.map((each) => each.path)).toEqual(["/v1/messages", "/v1/chat/completions"]);
  });
});

test("a fallback without its key is told at the start, not when it is needed", () => {
  const make = () => modelAt("http://127.0.0.1:9", "compatible", { fallbacks: [{ name: "nowhere:m" }] });
  expect(make).toThrow(ModelError);
});
