import { afterEach, describe, expect, test } from "bun:test";
import { createDeliveredHistory } from "../../src/channels/delivered-history.ts";
import { createDelivery } from "../../src/channels/registry.ts";
import type { SessionRollover } from "../../src/core/buckets.ts";
import type { Channel, ChannelStatus } from "../../src/core/ports/channel.ts";
import type { DeliveryOutcome } from "../../src/core/ports/delivery.ts";
import type { TurnStore } from "../../src/core/ports/turns.ts";
import type { ConversationEvent } from "../../src/core/turn.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { createRecordingLogger } from "../support/silent-logger.ts";
import { createLedgerFolder } from "../support/turns-fixture.ts";

function setup(options: { status?: ChannelStatus; deliver?: () => Promise<DeliveryOutcome> } = {}) {
  const posts: string[] = [];
  const listeners = new Set<() => void>();
  const channel: Channel = {
    name: "slack",
    scheme: "slack",
    status: () => options.status ?? "running",
    allows: (destination) => destination.startsWith("slack:C"),
    onReady(listener) {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
    start: async () => {},
    stop: async () => {},
    deliver: async (request) => {
      posts.push(request.destination);
      return options.deliver?.() ?? { kind: "delivered", parts: [{ id: "1" }] };
    },
    findDelivery: async () => {
      throw new Error("network");
    },
  };
  const delivery = createDelivery([channel]);
  const signal = new AbortController().signal;
  const deliver = (destination: string) =>
    delivery.deliver({ destination, text: "secret text", deliveryKey: "k", signal });
  return { posts, delivery, deliver, signal, listeners };
}

describe("routing a delivery", () => {
  test("goes to the channel of the scheme when its allowlist admits it", async () => {
    const { delivery, deliver, posts } = setup();
    expect(delivery.supports("slack:C1:1.2")).toBe("supported");
    expect((await deliver("slack:C1:1.2")).kind).toBe("delivered");
    expect(posts).toEqual(["slack:C1:1.2"]);
  });

  test("is never possible for an unknown scheme or beyond the allowlist", async () => {
    const { delivery, deliver, posts } = setup();
    for (const destination of ["telegram:1", "", "slack", ":C1", "slack:D9"]) {
      expect(delivery.supports(destination)).toBe("never");
      expect((await deliver(destination)).kind).toBe("permanent");
    }
    expect(await deliver("slack:D9")).toMatchObject({ code: "destination_not_allowed" });
    expect(posts).toEqual([]);
  });

  test("waits for a channel that does not run; a degraded one can post", async () => {
    for (const status of ["disabled", "waiting_for_config", "failed"] as const) {
      const { delivery, deliver, posts } = setup({ status });
      expect(delivery.supports("slack:C1")).toBe("not_running");
      expect(await deliver("slack:C1")).toMatchObject({
        kind: "retryable",
        code: "destination_channel_unavailable",
      });
      expect(posts).toEqual([]);
    }
    expect((await setup({ status: "degraded" }).deliver("slack:C1")).kind).toBe("delivered");
  });

  test("a throw of the channel, in a post or a look-up, reaches whoever asked", async () => {
    const { delivery, deliver, signal } = setup({ deliver: () => Promise.reject(new Error("reset")) });
    await expect(deliver("slack:C123")).rejects.toThrow("reset");
    await expect(delivery.find("slack:C1", "k", "", signal)).rejects.toThrow("network");
  });

  test("a channel that becomes ready is heard until the listener ends", () => {
    const { delivery, listeners } = setup();
    let heard = 0;
    const end = delivery.onReady?.(() => {
      heard += 1;
    });
    for (const listener of listeners) listener();
    expect(heard).toBe(1);
    end?.();
    expect(listeners.size).toBe(0);
  });

  test("a look-up without a channel proves nothing", async () => {
    const { delivery, signal } = setup();
    expect(await delivery.find("telegram:1", "k", "", signal)).toEqual({ kind: "unknown" });
  });
});

describe("history after delivery", () => {
  const open: { turns: TurnStore; remove: () => void }[] = [];
  afterEach(async () => {
    for (const { turns, remove } of open.splice(0)) {
      await turns.close();
      remove();
    }
  });

  async function ledger(session: SessionRollover) {
    const folder = createLedgerFolder();
    const turns = await folder.open();
    open.push({ turns, remove: folder.remove });
    const published: [string, ConversationEvent][] = [];
    const history = createDeliveredHistory({
      turns,
      session,
      clock: createFakeClock(),
      logger: createRecordingLogger(),
      publish: (baseId, event) => published.push([baseId, event]),
    });
    const record = (originConversationId: string, destination: string, text = "answer") =>
      history.record({
        originConversationId,
        destination,
        deliveryKey: "continuation:1",
        text,
        at: "2026-11-30T12:00:00.000Z",
      });
    const texts = async (conversationId: string) =>
      (await turns.history(conversationId, 10)).map((message) => message.content);
    return { turns, record, texts, published };
  }
  const daily: SessionRollover = { rollover: "daily", timezone: "UTC" };

  test("goes to the origin's own bucket and to today's, and shows once in the feed", async () => {
    const { record, texts, turns, published } = await ledger(daily);
    for (let time = 0; time < 2; time += 1) {
      expect(await record("slack:C:1#2026-11-28", "slack:C:1")).toEqual({ recorded: true });
    }
    expect(await texts("slack:C:1#2026-11-28")).toEqual(["answer"]);
    expect(await texts("slack:C:1#2026-11-30")).toEqual(["answer"]);
    const feed = await turns.feed("slack:C:1", 0, 10);
    expect(feed.map((row) => row.conversationId)).toEqual(["slack:C:1#2026-11-28"]);
    expect(published).toEqual([["slack:C:1", { type: "message", message: feed[0]! }]]);
  });

  test("leaves a post that is a row already alone and adds only the origin's bucket, unseen", async () => {
    const { record, texts, turns, published } = await ledger(daily);
    await turns.appendDelivered({
      conversationId: "terminal:main#2026-11-30",
      baseId: "terminal:main",
      deliveryKey: "continuation:1",
      text: "answer",
      now: "2026-11-30T12:00:00.000Z",
      mirror: false,
    });
    expect(await record("terminal:main#2026-11-28", "terminal:main")).toEqual({ recorded: true });
    expect(await texts("terminal:main#2026-11-28")).toEqual(["answer"]);
    expect(await texts("terminal:main#2026-11-30")).toEqual(["answer"]);
    expect(await turns.feed("terminal:main", 0, 10)).toHaveLength(1);
    expect(published).toEqual([]);
  });

  test("another text under the key, or a fault, is told and nothing is overwritten", async () => {
    const { record, texts, turns } = await ledger({ rollover: "none" });
    expect(await record("slack:C:1", "slack:C:1")).toEqual({ recorded: true });
    expect(await record("slack:C:1", "slack:C:1", "other")).toEqual({
      recorded: false,
      code: "history_record_failed",
    });
    expect(await texts("slack:C:1")).toEqual(["answer"]);
    const broken = createDeliveredHistory({
      turns: { ...turns, findDelivered: () => Promise.reject(new Error("disk")) },
      session: daily,
      clock: createFakeClock(),
      logger: createRecordingLogger(),
      publish: () => {},
    });
    const entry = { originConversationId: "a:1", destination: "a:1", deliveryKey: "k", text: "t", at: "" };
    expect(await broken.record(entry)).toEqual({ recorded: false, code: "history_record_failed" });
  });
});
