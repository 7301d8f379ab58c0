import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { z } from "zod";
import { sha256Hex } from "../../core/digest.ts";
import { ok, type Result, refuse } from "../../core/errors.ts";
import { canonicalJson } from "../../core/json.ts";
import { DEADLINE_MAX_MS, MINUTE_MS } from "../../core/limits.ts";
import type { Clock } from "../../core/ports/platform.ts";
import type { ClaimCapability } from "../../core/ports/tools.ts";
import { claimAnswerSchema } from "../../core/wire.ts";
import { type Pause, sendJson } from "./send.ts";
import type { Work, WorkFiles } from "./work-files.ts";

/**
 * The sample of a trusted continuation server: it takes work that outlives the call, claims a continuation for it
 * while the call lasts, and says "accepted" only when host and own file both know of it. Copy it.
 *
 * 1. Key and hash of the task are computed from the task, so that asking again is the same claim.
 * 2. The deadline is kept before the claim is sent, for the same reason: a claim with another deadline conflicts.
 * 3. The claim is made inside the call: the host closes the capability when the run's tools have settled.
 * 4. The result token is kept in a file of the owner only and never appears in a tool's answer.
 */

/** One minute less than the host allows, for the time between our clock and its. */
const MINUTES_MAX = DEADLINE_MAX_MS / MINUTE_MS - 1;
const MINUTES_DEFAULT = 60;
const CLAIM_ATTEMPTS = 4;

export interface WorkControlOptions {
  /** The capability of the request at hand. */
  readonly capability: ClaimCapability | undefined;
  readonly files: WorkFiles;
  readonly clock: Clock;
  readonly pause: Pause;
}

const NO_CAPABILITY =
  "This run holds no continuation capability, so the work can't be delegated: name this server in " +
  "tools.continuationServers of mono-agent.config.json and keep continuations enabled.";

export function createWorkControlServer({ capability, ...means }: WorkControlOptions): McpServer {
  const server = new McpServer({ name: "work-control", version: "1.0.0" });
  server.registerTool(
    "delegate_work",
    {
      description:
        "Delegates a task that takes longer than this conversation turn. The answer comes later, by itself, " +
        "into the same conversation.",
      inputSchema: {
        task: z.string().min(1).max(10_000).describe("What is to be done, in full."),
        minutes: z.int().min(1).max(MINUTES_MAX).optional().describe("Minutes until it must be done (60)."),
      },
    },
    async ({ task, minutes }) => {
      if (capability === undefined) return answer(NO_CAPABILITY, true);
      const accepted = await delegate({ task, minutes: minutes ?? MINUTES_DEFAULT }, capability, means);
      if (!accepted.ok) return answer(`The work was not accepted: ${accepted.refusal.message}.`, true);
      const { taskKey, deadline } = accepted.value;
      return answer(`accepted: ${taskKey}, due by ${deadline}. The result arrives here by itself.`, false);
    },
  );
  server.registerTool(
    "list_work",
    {
      description: "Lists the delegated work that this service knows of.",
      annotations: { readOnlyHint: true },
    },
    () => {
      const lines = means.files
        .list()
        .map((work) => `${work.taskKey} [${stateOf(work)}] due ${work.deadline}: ${work.task}`);
      return answer(lines.length === 0 ? "No work was delegated." : lines.join("\n"), false);
    },
  );
  return server;
}

function answer(text: string, isError: boolean) {
  return { content: [{ type: "text" as const, text }], isError };
}

function stateOf(work: Work): "claiming" | "accepted" | "submitted" {
  if (work.submittedAt !== undefined) return "submitted";
  return work.claim === undefined ? "claiming" : "accepted";
}

/** Claims a continuation for the task and keeps what is needed to submit its result. Idempotent within a run. */
export async function delegate(
  request: { readonly task: string; readonly minutes: number },
  capability: ClaimCapability,
  { files, clock, pause }: Omit<WorkControlOptions, "capability">,
): Promise<Result<Work>> {
  const taskHash = sha256Hex(canonicalJson({ task: request.task, minutes: request.minutes }));
  const taskKey = `task-${taskHash.slice(0, 24)}`;
  const known = files.find(capability.fingerprint, taskKey);
  if (known?.claim !== undefined) return ok(known);

  const now = clock.now();
  const work: Work = known ?? {
    taskKey,
    taskHash,
    fingerprint: capability.fingerprint,
    task: request.task,
    createdAt: new Date(now).toISOString(),
    deadline: new Date(now + request.minutes * MINUTE_MS).toISOString(),
  };
  if (known === undefined) files.save(work);

  const sent = await sendJson(
    {
      method: "POST",
      url: capability.url,
      token: capability.token,
      body: JSON.stringify({ taskKey, taskHash, deadline: work.deadline }),
      attempts: CLAIM_ATTEMPTS,
    },
    pause,
  );
  if (!sent.ok) return sent;
  const claim = claimAnswerSchema.safeParse(sent.value);
  if (!claim.success) return refuse("operation_failed", "the host's answer to the claim can't be read");
  const { continuationId, resultUrl, statusUrl, token } = claim.data;
  const claimed: Work = { ...work, claim: { continuationId, resultUrl, statusUrl, token } };
  files.save(claimed);
  return ok(claimed);
}
