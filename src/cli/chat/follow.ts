import { CliError } from "../../core/errors.ts";
import { SECOND_MS } from "../../core/limits.ts";
import type { ConversationEvent } from "../../core/turn.ts";
import type { ChatClient } from "./client.ts";

/** Back-off while the host is away, doubling between these. */
const RETRY_BASE_MS = 250;
const RETRY_CAP_MS = 5 * SECOND_MS;

export interface FollowOptions {
  readonly client: ChatClient;
  readonly afterSeq: number;
  readonly signal: AbortSignal;
  readonly sleep: (ms: number) => Promise<void>;
  /** Each event in order; the next one waits for it. */
  onEvent(event: ConversationEvent): Promise<void> | void;
  /** The connection is lost (once per loss), or there again. */
  onConnection(there: boolean): void;
  /** Tries in a row that may fail before it gives up with `host_unreachable`. */
  readonly maxTries: number;
}

/**
 * Follows a conversation over restarts of the host, each committed message once and in order. Resolves when `signal`
 * aborts; rejects when the host refuses, or stays away.
 */
export async function follow(options: FollowOptions): Promise<void> {
  const { client, signal, sleep } = options;
  let lastSeq = options.afterSeq;
  let failures = 0;
  while (!signal.aborted) {
    try {
      const onOpen = () => {
        if (failures > 0) options.onConnection(true);
        failures = 0;
      };
      for await (const event of client.events(lastSeq, signal, onOpen)) {
        if (event.type === "message") {
          if (event.message.seq <= lastSeq) continue;
          lastSeq = event.message.seq;
        }
        await options.onEvent(event);
      }
    } catch (error) {
      if (signal.aborted) return;
      const refused = error instanceof CliError && error.code !== "host_unreachable";
      if (refused || failures >= options.maxTries) throw error;
    }
    if (signal.aborted) return;
    failures += 1;
    if (failures === 1) options.onConnection(false);
    await sleep(retryDelayMs(failures));
  }
}

/** Repeats a call, which must be harmless to repeat, while the host is away. */
export async function patiently<T>(
  call: () => Promise<T>,
  options: { sleep: (ms: number) => Promise<void>; maxTries: number },
): Promise<T> {
  for (let failures = 1; ; failures += 1) {
    try {
      return await call();
    } catch (error) {
      const away = error instanceof CliError && error.code === "host_unreachable";
      if (!away || failures >= options.maxTries) throw error;
    }
    await options.sleep(retryDelayMs(failures));
  }
}

function retryDelayMs(failures: number): number {
  return Math.min(RETRY_CAP_MS, RETRY_BASE_MS * 2 ** Math.min(failures - 1, 10));
}
