import { join } from "node:path";
import { CONFIG_FILE_NAME, type LoadedConfig, loadConfig } from "../../config/load.ts";
import { CliError } from "../../core/errors.ts";
import { SECOND_MS } from "../../core/limits.ts";
import type { Clock } from "../../core/ports/platform.ts";
import { messagesAnswerSchema, TERMINAL_TOKEN_FILE } from "../../core/terminal.ts";
import type { Message } from "../../core/turn.ts";
import { type ContinuationDetail, listAnswerSchema, statusDetailSchema } from "../../core/wire.ts";
import { createFileSystem } from "../../platform/filesystem.ts";
import { createOperatorClient, type OperatorClient } from "../continuations/operator-client.ts";
import { readSecretText } from "../owner-secret.ts";
import { programOf } from "../shell.ts";
import { freePort, type HostProcess, type Place, runCommand, startHost, until } from "./host-process.ts";
import type { Timeline } from "./timeline.ts";

/**
 * The main job, end to end, with real processes: claim, commit, SIGKILL, restart, result, one synthesis, one answer.
 * Every step checks what it says; the first that does not hold ends the demo with its name.
 */

const CONVERSATION = "main";
const TASK = "Compare the three suppliers";
const QUESTION = `Please delegate_work with {"task": "${TASK}"}`;
const SUMMARY = "Supplier B is the cheapest; supplier A delivers two days sooner.";
const STEP_TIMEOUT_MS = 10 * SECOND_MS;

export interface DemoOutcome {
  readonly host: HostProcess;
  readonly continuationId: string;
  readonly answer: string;
}

export async function runScenario(place: Place, timeline: Timeline, clock: Clock): Promise<DemoOutcome> {
  const config = await timeline.step(
    "init",
    "a new agent folder: configuration, mcp.json, identity",
    () => prepareFolder(place),
    () => place.folder.path,
  );
  const at = talkTo(config, clock, place);
  let host = await timeline.step(
    "serve",
    "the host runs, with the work-control MCP server as its tool",
    () => startHost(place, at.isUp),
    (started) => `pid ${started.pid}`,
  );
  try {
    await timeline.step(
      "ask",
      "a person asks the agent to have work done",
      () => at.ask(),
      () => QUESTION,
    );
    const claimed = await timeline.step(
      "claim",
      "the agent calls the tool, which claims a continuation and says accepted",
      () => at.continuation(() => true),
      (record) => record.continuationId,
    );
    const id = claimed.continuationId;
    await timeline.step(
      "commit",
      "the turn commits; its exact context is pinned",
      async () => {
        await at.continuation((record) => record.originContext.state === "pinned");
        return at.lastAnswer();
      },
      (message) => firstLine(message.content),
    );
    await timeline.step(
      "kill",
      "the host is killed with SIGKILL",
      () => host.killHard(),
      () => `pid ${host.pid}`,
    );
    host = await timeline.step(
      "restart",
      "the host is started again",
      () => startHost(place, at.isUp),
      (started) => `pid ${started.pid}`,
    );
    await timeline.step(
      "recovered",
      "the promise is still there, with its context",
      () =>
        at.continuation((record) => record.continuationId === id && record.originContext.state === "pinned"),
      (record) => `${record.state}, ${record.originContext.messageCount} messages pinned`,
    );
    await timeline.step(
      "result",
      "the service submits its result over HTTP",
      () => runCommand(place, ["example", "work-control", "submit", "--summary", SUMMARY]),
      (said) => said.trim(),
    );
    const done = await timeline.step(
      "receipt",
      "one tool-free synthesis, one delivery, and the receipt is there",
      () => at.continuation((record) => record.state === "delivered"),
      (record) => `synthesis ${record.attempts.synthesis}, delivery ${record.attempts.delivery}`,
    );
    const answer = await timeline.step(
      "history",
      "the conversation holds the answer exactly once",
      () => at.answerOnce(done),
      (message) => message.content,
    );
    return { host, continuationId: id, answer: answer.content };
  } catch (error) {
    await host.killHard();
    throw error;
  }
}

async function prepareFolder(place: Place): Promise<LoadedConfig> {
  await runCommand(place, ["init"]);
  // Free ports, so that the demo runs beside a host of its user.
  const text = place.folder.read(CONFIG_FILE_NAME);
  const patched = text.replace("4319", String(freePort())).replace("4320", String(freePort()));
  place.folder.write(CONFIG_FILE_NAME, patched);
  return loadConfig({ cwd: place.folder.path, env: {}, secretsOptional: true });
}

function talkTo(config: LoadedConfig, clock: Clock, place: Place) {
  const { stop } = place;
  const program = programOf(place);
  const fs = createFileSystem();
  const terminal = `http://${config.terminal.host}:${config.terminal.port}/v1/terminal`;
  const token = () => readSecretText(fs, join(config.host.stateDir, TERMINAL_TOKEN_FILE))?.trim();
  const call = (path: string, init: RequestInit = {}) =>
    fetch(`${terminal}${path}`, {
      ...init,
      headers: { authorization: `Bearer ${token() ?? ""}` },
      // The host is on this machine: the token must not pass a proxy that the environment names.
      proxy: false,
    });
  // The state directory, and in it the secret that the client needs, is made by the first start.
  let client: OperatorClient | undefined;
  const operator = (): OperatorClient => {
    client ??= createOperatorClient(config, fs, program);
    return client;
  };

  const messages = async (): Promise<Message[]> => {
    const answer = await call(`/conversations/${CONVERSATION}/messages?limit=100`);
    return messagesAnswerSchema.parse(await answer.json()).messages;
  };
  const first = async (): Promise<ContinuationDetail | undefined> => {
    const list = listAnswerSchema.parse(await operator().get("/v1/operator/continuations"));
    const id = list.continuations[0]?.continuationId;
    if (id === undefined) return undefined;
    return statusDetailSchema.parse(await operator().get(`/v1/operator/continuations/${id}`));
  };

  return {
    isUp: async () => {
      if (token() === undefined) return false;
      try {
        return (await call("/health")).ok;
      } catch {
        return false;
      }
    },
    async ask() {
      const response = await call(`/conversations/${CONVERSATION}/turns`, {
        method: "POST",
        body: JSON.stringify({ requestId: `demo-${clock.now()}`, text: QUESTION }),
      });
      if (response.status !== 202)
        throw new CliError("operation_failed", `the turn was refused: ${response.status}`);
    },
    async continuation(wanted: (record: ContinuationDetail) => boolean): Promise<ContinuationDetail> {
      let found: ContinuationDetail | undefined;
      await until("the continuation", STEP_TIMEOUT_MS, stop, async () => {
        found = await first();
        const code = found?.lastError?.code;
        if (found?.state === "dead_lettered" || found?.state === "delivery_unknown") {
          throw new CliError("operation_failed", `the continuation ended as ${found.state} (${code})`);
        }
        return found !== undefined && wanted(found);
      });
      if (found === undefined) throw new CliError("operation_failed", "there is no continuation");
      return found;
    },
    async lastAnswer(): Promise<Message> {
      let answer: Message | undefined;
      await until("the answer of the turn", STEP_TIMEOUT_MS, stop, async () => {
        answer = (await messages()).findLast((message) => message.role === "assistant");
        return answer !== undefined;
      });
      if (answer === undefined) throw new CliError("operation_failed", "the turn has no answer");
      return answer;
    },
    async answerOnce(record: ContinuationDetail): Promise<Message> {
      if (record.receipt?.kind !== "delivered" || record.receipt.historyRecorded !== true) {
        throw new CliError("operation_failed", "the receipt does not say that history was written");
      }
      if (record.attempts.synthesis !== 1 || record.attempts.delivery !== 1) {
        throw new CliError("operation_failed", "there was more than one synthesis or delivery");
      }
      const answers = (await messages()).filter((message) => message.content.includes(SUMMARY));
      const [answer] = answers.filter((message) => message.role === "assistant");
      if (answer === undefined || answers.length !== 1) {
        throw new CliError("operation_failed", `the conversation holds the answer ${answers.length} times`);
      }
      return answer;
    },
  };
}

function firstLine(text: string): string {
  return text.split("\n", 1)[0] ?? "";
}
