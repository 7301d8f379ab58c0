import { expect, test } from "bun:test";
import type { ChatClient } from "../../../src/cli/chat/client.ts";
import { follow } from "../../../src/cli/chat/follow.ts";
import { interactiveChat } from "../../../src/cli/chat/interactive.ts";
import { linesOf } from "../../../src/cli/chat/lines.ts";
import { pipedChat } from "../../../src/cli/chat/piped.ts";
import { printable, wrap } from "../../../src/cli/chat/screen.ts";
import { serverEvents } from "../../../src/cli/chat/sse.ts";
import { CliError } from "../../../src/core/errors.ts";
import type { ConversationEvent, Message } from "../../../src/core/turn.ts";

const away = () => new CliError("host_unreachable", "away");
const message = (
  seq: number,
  role: Message["role"],
  content: string,
  extra: Partial<Message> = {},
): Message => ({
  seq,
  conversationId: "terminal:main",
  role,
  content,
  createdAt: "2026-11-30T12:00:00.000Z",
  ...extra,
});
const row = (...args: Parameters<typeof message>): ConversationEvent => ({
  type: "message",
  message: message(...args),
});

/** A host by hand: tests push events, break connections and let calls fail. */
function fakeHost() {
  const connections: { after: number; push(event: ConversationEvent | "break" | "end"): void }[] = [];
  const submitted: string[][] = [];
  const cancelled: string[] = [];
  let failures = 0;
  let changed = Promise.withResolvers<void>();
  const note = () => {
    changed.resolve();
    changed = Promise.withResolvers<void>();
  };
  const client: ChatClient = {
    messages: async () => ({ messages: [], lastSeq: 3 }),
    submit: async (requestId, text, attachments = []) => {
      submitted.push([requestId, text, ...attachments.map(({ name }) => name)]);
      if (failures > 0) {
        failures -= 1;
        throw away();
      }
      note();
      return { turnId: `turn-${text}`, replayed: false };
    },
    cancel: async (turnId) => {
      cancelled.push(turnId);
      note();
    },
    async *events(after, signal, onOpen) {
      const queue: (ConversationEvent | "break" | "end")[] = [];
      let wake = Promise.withResolvers<void>();
      connections.push({
        after,
        push: (event) => {
          queue.push(event);
          wake.resolve();
        },
      });
      signal.addEventListener("abort", () => wake.resolve());
      note();
      onOpen();
      while (!signal.aborted) {
        const event = queue.shift();
        if (event === "break") throw away();
        if (event === "end") return;
        if (event !== undefined) yield event;
        else {
          wake = Promise.withResolvers<void>();
          await wake.promise;
        }
      }
    },
  };
  return {
    client,
    connections,
    submitted,
    cancelled,
    push: (event: ConversationEvent | "break" | "end") => connections.at(-1)?.push(event),
    until: async (condition: () => boolean) => {
      while (!condition()) await changed.promise;
    },
    failNext: (count: number) => {
      failures = count;
    },
  };
}

const sleep = async () => {};
async function* lines(...all: string[]) {
  yield* all;
}
const ids = () => {
  let count = 0;
  return () => `request-${++count}`;
};
/** Lets everything that is ready run. */
const settle = () => new Promise<void>((resolve) => setImmediate(resolve));

test("events are read however the bytes are cut", async () => {
  const text = 'id: 7\nevent: message\ndata: {"a":"ä"}\n\n: beat\n\ndata: x\r\ndata: y\r\n\r\n';
  const bytes = new TextEncoder().encode(text);
  for (let size = 1; size < 9; size += 1) {
    const body = new ReadableStream<Uint8Array>({
      start(controller) {
        for (let at = 0; at < bytes.length; at += size) controller.enqueue(bytes.slice(at, at + size));
        controller.close();
      },
    });
    expect(await Array.fromAsync(serverEvents(body))).toEqual([
      { id: "7", name: "message", data: '{"a":"ä"}' },
      { id: "7", name: undefined, data: "x\ny" },
    ]);
  }
});

test("the last line of the input counts without a line end", async () => {
  expect(await Array.fromAsync(linesOf(new Blob(["a\r\nb\n\nc"]).stream()))).toEqual(["a", "b", "", "c"]);
});

test("following goes on after the last message when the host comes back, without repeating any", async () => {
  const host = fakeHost();
  const seen: string[] = [];
  const stop = new AbortController();
  const connection: boolean[] = [];
  const following = follow({
    client: host.client,
    afterSeq: 3,
    signal: stop.signal,
    sleep,
    maxTries: 5,
    onEvent: (event) => void (event.type === "message" && seen.push(event.message.content)),
    onConnection: (there) => connection.push(there),
  });
  host.push(row(4, "assistant", "a"));
  await settle();
  host.push("break");
  await host.until(() => host.connections.length === 2);
  host.push(row(4, "assistant", "a"));
  host.push(row(5, "assistant", "b"));
  await settle();
  host.push("end");
  await host.until(() => host.connections.length === 3);
  stop.abort();
  await following;
  expect(host.connections.map((one) => one.after)).toEqual([3, 4, 5]);
  expect(seen).toEqual(["a", "b"]);
  expect(connection).toEqual([false, true, false, true]);
});

test("following gives up on a refusal at once and on an absent host after its tries", async () => {
  const attempt = async (error: Error, maxTries: number) => {
    let tries = 0;
    const client: ChatClient = {
      ...fakeHost().client,
      // biome-ignore lint/correctness/useYield: this host never answers.
      async *events() {
        tries += 1;
        throw error;
      },
    };
    const signal = new AbortController().signal;
    const options = {
      client,
      afterSeq: 0,
      signal,
      sleep,
      maxTries,
      onEvent: () => {},
      onConnection: () => {},
    };
    expect(follow(options)).rejects.toBe(error);
    await follow(options).catch(() => {});
    return tries / 2;
  };
  expect(await attempt(new CliError("operation_failed", "wrong token"), 5)).toBe(1);
  expect(await attempt(away(), 5)).toBe(6);
});

test("piped lines are turns one after the other; answers go to standard output", async () => {
  const host = fakeHost();
  const out: string[] = [];
  const err: string[] = [];
  host.failNext(2);
  const chat = pipedChat({
    client: host.client,
    attached: [{ name: "a.png", mediaType: "image/png", data: "AA==" }],
    lines: lines("one", " ", "two"),
    uuid: ids(),
    sleep,
    out: (text) => out.push(text),
    err: (text) => err.push(text),
  });
  await host.until(() => host.submitted.length === 3);
  expect(host.submitted).toEqual([
    ["request-1", "one", "a.png"],
    ["request-1", "one", "a.png"],
    ["request-1", "one", "a.png"],
  ]);
  host.push(row(4, "user", "one", { turnId: "turn-one" }));
  host.push(row(5, "assistant", "someone else's", { turnId: "turn-x" }));
  await settle();
  expect([out, host.submitted.length]).toEqual([[], 3]);
  host.push(row(6, "assistant", "first", { turnId: "turn-one" }));
  await host.until(() => host.submitted.length === 4);
  host.push(row(7, "notice", "it failed", { turnId: "turn-two" }));
  expect(await chat).toBe(1);
  expect(host.submitted.at(-1)).toEqual(["request-2", "two"]);
  expect(out).toEqual(["first\n"]);
  expect(err).toEqual(["it failed\n"]);
});

function talk(host: ReturnType<typeof fakeHost>) {
  const shown: string[] = [];
  const typed: ((line: string | undefined) => void)[] = [];
  const input: AsyncIterable<string> = {
    [Symbol.asyncIterator]: () => ({
      next: () =>
        new Promise((resolve) => {
          typed.push((line) =>
            resolve(line === undefined ? { done: true, value: undefined } : { done: false, value: line }),
          );
        }),
    }),
  };
  const chat = interactiveChat({
    client: host.client,
    screen: {
      paragraph: (text) => shown.push(text),
      stream: (text) => shown.push(`+${text}`),
      endStream: () => shown.push("."),
    },
    lines: input,
    attach(path) {
      if (path === "missing") throw new CliError("operation_failed", "there is no such file");
      return { name: path, mediaType: "image/png", data: "AA==" };
    },
    uuid: ids(),
    sleep,
  });
  const type = async (line: string | undefined) => {
    while (typed.length === 0) await settle();
    typed.shift()?.(line);
    await settle();
  };
  return { chat, shown, type };
}

test("text streams once, the own turn is not repeated, a later answer appears by itself", async () => {
  const host = fakeHost();
  const { chat, shown, type } = talk(host);
  await type("hello");
  host.push(row(4, "user", "hello", { turnId: "turn-hello" }));
  host.push({ type: "delta", turnId: "turn-hello", text: "par" });
  host.push({ type: "delta", turnId: "turn-hello", text: "tial" });
  host.push(row(5, "assistant", "partial", { turnId: "turn-hello" }));
  host.push({ type: "delta", turnId: "turn-hello", text: "stale" });
  host.push({ type: "turn", turnId: "turn-hello", status: "succeeded" });
  host.push(row(6, "assistant", "days later", { deliveryKey: "continuation:1" }));
  host.push(row(7, "user", "from elsewhere", { turnId: "turn-x" }));
  await settle();
  await type("/quit");
  expect(await chat).toBe(0);
  expect(shown).toEqual(["+par", "+tial", ".", "* days later", "> from elsewhere"]);
});

test("equal tool calls side by side are numbered, so that it shows which one failed", async () => {
  const host = fakeHost();
  const { chat, shown, type } = talk(host);
  const tool = (callId: string, phase: "started" | "finished" | "failed", turnId = "turn-x") =>
    host.push({ type: "tool", turnId, callId, name: "read", phase });
  await settle();
  tool("c0", "started");
  tool("c1", "started");
  tool("c0", "failed", "turn-y");
  tool("c1", "failed");
  tool("c0", "finished");
  tool("c2", "started");
  host.push({ type: "turn", turnId: "turn-x", status: "failed" });
  tool("c3", "started");
  await settle();
  await type("/quit");
  await chat;
  expect(shown).toEqual([
    "  [read …]",
    "  [read (2) …]",
    "  [read failed]",
    "  [read (2) failed]",
    "  [read …]",
    "  [read …]",
  ]);
});

test("an answer of which only a part streamed is shown whole", async () => {
  const host = fakeHost();
  const { chat, shown, type } = talk(host);
  await type("hello");
  host.push({ type: "delta", turnId: "turn-hello", text: "par" });
  host.push(row(5, "assistant", "the whole part", { turnId: "turn-hello" }));
  await settle();
  await type(undefined);
  expect(await chat).toBe(0);
  expect(shown).toEqual(["+par", ".", "the whole part"]);
});

test("/cancel cancels the newest turn that is still open", async () => {
  const host = fakeHost();
  const { chat, shown, type } = talk(host);
  await type("/cancel");
  await type("one");
  await type("two");
  host.push({ type: "turn", turnId: "turn-two", status: "succeeded" });
  await settle();
  await type("/cancel");
  await type("/quit");
  await chat;
  expect(host.cancelled).toEqual(["turn-one"]);
  expect(shown).toEqual(["nothing to cancel"]);
});

test("control characters never reach the terminal, and lines are cut by their width", () => {
  expect(printable("a\u001b[2Jb\r\nc\td\u009b")).toBe("a\u{fffd}[2Jb\nc    d\u{fffd}");
  expect(wrap("abcdef\ngh", 4)).toEqual({ lines: ["abcd", "ef"], rest: "gh" });
  expect(wrap("日本語", 4)).toEqual({ lines: ["日本"], rest: "語" });
});

test("files go with the next message that is sent, and with no other", async () => {
  const host = fakeHost();
  const { chat, shown, type } = talk(host);
  await type("/attach a.png");
  await type("/attach my photo.png");
  await type("/attach missing");
  await type("what are they?");
  await type("and now?");
  await type("/attach b.png");
  await type("/detach");
  await type("nothing with it");
  await type("/quit");
  expect(await chat).toBe(0);
  expect(host.submitted.map(([, ...rest]) => rest)).toEqual([
    ["what are they?", "a.png", "my photo.png"],
    ["and now?"],
    ["nothing with it"],
  ]);
  expect(shown).toContain("  [a.png, image/png: goes with the next message]");
  expect(shown).toContain("! there is no such file");
});
