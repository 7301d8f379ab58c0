import { sha256Hex } from "../../core/digest.ts";
import { ok, type Result, refuse } from "../../core/errors.ts";
import { canonicalJson, type JsonValue } from "../../core/json.ts";
import type { Clock } from "../../core/ports/platform.ts";
import { type ResultAnswer, resultAnswerSchema } from "../../core/wire.ts";
import { type Pause, sendJson } from "./send.ts";
import type { Work, WorkFiles } from "./work-files.ts";

/** With doubling pauses this spans a restart of the host: about 16 s. */
const SUBMIT_ATTEMPTS = 8;

export interface ResultTarget {
  readonly resultUrl: string;
  readonly token: string;
}

/**
 * Submits one immutable result. Safe to repeat: the same key and payload are accepted again, and transient failures
 * are retried here. A refusal such as 409 or 410 is final.
 */
export async function submitResult(
  target: ResultTarget,
  result: { readonly idempotencyKey: string; readonly payload: JsonValue },
  pause: Pause,
): Promise<Result<ResultAnswer>> {
  const { idempotencyKey, payload } = result;
  const sent = await sendJson(
    {
      method: "PUT",
      url: target.resultUrl,
      token: target.token,
      body: JSON.stringify({ idempotencyKey, payloadHash: sha256Hex(canonicalJson(payload)), payload }),
      attempts: SUBMIT_ATTEMPTS,
    },
    pause,
  );
  if (!sent.ok) return sent;
  const answer = resultAnswerSchema.safeParse(sent.value);
  return answer.success ? ok(answer.data) : refuse("operation_failed", "the host's answer can't be read");
}

/** Finds the work, keeps its result in its file, submits it, and notes that it was accepted. */
export async function submitStoredWork(
  files: WorkFiles,
  request: { readonly task: string | undefined; readonly summary: string },
  { clock, pause }: { readonly clock: Clock; readonly pause: Pause },
): Promise<Result<{ taskKey: string; continuationId: string; state: ResultAnswer["state"] }>> {
  const chosen = choose(files.list(), request.task);
  if (!chosen.ok) return chosen;
  const { work, claim } = chosen.value;
  if (work.result !== undefined && !isResult(work.result.payload, request.summary)) {
    return refuse(
      "operation_failed",
      `${work.taskKey} already has another result, and a result never changes`,
    );
  }
  const result = work.result ?? {
    idempotencyKey: `work-control:${claim.continuationId}`,
    payload: { task: work.task, summary: request.summary },
  };
  const kept: Work = { ...work, result };
  if (work.result === undefined) files.save(kept);
  const answer = await submitResult(claim, result, pause);
  if (!answer.ok) return answer;
  if (work.submittedAt === undefined) {
    files.save({ ...kept, submittedAt: new Date(clock.now()).toISOString() });
  }
  return ok({ taskKey: work.taskKey, continuationId: claim.continuationId, state: answer.value.state });
}

function isResult(payload: JsonValue, summary: string): boolean {
  return (
    typeof payload === "object" && payload !== null && !Array.isArray(payload) && payload.summary === summary
  );
}

/** By task key or exact task text (the newest of several); without either, the only work that still waits. */
function choose(
  all: readonly Work[],
  task: string | undefined,
): Result<{ work: Work; claim: NonNullable<Work["claim"]> }> {
  const claimed = all.flatMap((work) => (work.claim === undefined ? [] : [{ work, claim: work.claim }]));
  if (task !== undefined) {
    const found = claimed.find(({ work }) => work.taskKey === task || work.task === task);
    return found === undefined
      ? refuse("not_found", "no accepted work has this task or task key")
      : ok(found);
  }
  const waiting = claimed.filter(({ work }) => work.submittedAt === undefined);
  const [only] = waiting;
  if (only === undefined) return refuse("not_found", "no accepted work waits for a result");
  if (waiting.length > 1) {
    const keys = waiting.map(({ work }) => work.taskKey).join(", ");
    return refuse("usage", `several pieces of work wait; name one of ${keys}`);
  }
  return ok(only);
}
