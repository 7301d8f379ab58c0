import { ok, type Result, refuse } from "../../src/core/errors.ts";
import type { JsonValue } from "../../src/core/json.ts";
import type { Model, ModelRequest, ModelResult } from "../../src/core/ports/model.ts";
import type { RunClaimsIssuer, RunOrigin } from "../../src/core/ports/run-claims.ts";
import type { BoundTool, ToolHost, ToolOutcome, ToolSessionRequest } from "../../src/core/ports/tools.ts";
import type { TurnStore } from "../../src/core/ports/turns.ts";
import { type OriginSnapshot, snapshotDigest, snapshotJson } from "../../src/core/snapshot.ts";

/** A promise that a test opens by hand. */
export interface Gate {
  readonly opened: Promise<void>;
  open(): void;
}

export function createGate(): Gate {
  let open = () => {};
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { opened, open };
}

/** What happened, in order; shared by the fakes of one test. */
export type Trace = string[];

export function says(text: string): ModelResult {
  return { text, toolCalls: [], stopReason: "stop" };
}

export function calls(
  ...names: readonly (string | { callId: string; name: string; input?: JsonValue })[]
): ModelResult {
  const toolCalls = names.map((call, at) =>
    typeof call === "string" ? { callId: `c${at}`, name: call, input: {} } : { input: {}, ...call },
  );
  return { text: "", toolCalls, stopReason: "tool_calls" };
}

type Reply = ModelResult | ((request: ModelRequest) => ModelResult | Promise<ModelResult>);

/** Answers by script, one entry per call, the last one again and again. Keeps every request. */
export function createScriptedModel(
  script: readonly Reply[],
  trace: Trace = [],
): Model & { requests: ModelRequest[] } {
  const requests: ModelRequest[] = [];
  return {
    name: "fake:model",
    requests,
    async call(request) {
      const reply = script[Math.min(requests.length, script.length - 1)];
      requests.push(request);
      trace.push("model");
      if (reply === undefined) throw new Error("the script is empty");
      const result = typeof reply === "function" ? await reply(request) : reply;
      for (const word of result.text.split(/(?<= )/)) if (word !== "") request.onText?.(word);
      return result;
    },
  };
}

export interface FakeTools extends ToolHost {
  readonly opened: ToolSessionRequest[];
  readonly called: { name: string; input: JsonValue }[];
}

type FakeTool = (signal: AbortSignal, input: JsonValue) => ToolOutcome | Promise<ToolOutcome>;

/** Tools by name; a name with a function runs it, else the tool answers `<name> done`. */
export function createFakeTools(
  tools: Record<string, FakeTool | undefined> = {},
  trace: Trace = [],
  hooks: { open?: () => Promise<void>; close?: () => Promise<void>; readOnly?: readonly string[] } = {},
): FakeTools {
  const opened: ToolSessionRequest[] = [];
  const called: FakeTools["called"] = [];
  const bound = Object.keys(tools).map(
    (name): BoundTool => ({
      name,
      description: `does ${name}`,
      inputSchema: {},
      server: "work",
      tool: name,
      digest: `digest of ${name}`,
      readOnly: hooks.readOnly?.includes(name) === true,
    }),
  );
  return {
    opened,
    called,
    async open(request) {
      trace.push("tools.open");
      opened.push(request);
      await hooks.open?.();
      return {
        tools: bound,
        warnings: [],
        async call(name, input, signal) {
          trace.push(`tool ${name}`);
          called.push({ name, input });
          return (await tools[name]?.(signal, input)) ?? { text: `${name} done`, isError: false };
        },
        async close() {
          trace.push("tools.close");
          await hooks.close?.();
        },
      };
    },
    rotate() {},
    async close() {},
  };
}

export interface FakeClaims extends RunClaimsIssuer {
  readonly origins: RunOrigin[];
  readonly snapshots: OriginSnapshot[];
  /** Whether issued runs have active claims; set it before the turn settles. */
  active: boolean;
}

/** Claims that record each call in the trace and fail where told. */
export function createFakeClaims(
  trace: Trace = [],
  faults: {
    issue?: () => void;
    release?: () => Promise<void>;
    finalize?: () => Promise<void>;
    refusal?: "snapshot_quota";
    activate?: () => void;
    abandon?: () => void;
  } = {},
): FakeClaims {
  const origins: RunOrigin[] = [];
  const snapshots: OriginSnapshot[] = [];
  const fake: FakeClaims = {
    origins,
    snapshots,
    active: false,
    issue(origin) {
      trace.push("issue");
      faults.issue?.();
      origins.push(origin);
      let released = false;
      return {
        capabilities: new Map([
          [
            "work",
            { url: "http://127.0.0.1:1/claim", token: "secret-token", fingerprint: "f", mode: "reply" },
          ],
        ]),
        async release() {
          if (!released) trace.push("release");
          released = true;
          await faults.release?.();
        },
        hasActiveClaims: () => fake.active,
        async finalize(snapshot): Promise<Result<{ snapshotDigest: string; historyBoundary: string }>> {
          trace.push("finalize");
          await faults.finalize?.();
          if (faults.refusal !== undefined) return refuse(faults.refusal, "no room");
          snapshots.push(snapshot);
          return ok({
            snapshotDigest: snapshotDigest(snapshotJson(snapshot)),
            historyBoundary: snapshot.historyBoundary,
          });
        },
        async activate() {
          trace.push("activate");
          faults.activate?.();
        },
        async abandon() {
          trace.push("abandon");
          faults.abandon?.();
        },
      };
    },
  };
  return fake;
}

type Method = keyof TurnStore;

/** The same ledger, with each named method's call in the trace; a fault runs before the real method. */
export function traceStore(
  store: TurnStore,
  trace: Trace,
  methods: readonly Method[],
  faults: Partial<Record<Method, () => void>> = {},
): TurnStore {
  return new Proxy(store, {
    get(target, name: Method) {
      const method = target[name] as (...args: unknown[]) => unknown;
      if (!methods.includes(name) && faults[name] === undefined) return method;
      return async (...args: unknown[]) => {
        trace.push(name);
        faults[name]?.();
        return method(...args);
      };
    },
  });
}
