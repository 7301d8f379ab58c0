import { transition } from "../../core/continuation-transition.ts";
import type { RetentionLimits } from "../../core/limits.ts";
import { type ContinuationRecord, isTerminal } from "../../core/record.ts";
import type { Opened, Violation } from "./image-check.ts";
import { type Ledger, type Records, recordsKey, retained } from "./ledger.ts";
import type { Promised } from "./recorder.ts";

/** Whether the records that a crashed disk opens to are explained by what was promised before the cut. */
export interface Judge {
  judge(opened: Opened, promised: Promised, nowMs: number): Violation | undefined;
}

export function createJudge(limits: RetentionLimits): Judge {
  const retainedKeys = new WeakMap<Records, Map<number, string>>();

  function retainedKey(state: Records, nowMs: number): string {
    const times = retainedKeys.get(state) ?? new Map<number, string>();
    retainedKeys.set(state, times);
    let key = times.get(nowMs);
    if (key === undefined) {
      key = recordsKey(retained(state, limits, nowMs));
      times.set(nowMs, key);
    }
    return key;
  }

  /** The number of the newest state, at most `top`, that gives these records; undefined for none. */
  function explain(ledger: Ledger, opened: Opened, promised: Promised, nowMs: number): number | undefined {
    const found = recordsKey(opened.older ?? opened.own);
    for (let number = promised.top; number >= 0; number -= 1) {
      const state = ledger.states[number];
      if (state === undefined) continue;
      if (opened.older !== undefined && recordsKey(state) === found) return number;
      if ((opened.older === undefined || promised.recovering) && retainedKey(state, nowMs) === found) {
        return number;
      }
    }
    return undefined;
  }

  return {
    judge(opened, promised, nowMs) {
      const { ledger, floor, secret } = promised;
      if (secret !== undefined && !Buffer.from(secret).equals(opened.secret)) {
        return { invariant: "I1 acknowledged", message: "the secret that tokens were made with is lost" };
      }
      const number = explain(ledger, opened, promised, nowMs);
      if (number === undefined) {
        const state = ledger.states[floor];
        return {
          invariant: "I2 prefix",
          message: `no order of the changes explains the records (since the last acknowledgement${lost(state, opened.older ?? opened.own)})`,
        };
      }
      if (number < floor) {
        return {
          invariant: "I1 acknowledged",
          message: `what was acknowledged did not come back${lost(ledger.states[floor], opened.older ?? opened.own)}`,
        };
      }
      return onceViolation(ledger.states[floor], opened.own, nowMs);
    },
  };
}

/** What a person has to look at: which continuations are not as they were acknowledged. */
function lost(promised: Records | undefined, found: Records): string {
  if (promised === undefined) return "";
  const parts: string[] = [];
  for (const id of new Set([...promised.keys(), ...found.keys()])) {
    const before = promised.get(id);
    const after = found.get(id);
    if (JSON.stringify(before) === JSON.stringify(after)) continue;
    const [was, is] = [before?.state ?? "absent", after?.state ?? "absent"];
    parts.push(was === is ? `${id} is another version of ${was}` : `${id} was ${was} and is ${is}`);
  }
  return parts.length === 0 ? "" : `: ${parts.join(", ")}`;
}

/** I3: what durably began before the cut is seen to have begun, and the recovery of a restart does not begin it again. */
function onceViolation(promised: Records | undefined, found: Records, nowMs: number): Violation | undefined {
  for (const [id, before] of promised ?? []) {
    const after = found.get(id);
    if (after === undefined || isTerminal(before)) continue;
    const recovered = afterRecovery(after, nowMs);
    const synthesis = before.state === "synthesizing";
    const post = before.deliveryStartedAt !== undefined;
    const asksAgain =
      synthesis &&
      (after.synthesisAttempts < before.synthesisAttempts ||
        recovered.state === "claimed" ||
        recovered.state === "result_received");
    const postsAgain =
      post &&
      (after.deliveryAttempts < before.deliveryAttempts ||
        (JSON.stringify(after) === JSON.stringify(before) && recovered.state !== "delivery_unknown"));
    if (asksAgain || postsAgain) {
      return {
        invariant: "I3 at most once",
        message: `the ${asksAgain ? "synthesis" : "post"} of ${id} had begun and would begin again`,
      };
    }
  }
  return undefined;
}

function afterRecovery(record: ContinuationRecord, nowMs: number): ContinuationRecord {
  const decision = transition(record, { kind: "recover" }, nowMs);
  return decision.kind === "changed" ? decision.record : record;
}
