import { errorText } from "../../core/errors.ts";
import type { ConversationEvent, Message, TurnAttachment } from "../../core/turn.ts";
import type { ExitCode } from "../io.ts";
import type { ChatClient } from "./client.ts";
import { follow, patiently } from "./follow.ts";
import type { Screen } from "./screen.ts";

/** Messages of before that are shown at the start. */
const SHOWN_BEFORE = 10;
/** A typed turn is tried again for about half a minute while the host restarts. */
const SUBMIT_TRIES = 10;

export interface InteractiveChat {
  readonly client: ChatClient;
  readonly screen: Screen;
  /** Lines as they are typed; ends when the input is closed. */
  readonly lines: AsyncIterable<string>;
  /** Reads the file that `/attach` names; throws what stands on the screen then. */
  readonly attach: (path: string) => TurnAttachment;
  /** Goes with the first message. */
  readonly attached?: readonly TurnAttachment[];
  readonly uuid: () => string;
  readonly sleep: (ms: number) => Promise<void>;
}

/** A conversation at a terminal, until `/quit` or the end of input. Answers that arrive later appear by themselves. */
export async function interactiveChat(chat: InteractiveChat): Promise<ExitCode> {
  const { client, screen, sleep } = chat;
  /** Turns typed here: their text stands on the screen already. */
  const mine = new Set<string>();
  /** Typed here and not over, oldest first. */
  const open = new Set<string>();
  /** Their answers are committed: a preview that comes after that is stale. */
  const answered = new Set<string>();
  /** Goes with the next message. */
  let attached = chat.attached ?? [];
  let submitting: Promise<void> = Promise.resolve();
  let streamed: { turnId: string; text: string } | undefined;

  /** What the calls that are under way are called on the screen, by turn and call. */
  const running = new Map<string, string>();

  /** The name of a call; a number tells it from the calls of the same name beside it. */
  const labelOf = ({ turnId, callId, name, phase }: Extract<ConversationEvent, { type: "tool" }>) => {
    const key = `${turnId} ${callId}`;
    if (phase !== "started") {
      const label = running.get(key) ?? name;
      running.delete(key);
      return label;
    }
    const taken = new Set(running.values());
    let label = name;
    for (let number = 2; taken.has(label); number += 1) label = `${name} (${number})`;
    running.set(key, label);
    return label;
  };

  const endStream = () => {
    if (streamed !== undefined) screen.endStream();
    streamed = undefined;
  };

  const showCommitted = (message: Message) => {
    const { turnId } = message;
    if (message.role === "user") {
      if (turnId === undefined || !mine.has(turnId)) screen.paragraph(`> ${message.content}`);
      return;
    }
    if (turnId !== undefined) answered.add(turnId);
    const seen =
      streamed !== undefined && streamed.turnId === turnId && streamed.text.endsWith(message.content);
    endStream();
    if (!seen || message.content === "") screen.paragraph(committedText(message));
  };

  const onEvent = async (event: ConversationEvent) => {
    // Until the host has told the id of a turn that was just typed, its own text could not be told from another's.
    await submitting;
    if (event.type === "message") showCommitted(event.message);
    else if (event.type === "delta") {
      if (answered.has(event.turnId)) return;
      if (streamed !== undefined && streamed.turnId !== event.turnId) endStream();
      streamed = { turnId: event.turnId, text: (streamed?.text ?? "") + event.text };
      screen.stream(event.text);
    } else if (event.type === "tool") {
      const label = labelOf(event);
      if (event.phase === "finished") return;
      endStream();
      screen.paragraph(event.phase === "started" ? `  [${label} …]` : `  [${label} failed]`);
    } else if (event.status !== "queued" && event.status !== "running") {
      open.delete(event.turnId);
      for (const key of running.keys()) if (key.startsWith(`${event.turnId} `)) running.delete(key);
      endStream();
    }
  };

  const submit = async (text: string) => {
    const requestId = chat.uuid();
    try {
      const { turnId } = await patiently(() => client.submit(requestId, text, attached), {
        sleep,
        maxTries: SUBMIT_TRIES,
      });
      attached = [];
      mine.add(turnId);
      open.add(turnId);
    } catch (error) {
      const kept =
        attached.length === 0 ? "" : " (what is attached goes with the next message; /detach drops it)";
      screen.paragraph(`! not sent: ${errorText(error)}${kept}`);
    }
  };

  const attach = (path: string) => {
    try {
      const file = chat.attach(path);
      attached = [...attached, file];
      screen.paragraph(`  [${file.name}, ${file.mediaType}: goes with the next message]`);
    } catch (error) {
      screen.paragraph(`! ${errorText(error)}`);
    }
  };

  const cancel = async () => {
    const turnId = [...open].at(-1);
    if (turnId === undefined) return screen.paragraph("nothing to cancel");
    open.delete(turnId);
    try {
      await client.cancel(turnId);
    } catch (error) {
      screen.paragraph(`! not cancelled: ${errorText(error)}`);
    }
  };

  const before = await client.messages(SHOWN_BEFORE);
  for (const message of before.messages) screen.paragraph(committedText(message));
  const done = new AbortController();
  const following = follow({
    client,
    afterSeq: before.lastSeq,
    signal: done.signal,
    sleep,
    maxTries: Number.POSITIVE_INFINITY,
    onConnection: (there) => screen.paragraph(there ? "connected again" : "the host is away, waiting for it"),
    onEvent,
  }).then(() => "over" as const);

  const lines = chat.lines[Symbol.asyncIterator]();
  try {
    for (;;) {
      const line = await Promise.race([lines.next(), following]);
      if (line === "over" || line.done === true) return 0;
      const text = line.value.trim();
      if (text === "/quit") return 0;
      if (text === "/cancel") await cancel();
      else if (text === "/detach") attached = [];
      else if (/^\/attach\s/.test(text)) attach(text.slice("/attach".length).trim());
      else if (text.startsWith("/")) screen.paragraph("commands: /attach FILE, /detach, /cancel, /quit");
      else if (text !== "") {
        submitting = submit(line.value);
        await submitting;
      }
    }
  } finally {
    done.abort();
  }
}

function committedText(message: Message): string {
  if (message.role === "user") return `> ${message.content}`;
  if (message.role === "notice") return `! ${message.content}`;
  return message.deliveryKey === undefined ? message.content : `* ${message.content}`;
}
