import { afterEach, expect, test } from "bun:test";
import { openEventStream } from "../../../src/channels/terminal/event-stream.ts";
import { createChatClient } from "../../../src/cli/chat/client.ts";
import { serverEvents } from "../../../src/cli/chat/sse.ts";
import type { ConversationEvent, Message } from "../../../src/core/turn.ts";
import { createFakeClock } from "../../support/fake-clock.ts";
import { createRecordingLogger } from "../../support/silent-logger.ts";
import { createTerminalHost } from "../../support/terminal-host.ts";

const hosts: Awaited<ReturnType<typeof createTerminalHost>>[] = [];
afterEach(async () => {
  for (const host of hosts.splice(0)) await host.remove();
});

const row = (seq: number): Message => ({
  seq,
  conversationId: "terminal:main",
  role: "assistant",
  content: `m${seq}`,
  createdAt: "2026-11-30T12:00:00.000Z",
});
const committed = (seq: number): ConversationEvent => ({ type: "message", message: row(seq) });
const delta = (text: string): ConversationEvent => ({ type: "delta", turnId: "t", text });

function openStream(afterSeq = 0) {
  const clock = createFakeClock();
  const logger = createRecordingLogger();
  const rows: Message[] = [];
  let listener: ((event: ConversationEvent) => void) | undefined;
  let closed = 0;
  const stream = openEventStream({
    subscribe: (given) => {
      listener = given;
      return () => {
        listener = undefined;
      };
    },
    feed: async (after, limit) => rows.filter((one) => one.seq > after).slice(0, limit),
    afterSeq,
    clock,
    logger,
    onClose: () => {
      closed += 1;
    },
  });
  const events = serverEvents(stream.body);
  const next = async (): Promise<string> => {
    const { value, done } = await events.next();
    if (done === true) return "end";
    const event = JSON.parse(value.data) as ConversationEvent;
    return event.type === "message" ? `${value.id}:${event.message.content}` : `${value.id}:${event.type}`;
  };
  const take = async (count: number) => {
    const seen: string[] = [];
    for (let left = count; left > 0; left -= 1) seen.push(await next());
    return seen;
  };
  return {
    rows,
    clock,
    logger,
    stream,
    next,
    take,
    announce: (event: ConversationEvent) => listener?.(event),
    listening: () => listener !== undefined,
    closed: () => closed,
  };
}

test("what is committed between the subscription and the first read comes once", async () => {
  const it = openStream(1);
  it.rows.push(row(1), row(2), row(3));
  it.announce(committed(3));
  expect(await it.take(2)).toEqual(["2:m2", "3:m3"]);
  it.rows.push(row(4));
  it.announce(committed(4));
  it.announce(committed(4));
  expect(await it.next()).toBe("4:m4");
  it.announce(delta("x"));
  expect(await it.next()).toBe("4:delta");
});

test("commits that are announced in the wrong order come in the order of the feed", async () => {
  const it = openStream();
  it.rows.push(row(1), row(2));
  it.announce(committed(2));
  it.announce(committed(1));
  it.announce(delta("x"));
  expect(await it.take(3)).toEqual(["1:m1", "2:m2", "2:delta"]);
});

test("a long feed is read page by page, before later previews", async () => {
  const it = openStream();
  for (let seq = 1; seq <= 250; seq += 1) it.rows.push(row(seq));
  it.announce(delta("x"));
  const seen = await it.take(251);
  expect(seen.slice(0, 250)).toEqual(it.rows.map((one) => `${one.seq}:m${one.seq}`));
  expect(seen[250]).toBe("250:delta");
});

test("a client that does not read costs bounded memory and still gets every message", async () => {
  const it = openStream();
  for (let count = 0; count < 5_000; count += 1) it.announce(delta("x"));
  it.rows.push(row(1));
  it.announce(committed(1));
  const seen = [await it.next()];
  while (!seen.includes("1:m1")) seen.push(await it.next());
  expect(seen.length).toBeLessThanOrEqual(1_001);
});

test("a quiet stream sends heartbeats", async () => {
  const it = openStream();
  const reader = it.stream.body.getReader();
  const text = async () => new TextDecoder().decode((await reader.read()).value);
  expect(await text()).toStartWith(":");
  const heartbeat = text();
  while (it.clock.pending() === 0) await new Promise((resolve) => setImmediate(resolve));
  it.clock.advance(15_000);
  expect(await heartbeat).toStartWith(":");
  await reader.cancel();
  expect([it.listening(), it.closed()]).toEqual([false, 1]);
});

test("closing ends the stream and the subscription, once and without an error", async () => {
  const it = openStream();
  const end = it.next();
  it.stream.close();
  it.stream.close();
  expect(await end).toBe("end");
  expect([it.listening(), it.closed(), it.logger.lines]).toEqual([false, 1, []]);
});

test("over HTTP: Last-Event-ID wins over after, live rows follow, and stopping ends the stream", async () => {
  const host = await createTerminalHost();
  hosts.push(host);
  await host.channel.start();
  const first = await host.append("a");
  const second = await host.append("b");
  const headers = { authorization: `Bearer ${await host.token()}`, "last-event-id": String(first.seq) };
  const url = `${host.address()}/v1/terminal/conversations/main/events?after=0`;
  const response = await fetch(url, { headers });
  expect(response.headers.get("content-type")).toContain("text/event-stream");
  expect(response.headers.get("cache-control")).toBe("no-store");
  const events = serverEvents(response.body as ReadableStream<Uint8Array>);
  expect((await events.next()).value?.id).toBe(String(second.seq));
  const signal = new AbortController().signal;
  await host.channel.deliver({ destination: "terminal:main", text: "later", deliveryKey: "c", signal });
  const later = (await events.next()).value;
  expect(JSON.parse(later?.data ?? "").message.content).toBe("later");
  const end = events.next();
  await host.channel.stop();
  expect((await end).done).toBe(true);
  expect(host.logger.lines.filter((line) => line.startsWith("error"))).toEqual([]);
});

test("a client that goes away is forgotten, without an error", async () => {
  const host = await createTerminalHost();
  hosts.push(host);
  await host.channel.start();
  const client = createChatClient({
    address: host.address(),
    conversation: "main",
    token: await host.token(),
    program: "mono-agent",
  });
  const gone = new AbortController();
  const opened = Promise.withResolvers<void>();
  const reading = (async () => {
    for await (const _ of client.events(0, gone.signal, opened.resolve));
  })();
  await opened.promise;
  gone.abort();
  await reading.catch(() => {});
  const health = async () => {
    const headers = { authorization: `Bearer ${await host.token()}` };
    return (await (await fetch(`${host.address()}/v1/terminal/health`, { headers })).json()) as {
      observers: number;
    };
  };
  while ((await health()).observers > 0);
  expect(host.logger.lines).toEqual([]);
});
