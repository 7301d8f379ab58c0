import type { Message, TurnAttachment } from "../../core/turn.ts";
import type { ExitCode } from "../io.ts";
import type { ChatClient } from "./client.ts";
import { follow, patiently } from "./follow.ts";

/** About two minutes with the back-off of `follow`. */
const MAX_TRIES = 28;

export interface PipedChat {
  readonly client: ChatClient;
  readonly lines: AsyncIterable<string>;
  /** Goes with the first line. */
  readonly attached?: readonly TurnAttachment[];
  readonly uuid: () => string;
  readonly sleep: (ms: number) => Promise<void>;
  out(text: string): void;
  err(text: string): void;
}

/**
 * A conversation without a terminal: each line is a turn, its answer is printed when it is there, then the next line
 * is read. Ends with the last answer; 1 when a turn failed.
 */
export async function pipedChat(chat: PipedChat): Promise<ExitCode> {
  const { client, sleep } = chat;
  const { lastSeq } = await client.messages(1);
  const ends = new Map<string, Message | undefined>();
  let look = Promise.withResolvers<void>();
  const ended = (turnId: string | undefined, message: Message | undefined) => {
    if (turnId === undefined || ends.has(turnId)) return;
    ends.set(turnId, message);
    look.resolve();
  };
  const done = new AbortController();
  const following = follow({
    client,
    afterSeq: lastSeq,
    signal: done.signal,
    sleep,
    maxTries: MAX_TRIES,
    onConnection: (there) => chat.err(there ? "connected again\n" : "the host is away, waiting for it\n"),
    onEvent: (event) => {
      if (event.type === "message" && event.message.role !== "user") {
        ended(event.message.turnId, event.message);
      } else if (event.type === "turn" && event.status !== "queued" && event.status !== "running") {
        ended(event.turnId, undefined);
      }
    },
  });
  // Reported below, where somebody waits for it.
  following.catch(() => {});

  const answerOf = async (turnId: string): Promise<Message | undefined> => {
    while (!ends.has(turnId)) {
      look = Promise.withResolvers<void>();
      await Promise.race([look.promise, following]);
    }
    const message = ends.get(turnId);
    ends.delete(turnId);
    return message;
  };

  let attached = chat.attached ?? [];
  let code: ExitCode = 0;
  try {
    for await (const line of chat.lines) {
      if (line.trim() === "") continue;
      const requestId = chat.uuid();
      const { turnId } = await patiently(() => client.submit(requestId, line, attached), {
        sleep,
        maxTries: MAX_TRIES,
      });
      attached = [];
      const answer = await answerOf(turnId);
      if (answer?.role === "assistant") chat.out(`${answer.content}\n`);
      else {
        chat.err(`${answer?.content ?? "the turn ended without an answer"}\n`);
        code = 1;
      }
    }
  } finally {
    done.abort();
  }
  return code;
}
